"""The MAC of a board: unknown versions, a missing MAC, a clock that stands still, and waiting for the link."""

import contextlib

import pytest
from support.xrt import TINY, Machine, bdf_of, make_xclbin

from p4sgd.host.aggregators.cluster_file import read_cluster
from p4sgd.host.aggregators.fpga import KERNEL as AGGREGATOR
from p4sgd.host.boards import mac
from p4sgd.host.boards.mac import BoardMac, open_mac
from p4sgd.host.boards.xrt import XrtAddress
from p4sgd.host.devices.cluster import ClusterDevice
from p4sgd.host.doctor import ethernet
from p4sgd.host.errors import P4sgdError
from p4sgd.hw.spec import cmac
from p4sgd.hw.spec.aggregator import AggregatorConfig


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """With three boards."""
    monkeypatch.setattr(mac, "_TRY_S", 0.05)
    monkeypatch.setattr(mac, "_OTHER_FEC_S", 0.05)
    with contextlib.closing(Machine(tmp_path, 3)) as found:
        found.install(monkeypatch)
        yield found
        assert not found.open_handles


@pytest.fixture
def address(tmp_path):
    return XrtAddress(bdf_of(0), make_xclbin(tmp_path / "worker.xclbin", TINY))


def unit(machine):
    return machine.boards[0].kernels["p4sgd_cmac_1"][0]


def test_another_kernel_or_none(machine, address):
    open_mac("me", address, 0).close()  # the board is loaded
    for register, word, says in (
        (cmac.IDENTITY[1], 9, "has version 9 of the register map, this program needs 2"),
        (cmac.IDENTITY[0], 0x1234, "is none: its first word is 0x00001234, not 0x50344d43"),
    ):
        unit(machine).words[register.offset] = word
        with pytest.raises(P4sgdError, match=f"the MAC of cage 0 of me {says}"):
            open_mac("me", address, 0)
    assert open_mac("me", address, 1) is None, "the cage has no MAC"


def test_counters_of_a_mac_without_a_clock(machine, address):
    """Its snapshot stays pending."""
    with contextlib.closing(BoardMac("me", address, 0)) as found:
        unit(machine).words[cmac.COUNTERS["RX_BAD"].offset] = 7
        assert found.link_state().counters["RX_BAD"] == 7
        unit(machine).words[cmac.SNAPSHOT.offset] = cmac.SNAPSHOT["pending"].mask
        assert found.link_state().counters == {}


@contextlib.contextmanager
def cluster(machine, tmp_path, *, ports=None, macs=2):
    """A cluster of all boards but the first, which is the aggregator between them."""
    aggregator, *machine.boards = machine.boards
    xclbin = make_xclbin(
        tmp_path / "aggregator.xclbin", AggregatorConfig(ports=macs), kernel=AGGREGATOR, number=2, macs=macs
    )
    lines = ['kind = "fpga"', f'control = "xrt:{aggregator.bdf}"', f'xclbin = "{xclbin}"']
    worker = make_xclbin(tmp_path / "worker.xclbin", TINY)
    file = read_cluster(machine.cluster_file(worker, ports=ports, aggregator=lines))
    workers, machine.boards = machine.boards, [aggregator, *machine.boards]
    with contextlib.closing(ClusterDevice(TINY, len(workers), cluster=file)) as found:
        yield found, aggregator


def test_all_links_are_waited_for_at_the_same_time(machine, tmp_path, monkeypatch):
    """Two workers and two ports wait once each time, and their receivers are reset. Only workers try the other setting
    of error correction: the aggregator's ports, which change theirs with them, would find it to be the other end's."""
    waits = []
    real = mac._await
    monkeypatch.setattr(mac, "_await", lambda macs, field, _: waits.append(len(macs)) or real(macs, field, 0.02))
    for board in machine.boards:
        board.cable = {"there": False}
    with cluster(machine, tmp_path) as (device, aggregator):
        assert [board.link.status["up"] for board in device.boards.values()] == [0, 0]
        units = [aggregator.kernels[f"{cmac.kernel_name(cage)}_1"][0] for cage in range(2)]
        workers = [board.kernels["p4sgd_cmac_1"][0] for board in machine.boards[1:]]
        assert {each.rx_resets for each in (*units, *workers)} == {mac._TRIES}
        assert [each.resets for each in units] == [0, 0]
        assert [each.resets for each in workers] == [2, 2]
    assert waits == [4] * mac._TRIES + [4, 2, 2]


def test_the_doctor_names_the_port_whose_link_is_down(machine, tmp_path, monkeypatch):
    monkeypatch.setattr(ethernet, "_WATCH_S", 0.0)
    machine.boards[0].cable = {"remote_fault": 1}
    with cluster(machine, tmp_path) as (device, _):
        found = ethernet.examine_ethernet(device.boards, device.aggregator)
    results = [(each.worker, each.result.value, each.evidence.get("aggregator_port")) for each in found]
    assert results == [(0, "passed", None), (1, "passed", None), (None, "failed", 0), (None, "failed", 1)]
    assert found[3].problem.startswith("port 1 of the aggregator: it receives, but the other end reports")
    with cluster(machine, tmp_path, ports=[1, 1]) as (device, _):
        assert list(device.aggregator.macs) == [1], "no cable need be at a port without a worker"


@pytest.mark.parametrize(
    ("cable", "up", "rx_resets", "resets"),
    [
        ({"rx_resets": 1}, 1, 1, 0),
        ({"rx_resets": 3}, 1, 3, 0),
        ({"rx_resets": 5}, 0, 4, 2),
        ({"remote_fault": 1}, 0, 0, 0),  # only the other end does not receive
    ],
)
def test_receivers_are_reset_until_they_adapt(machine, address, cable, up, rx_resets, resets):
    machine.boards[0].cable = cable
    with contextlib.closing(BoardMac("me", address, 0)) as found:
        mac.await_links([found])
        assert found.link_state().status["up"] == up
    assert (unit(machine).rx_resets, unit(machine).resets) == (rx_resets, resets)


@pytest.mark.parametrize("here", [False, True])
def test_the_other_end_differs_in_error_correction(machine, address, here):
    """This is found out, and the setting is as before. When the other end has changed, nothing is said of it."""
    machine.boards[0].cable = {"rs_fec": not here}
    with contextlib.closing(BoardMac("me", address, 0)) as found:
        found.set_rs_fec(here)
        mac.await_links([found])
        state = found.link_state()
        assert (state.rs_fec, state.other_end_fec, state.status["aligned"]) == (here, not here, 0)
        machine.boards[0].cable = {"rs_fec": here}
        assert found.link_state().other_end_fec is None


def test_loopback_outlasts_resets(machine, address):
    with contextlib.closing(BoardMac("me", address, 0)) as found:
        machine.boards[0].faults = {"loopback": {"there": False}}
        found.set_loopback(True)
        mac.await_links([found])
        control = cmac.CONTROL.decode(unit(machine).words[cmac.CONTROL.offset])
        assert control == {"reset": 0, "rs_fec": 1, "loopback": 1, "rx_reset": 0}
