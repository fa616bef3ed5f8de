"""`p4sgd switch serve` over virtual Ethernet interfaces: its end, and what is for all where there is no group.

That it follows the protocol is in tests/conformance/test_socket_conforms.py.
"""

import contextlib
import socket
import subprocess
import time

import pytest
from support.command_line import PROGRAM
from support.namespace import Namespace
from support.switch import MAC, from_worker, job_of, running, serving, worker_mac

from p4sgd.host.links import open_link
from p4sgd.host.rpc.address import ControlAddress
from p4sgd.host.serve.aggregator import SoftwareAggregatorServer
from p4sgd.hw.spec.packet import GROUP_BIT, Packet, PacketType
from p4sgd.sim.ending import ending_signals

PORTS = 4


@pytest.fixture
def namespace():
    with contextlib.closing(Namespace()) as opened:
        for port in range(PORTS):
            opened.pair(f"s{port}", f"w{port}")
        yield opened


@pytest.fixture
def served(namespace, tmp_path):
    with serving(namespace, tmp_path, INTERFACES, "--slots", "16") as found:
        found[1].set_mac(MAC)
        yield found


INTERFACES = [f"s{port}" for port in range(PORTS)]


def test_it_ends_cleanly(namespace, tmp_path):
    for number in ending_signals():
        with serving(namespace, tmp_path, ["s0"]) as (process, _):
            assert (tmp_path / "aggregator").is_socket()
            assert (tmp_path / "aggregator").stat().st_mode & 0o777 == 0o600
            process.send_signal(number)
            assert process.wait(30) == 0
            assert not (tmp_path / "aggregator").exists()


def run_serve(namespace, *words):
    return namespace.call(
        subprocess.run,
        [str(PROGRAM), "switch", "serve", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_where_another_one_serves(namespace, served, tmp_path):
    address = f"unix:{tmp_path}/aggregator"
    done = run_serve(namespace, "--interface", "w0", "--control", address)
    assert done.returncode == 2
    assert f"{address}: another program serves there: end it, or choose another address" in done.stderr
    done = run_serve(namespace, "--interface", "s0", "--control", f"unix:{tmp_path}/second")
    assert done.returncode == 2
    assert "another aggregator serves s0: end it first" in done.stderr
    assert not (tmp_path / "second").exists()
    assert served[1].counters()["FRAMES"] == 0, "the first one serves on"


class GrouplessLink:
    """A link that brings frames and keeps what is sent, and reaches no group, as UDP without a multicast address."""

    most_bytes, address, lost = 1514, None, 0

    def __init__(self, frames):
        self._readable, other = socket.socketpair()
        other.close()
        self._frames, self.sent = frames, []

    def fileno(self):
        return self._readable.fileno()

    def reaches(self, address):
        return not address >> GROUP_BIT & 1

    def receive_batch(self, batch):
        came, self._frames = self._frames[: batch.rows], self._frames[batch.rows :]
        for row, frame in enumerate(came):
            batch.put(row, frame)
        return len(came)

    def send_batch(self, batch, rows):
        self.sent += [batch.frame(row) for row in rows]


def test_what_is_for_all_goes_to_each_where_there_is_no_group(tmp_path):
    """Also if these are more packets than a batch has room for: 144 answers at once to two workers behind a port."""
    slots, ports = 200, [0, 1, 0]

    def frames(shard):
        values = range(100 * shard, 100 * shard + 8)
        return [from_worker(PacketType.PARTIAL, slot, 1, shard, 3, values).to_bytes() for slot in range(slots)]

    links = [GrouplessLink(frames(0) + frames(2)), GrouplessLink(frames(1))]
    control = ControlAddress.parse(f"unix:{tmp_path}/control")
    server = SoftwareAggregatorServer({"one": links[0], "two": links[1]}, control, slots=slots, jobs=1)
    server.aggregator.mac = MAC
    server.aggregator.begin(0, job_of(3, ports=ports))
    with running(server):
        end = time.monotonic() + 60
        while sum(len(link.sent) for link in links) < 3 * slots and time.monotonic() < end:
            time.sleep(0.01)
    sums = tuple(300 + 3 * each for each in range(8))
    for port, link in enumerate(links):
        assert sorted(link.sent) == sorted(
            Packet(PacketType.FULL, 1, slot, 1, shard, 3, 7, sums, worker_mac(shard), MAC).to_bytes()
            for shard in range(3)
            if ports[shard] == port
            for slot in range(slots)
        )


def test_strangers_are_answered_again_after_a_while(namespace, served):
    """However many probes of no job come at once."""
    _, control = served
    probe = Packet(PacketType.PROBE, 9, 0, 0, 0, 1, 1, destination=MAC, source=1).to_bytes()
    with contextlib.closing(namespace.call(open_link, "w0")) as link:
        end = time.monotonic() + 30
        while not control.counters()["DROPPED_JOB"]:
            assert time.monotonic() < end
            for _ in range(500):
                link.send(probe)
        answered = control.counters()["ECHOES"]
        assert answered >= 1000
        while control.counters()["ECHOES"] == answered:
            assert time.monotonic() < end
            link.send(probe)
