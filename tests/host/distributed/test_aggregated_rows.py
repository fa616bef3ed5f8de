"""Ranks whose rows an aggregator adds: others that use it or their machine change no sum."""

import os
import random
import socket
import subprocess
import sys
import threading
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from support.aggregator_model import Aggregator
from support.ranks import run_ranks

from p4sgd.host.aggregators.cluster_file import AggregatorAddress, Cluster, NetworkOptions, WorkerAddress
from p4sgd.host.distributed import SINGLE_PROCESS, rows
from p4sgd.host.distributed.communicator import Communicator
from p4sgd.host.distributed.rows import AggregatedRows
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.hw.spec.packet import mac_text

RANKS = 2
HOST = f"process {os.getpid()}"
"""Addresses are those of a machine: tests in other processes must have others."""

CLUSTER = Cluster(
    AggregatorAddress("socket", "unix:switch"),
    tuple(WorkerAddress(port, host=HOST, interface=f"w{port}") for port in range(RANKS)),
    NetworkOptions(resends=12),
)
VALUES = np.arange(24) - 7


class Network:
    """Links to a model of the aggregator, which speaks version 2 if ``most`` is not 0, and its controller."""

    def __init__(self, most):
        self.aggregator = Aggregator(64, jobs=4, mac=CLUSTER.aggregator.address, most=most)
        self.sent = []
        self.silent = False
        self._lock = threading.Lock()
        self._links = [[] for _ in range(RANKS)]
        model = self.aggregator
        self.controller = SimpleNamespace(
            jobs=4,
            most=most,
            begin=model.begin,
            end=model.end,
            served=lambda: dict(model.jobs),
            set_mac=lambda mac: None,
            check_process=lambda: None,
            close=lambda: None,
        )

    def open_link(self, interface):
        port = int(interface[1:])
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        near.setblocking(False)
        self._links[port].append(far)
        return SimpleNamespace(
            fileno=near.fileno,
            send=lambda frame: self.send(frame, port),
            receive=lambda: _receive(near),
            close=lambda: (self._links[port].remove(far), near.close(), far.close()),
        )

    def send(self, frame, port):
        """What a rank sends arrives at once, and so do the answers: at all programs that have opened the interface."""
        with self._lock:
            self.sent.append((frame, port))
            answer = None if self.silent else self.aggregator.receive_frame(frame, port)
            if answer is not None:
                for each in range(RANKS):
                    for link in self._links[each] if answer.ports >> each & 1 else ():
                        link.send(answer.packet.to_bytes())


def _receive(link):
    try:
        return link.recv(2048)
    except BlockingIOError:
        return None


@pytest.fixture(params=[0, 45], ids=["version 1", "version 2"])
def network(request, monkeypatch):
    found = Network(request.param)
    monkeypatch.setattr(rows, "open_link", found.open_link)
    monkeypatch.setattr(rows, "open_controller", lambda cluster: found.controller)
    monkeypatch.setattr(rows.secrets, "randbelow", random.Random(0).randrange)
    return found


def test_late_packets_of_an_earlier_run_are_not_added(network):
    def run(factor, late):
        def train(ranks):
            with AggregatedRows(CLUSTER, ranks) as add:
                if ranks.rank == 0:
                    for frame, port in late:
                        network.send(frame, port)
                ranks.all_gather(None)
                return add(VALUES * (factor + ranks.rank))

        return run_ranks(RANKS, train)

    for total in run(1000, []):
        np.testing.assert_array_equal(total, VALUES * 2001)
    late, network.sent = network.sent, []
    assert len(late) >= RANKS * VALUES.size // 8
    for total in run(1, late):
        np.testing.assert_array_equal(total, VALUES * 3)


ALONE = msgspec.structs.replace(CLUSTER, workers=CLUSTER.workers[:1])


def test_runs_may_share_an_interface(network):
    with AggregatedRows(ALONE, SINGLE_PROCESS) as first:
        with AggregatedRows(ALONE, SINGLE_PROCESS) as second:
            np.testing.assert_array_equal(second(VALUES), VALUES)
            np.testing.assert_array_equal(first(VALUES), VALUES)
            assert len(network.aggregator.jobs) == 2
        np.testing.assert_array_equal(first(VALUES), VALUES)
        assert len(network.aggregator.jobs) == 1
    assert not network.aggregator.jobs


_KILLED = """
import contextlib, os, signal, sys
from p4sgd.host.aggregators.cluster_file import WorkerAddress
from p4sgd.host.distributed.rows import _claim_mac
with contextlib.ExitStack() as opened:
    print(_claim_mac(WorkerAddress(0, host=sys.argv[1], interface="w0"), opened), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_run_ends_the_job_of_one_that_was_killed(network):
    """It takes the same address."""
    killed = subprocess.run([sys.executable, "-c", _KILLED, HOST], stdout=subprocess.PIPE, text=True)
    with AggregatedRows(ALONE, SINGLE_PROCESS):
        (left,) = network.aggregator.jobs.values()
    assert left.members[0].mac == int(killed.stdout)
    network.aggregator.begin(3, left)
    with AggregatedRows(ALONE, SINGLE_PROCESS) as add:
        np.testing.assert_array_equal(add(VALUES), VALUES)
        assert left not in network.aggregator.jobs.values()
        assert len(network.aggregator.jobs) == 1


def test_an_address_of_the_file_is_for_one_run(network):
    mac = 0x0200_0000_0000 | os.getpid()
    told = msgspec.structs.replace(ALONE, workers=(msgspec.structs.replace(ALONE.workers[0], mac=mac),))
    with AggregatedRows(told, SINGLE_PROCESS) as first:
        with pytest.raises(UserError, match=f"^w0: another training uses the address {mac_text(mac)}"):
            AggregatedRows(told, SINGLE_PROCESS)
        np.testing.assert_array_equal(first(VALUES), VALUES)
    with AggregatedRows(told, SINGLE_PROCESS):
        assert len(network.aggregator.jobs) == 1


class Interrupted(Communicator):
    """A rank after Ctrl-C, before the next collective call."""

    interrupted = True


@pytest.mark.timeout(30)
def test_an_interrupted_rank_does_not_wait_for_a_silent_aggregator(network, monkeypatch):
    """Nor for the time to send something again. While sums come, it goes on to the call in which all ranks stop."""
    patient = msgspec.structs.replace(ALONE, network=NetworkOptions(resend_us=300_000_000, resends=0))
    with AggregatedRows(patient, Interrupted()) as add:
        np.testing.assert_array_equal(add(VALUES), VALUES)
        network.silent = True
        monkeypatch.setattr(rows, "_SILENCE_NS", 10**8)
        with pytest.raises(P4sgdError, match="interrupted while it waited for the aggregator"):
            add(VALUES)
    assert not network.aggregator.jobs
