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
        (cmac.IDENTITY[1], 9, "the MAC of cage 0 of me has version 9 of the register map, this program needs 2"),
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
    monkeypatch.setattr(mac, "_TRY_S", 0.05)
    monkeypatch.setattr(mac, "_OTHER_FEC_S", 0.05)
    machine.boards[0].cable = {"there": False}
    with contextlib.closing(BoardWorker(0, address)) as worker:
        assert not worker.link.status["up"]
        assert worker.link.other_end_fec is None
        assert worker.link.rs_fec


@pytest.mark.parametrize("needed", [1, 3, 5])
def test_receivers_are_reset_until_they_adapt(machine, address, monkeypatch, needed):
    monkeypatch.setattr(mac, "_TRY_S", 0.05)
    monkeypatch.setattr(mac, "_OTHER_FEC_S", 0.05)
    machine.boards[0].cable = {"rx_resets": needed}
    with contextlib.closing(BoardMac("me", address, 0)) as found:
        found.await_link()
        assert found.link_state().status["up"] == (needed <= mac._TRIES)
    assert unit(machine).rx_resets == min(needed, mac._TRIES)
    assert unit(machine).resets == (0 if needed <= mac._TRIES else 2)


def test_a_link_that_only_the_other_end_does_not_receive_is_left_alone(machine, address, monkeypatch):
    monkeypatch.setattr(mac, "_TRY_S", 0.05)
    machine.boards[0].cable = {"remote_fault": 1}
    with contextlib.closing(BoardMac("me", address, 0)) as found:
        found.await_link()
        assert not found.link_state().status["up"]
    assert (unit(machine).rx_resets, unit(machine).resets) == (0, 0)


@pytest.mark.parametrize("here", [False, True])
def test_the_other_end_differs_in_error_correction(machine, address, monkeypatch, here):
    """This is found out, and the setting is as before. When the other end has changed, nothing is said of it."""
    monkeypatch.setattr(mac, "_TRY_S", 0.05)
    monkeypatch.setattr(mac, "_OTHER_FEC_S", 0.05)
    machine.boards[0].cable = {"rs_fec": not here}
    with contextlib.closing(BoardMac("me", address, 0)) as found:
        found.set_rs_fec(here)
        found.await_link()
        state = found.link_state()
        assert (state.rs_fec, state.other_end_fec, state.status["aligned"]) == (here, not here, 0)
        machine.boards[0].cable = {"rs_fec": here}
        assert found.link_state().other_end_fec is None


def test_loopback_outlasts_resets(machine, address, monkeypatch):
    monkeypatch.setattr(mac, "_TRY_S", 0.0)
    monkeypatch.setattr(mac, "_OTHER_FEC_S", 0.0)
    with contextlib.closing(BoardMac("me", address, 0)) as found:
        machine.boards[0].faults = {"loopback": {"there": False}}
        found.set_loopback(True)
        found.await_link()
        assert cmac.CONTROL.decode(unit(machine).words[cmac.CONTROL.offset]) == {
            "reset": 0,
            "rs_fec": 1,
            "loopback": 1,
            "rx_reset": 0,
        }
