"""The MAC of a board: unknown versions, a missing MAC, a clock that stands still, and waiting for the link."""

import contextlib

import pytest
from support.xrt import TINY, Machine, bdf_of, make_xclbin

from p4sgd.host.devices.xrt_worker import BoardWorker
from p4sgd.host.errors import P4sgdError
from p4sgd.host.xrt import mac
from p4sgd.host.xrt.board import BoardAddress
from p4sgd.host.xrt.mac import BoardMac, open_mac
from p4sgd.hw.spec import cmac


@pytest.fixture
def machine(tmp_path, monkeypatch):
    with contextlib.closing(Machine(tmp_path, 1)) as found:
        found.install(monkeypatch)
        yield found
        assert not found.open_handles


@pytest.fixture
def address(tmp_path):
    return BoardAddress(bdf_of(0), make_xclbin(tmp_path / "worker.xclbin", TINY))


def unit(machine):
    return machine.boards[0].kernels["p4sgd_cmac_1"][0]


@pytest.mark.parametrize(
    ("register", "word", "says"),
    [
        (cmac.IDENTITY[0], 0x1234, "the MAC of cage 0 of me is none: its first word is 0x00001234, not 0x50344d43"),
        (cmac.IDENTITY[1], 9, "the MAC of cage 0 of me has version 9 of the register map, this program needs 1"),
    ],
)
def test_another_kernel(machine, address, register, word, says):
    open_mac("me", address, 0).close()  # the board is loaded
    unit(machine).words[register.offset] = word
    with pytest.raises(P4sgdError, match=says):
        open_mac("me", address, 0)


def test_a_cage_without_a_mac(machine, address):
    assert open_mac("me", address, 1) is None


def test_counters_of_a_mac_without_a_clock(machine, address):
    """Its snapshot stays pending."""
    with contextlib.closing(BoardMac("me", address, 0)) as found:
        unit(machine).words[cmac.COUNTERS["RX_BAD"].offset] = 7
        assert found.link_state().counters["RX_BAD"] == 7
        unit(machine).words[cmac.SNAPSHOT.offset] = cmac.SNAPSHOT["pending"].mask
        assert found.link_state().counters == {}


def test_a_worker_waits_for_its_link(machine, address, monkeypatch):
    with contextlib.closing(BoardWorker(0, address)) as worker:
        assert worker.link.status["up"]
    monkeypatch.setattr(mac, "_UP_S", 0.05)
    machine.boards[0].cable = {"there": False}
    with contextlib.closing(BoardWorker(0, address)) as worker:
        assert not worker.link.status["up"]
