"""Waiting for the answer to a probe."""

import pytest
from support.networked_device import NetworkedDevice

from p4sgd.host.devices import diagnosis as probing
from p4sgd.host.devices.device import client_of
from p4sgd.host.devices.diagnosis import probe
from p4sgd.host.devices.session import Session
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.register_map import RegisterClient

READ_S = 1e-6
"""Time of a register read, as on boards."""


class Clock:
    """A clock that advances only by reads of registers."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(probing.time, "monotonic", lambda: self.now)

    def client_of(self, worker, *, late_s, read_s=READ_S):
        """A worker whose echoes come late."""

        def read(offset):
            word = worker.read_register(offset) if self.now >= late_s or offset != registers.ECHO.offset else 0
            self.now += read_s
            return word

        return RegisterClient(read, worker.write_register)


@pytest.fixture
def worker():
    device = NetworkedDevice(WorkerConfig.tiny(), 1)
    Session(device)
    return device.workers[0]


@pytest.mark.parametrize(("late_s", "comes"), [(0.0, True), (0.004, True), (0.006, False)])
def test_a_probe_waits_for_its_answer(monkeypatch, worker, late_s, comes):
    client = Clock(monkeypatch).client_of(worker, late_s=late_s)
    assert (probe(client, slot=0, number=1, broadcast=False, echo_s=0.005) is not None) == comes


def test_a_suspended_program_polls_once_more(monkeypatch, worker):
    client = Clock(monkeypatch).client_of(worker, late_s=0.5, read_s=1.0)
    assert probe(client, slot=0, number=1, broadcast=False, echo_s=0.005) is not None


def test_polls_are_counted_in_a_simulation(monkeypatch, worker):
    clock = Clock(monkeypatch)
    client = clock.client_of(worker, late_s=1.0)
    assert probe(client, slot=0, number=1, broadcast=False, echo_s=0.0) is None
    assert clock.now == pytest.approx(250 * READ_S)


def test_an_answer_to_another_probe_is_ignored(worker):
    """A worker that has not sent one probe yet does not accept the next."""
    client = client_of(worker)
    worker.write_register(registers.PROBE.offset, registers.PROBE.encode(slot=0, number=7, broadcast=0))
    assert client.read(registers.ECHO)["came"]
    blocked = RegisterClient(worker.read_register, lambda offset, word: None)
    assert probe(blocked, slot=0, number=8, broadcast=False, echo_s=0.0) is None
    assert probe(blocked, slot=0, number=7, broadcast=False, echo_s=0.0) is not None
