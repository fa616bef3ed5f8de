"""Forged datagrams over real sockets, at a switch and a worker that train meanwhile: a counter, and nothing else.

They come from the right address and port, which on one machine only root can forge, and all of them is right but the
key. ``P4SGD_TIMES=50 pytest tests/system/test_forged_datagrams.py`` sends a million to each.
"""

import contextlib
import json
import socket
import struct
import subprocess
import sys
import time
from ipaddress import IPv4Address
from pathlib import Path

import numpy as np
import pytest
from support.bench import times
from support.lab import await_file
from support.namespace import Namespace
from support.switch import serving

from p4sgd.host.links.batch import FrameBatch
from p4sgd.hw.spec.packet import KEYED_FIELDS, Packet, PacketType
from p4sgd.hw.spec.udp import ETHERNET_BYTES, PORT, address_of

PROGRAM = Path(sys.executable).with_name("p4sgd")
COUNT = times(20_000)
SWITCH, *WORKERS = (IPv4Address("127.0.0.1") + index for index in range(3))
TRAIN = ("breast_cancer", "--batch", "32", "--lr", "0.05", "--schedule", "constant", "--json")

EPOCH_PACKETS = 18 * 4
"""Of 18 mini-batches two PARTIALs and two ACKs each."""

LIMIT_S = 120
BATCH = 256
FULL_BYTES = 1 << 20
"""Bytes that wait at a socket, as Linux counts them, at which to send no more: it has room for some times as many."""

(KEY_AT,) = (field.offset_bits // 8 for field in KEYED_FIELDS if field.name == "key")


class Forger:
    """Sends datagrams from an address and port to others, with any keys."""

    def __init__(self, namespace, source, destination, packet, rng):
        self._namespace, self._rng = namespace, rng
        payload = packet.to_bytes()[ETHERNET_BYTES:]
        ip = struct.pack(">BxHxxxxBBxx4s4s", 0x45, 0, 64, socket.IPPROTO_UDP, source.packed, destination.packed)
        udp = struct.pack(">HHHH", PORT, PORT, 8 + len(payload), 0)
        self._batch = FrameBatch(BATCH)
        for row in range(BATCH):
            self._batch.put(row, ip + udp + payload)
        self._keys = self._batch.frames[:, (at := len(ip + udp) + KEY_AT - ETHERNET_BYTES) : at + 8]
        self._to = f"{int.from_bytes(destination.packed, sys.byteorder):08X}:{PORT:04X}"
        self._socket = namespace.call(socket.socket, socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
        self._socket.connect((str(destination), 0))

    def send(self, count):
        """Send so many, once those before have been received for the most part."""
        while self.waiting()[0] > FULL_BYTES:
            time.sleep(0.001)
        self._keys[:] = self._rng.integers(0, 256, self._keys.shape)
        assert not self._batch.frames_out.send(self._socket.fileno(), np.arange(count))

    def waiting(self):
        """Bytes that wait at the other socket, and datagrams for which there was no room."""
        for line in self._namespace.call(Path("/proc/thread-self/net/udp").read_text).splitlines():
            words = line.split()
            if words[1] == self._to:
                return int(words[4].partition(":")[2], 16), int(words[-1])
        pytest.fail(f"nobody is at {self._to}")

    def close(self):
        self._socket.close()


def go_on(control):
    """Return after some more epochs of the training."""
    end, accepted = time.monotonic() + LIMIT_S, control.counters()["JOB0_ACCEPTED"]
    while control.counters()["JOB0_ACCEPTED"] < accepted + 3 * EPOCH_PACKETS:
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.slow
def test_forged_datagrams_change_a_counter(seed, tmp_path):
    rng = np.random.default_rng(seed)
    text = (
        f'[aggregator]\nkind = "socket"\ncontrol = "unix:aggregator"\nudp = "{SWITCH}"\n[network]\nresend_us = 20000\n'
    )
    text += "".join(f'[[workers]]\ncontrol = "unix:{host}"\nport = 0\nudp = "{host}"\n' for host in WORKERS)
    (tmp_path / "cluster.toml").write_text(text)
    with contextlib.ExitStack() as stack:
        namespace = stack.enter_context(contextlib.closing(Namespace()))
        workers = []
        for host in WORKERS:
            words = ("--interface", f"udp:{host}", "--control", f"unix:{tmp_path}/{host}", "--config", "tiny")
            workers.append(stack.enter_context(namespace.start(PROGRAM, "worker", *words, "--quiet")))
            stack.callback(workers[-1].terminate)
        _, control = stack.enter_context(serving(namespace, tmp_path, [f"udp:{SWITCH}"]))
        for host, worker in zip(WORKERS, workers, strict=True):
            await_file(tmp_path / str(host), worker)
        command = [PROGRAM, "train", *TRAIN, "--device", "cluster", "--cluster", "cluster.toml", "--epochs", "1000000"]
        command += ["--checkpoint", "first.epoch"]
        pipe = subprocess.PIPE
        run = stack.enter_context(subprocess.Popen(command, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True))
        stack.callback(run.kill)
        await_file(tmp_path / "first.epoch", run)  # before it packets are sent to measure them
        (job,) = control.served().values()
        assert job.key is not None
        macs = [address_of(host) for host in (SWITCH, WORKERS[0])]
        where = {"job": job.number, "slot": 0, "round": 1, "shard": 0, "workers": 2, "values": (1 << 20,) * 8}
        partial = Packet(
            PacketType.PARTIAL, **where, bitmap=0b01, destination=macs[0], source=macs[1], version=2, key=0
        )
        full = Packet(PacketType.FULL, **where, bitmap=0b11, destination=macs[1], source=macs[0], version=2, key=0)
        forgers = [
            stack.enter_context(contextlib.closing(Forger(namespace, *way, packet, rng)))
            for packet, way in ((partial, (WORKERS[0], SWITCH)), (full, (SWITCH, WORKERS[0])))
        ]
        for first in range(0, COUNT, BATCH):
            for forger in forgers:
                forger.send(min(BATCH, COUNT - first))
        while any(forger.waiting()[0] for forger in forgers):
            time.sleep(0.01)
        assert [forger.waiting()[1] for forger in forgers] == [0, 0], "all were received"
        assert control.counters()["DROPPED_KEY"] == COUNT
        go_on(control)
        run.terminate()  # which keeps what was trained, as Ctrl-C does
        out, err = run.communicate(timeout=LIMIT_S)
    assert "interrupted after epoch" in err
    trained = json.loads(out)
    dropped = [[worker["DROPPED_KEY"] for worker in epoch["counters"]] for epoch in trained["epochs"]]
    at_first, at_second = map(sum, zip(*dropped, strict=True))
    print(f"worker 0 dropped {at_first:,} in {len(dropped)} epochs, some between them")
    assert 0 < at_first <= COUNT
    assert at_second == 0
    command = [PROGRAM, "train", *TRAIN, "--workers", "2", "--config", "tiny", "--epochs", str(len(dropped))]
    right = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert trained["weights_sha256"] == right["weights_sha256"]
    losses, right_losses = ([epoch["train_loss"] for epoch in each["epochs"]] for each in (trained, right))
    assert losses == right_losses
