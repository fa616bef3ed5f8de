"""Boards without a shell: their memory, and what is not as it should be. The contract of workers covers the rest."""

import contextlib
import errno

import numpy as np
import pytest
from support.jobs import SMALL
from support.xdma import RANGE, Driver
from support.xrt import Machine

from p4sgd.host.boards import xdma
from p4sgd.host.boards.kernel import PAGE
from p4sgd.host.boards.xdma import XdmaAddress
from p4sgd.host.devices.board_worker import BoardWorker
from p4sgd.host.devices.device import client_of
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.hw.spec import registers

SHARED = [*((RANGE * bank, RANGE) for bank in range(3)), (3 * RANGE, 2 * RANGE), (4 * RANGE, RANGE)]
"""Memories of which the last bank has two parts, and the labels the second of these."""

SECOND = f', {{"address": {RANGE}, "bytes": {RANGE}}}'


@pytest.fixture
def machine(tmp_path):
    with contextlib.closing(Machine(tmp_path, 1)) as found:
        yield found


@pytest.fixture
def driver(machine, monkeypatch):
    found = Driver(machine, SMALL, SHARED)
    found.install(monkeypatch)
    yield found
    assert not found.devices, "all are closed"


def opened(driver, number=0):
    return BoardWorker(0, XdmaAddress(number, driver.address_map))


def data(size, seed):
    content = np.random.default_rng(seed).integers(0, 256, size, np.uint8)
    content.flags.writeable = False  # as a map of a prepared folder's file
    return content


@pytest.mark.parametrize("first", [3, 4])
def test_labels_make_way_for_lines(driver, first):
    with contextlib.closing(opened(driver)) as worker:
        for bank in (first, 7 - first):
            worker.write_memory(bank, 0, data(20 * PAGE, bank))
        client_of(worker).write_pair(registers.LABELS_ADDRESS, PAGE)
        worker.write_memory(3, 0, data(RANGE + 5 * PAGE, 5))
        assert worker.read_memory(4, 0, 20 * PAGE).tolist() == data(20 * PAGE, 4).tolist()
        assert worker.read_memory(3, 0, RANGE + 5 * PAGE).tolist() == data(RANGE + 5 * PAGE, 5).tolist()
        kernel, _ = driver.machine.boards[0].kernels["p4sgd_worker_1"]
        low, high = (kernel.registers.get(half) for half in registers.LABELS_ADDRESS)
        assert (high << 32 | low) >= 4 * RANGE + 5 * PAGE + PAGE, "behind the lines"
        with pytest.raises(
            UserError, match=r"has no room for [0-9,]+ bytes in bank 3: bank 4 needs 81,920 of its 1,048,576"
        ):
            worker.write_memory(3, 0, data(2 * RANGE - 19 * PAGE, 0))


def test_what_is_missing(driver, tmp_path, monkeypatch):
    address_map = driver.address_map.read_text()
    for text, error, says in (
        (None, UserError, "address_map.json: cannot read the address map: No such file"),
        ("{", UserError, "address_map.json: no address map, as p4sgd build vivado writes it: .*truncated"),
        ('{"kernels": {"p4sgd_worker": {"registers": "0"}}}', UserError, r"no address map, .*Expected `int`"),
        (address_map.replace("p4sgd_worker", "other"), UserError, "address_map.json: has no kernel p4sgd_worker"),
        (address_map.replace('"registers": 0', '"registers": 1048576'), UserError, "no address map, .*<= 1048575"),
        (address_map.replace(SECOND, ""), UserError, "address_map.json: has 4 memories, and worker 0 at .* has 5: "),
    ):
        driver.address_map.unlink() if text is None else driver.address_map.write_text(text)
        with pytest.raises(error, match=says):
            opened(driver)
    driver.address_map.write_text(address_map)
    with pytest.raises(UserError, match=r"xdma:7 cannot be opened: .*xdma7_user: No such file.*this machine: xdma:0$"):
        opened(driver, 7)
    monkeypatch.setattr(xdma, "DEVICES", tmp_path)
    with pytest.raises(UserError, match="this machine: none: load the bitstream, then AMD's driver xdma"):
        opened(driver)


def test_a_board_belongs_to_one_program(driver):
    with contextlib.closing(opened(driver)):
        with pytest.raises(UserError, match="worker 0 at xdma:0 is in use by another program"):
            opened(driver)
    opened(driver).close()


def test_a_board_that_fails(driver):
    worker = opened(driver)
    worker.write_memory(0, 0, data(10, 0))
    driver.fails = errno.ETIMEDOUT
    for what, act in (
        ("write bank 0", lambda: worker.write_memory(0, 0, data(10, 0))),
        ("read bank 0", lambda: worker.read_memory(0, 0, 10)),
        ("read a register", lambda: worker.read_register(registers.STATUS.offset)),
        ("write a register", lambda: worker.write_register(registers.RATE.offset, 1)),
    ):
        with pytest.raises(P4sgdError, match=rf"^worker 0 at xdma:0 cannot {what}: .* timed out \(see dmesg\)"):
            act()
    driver.fails = None
    driver.machine.boards[0].lost = True
    gone = "the board is not on the bus. See dmesg, then load the bitstream of the board again, and rescan the bus"
    for act in (worker.close, lambda: opened(driver)):
        with pytest.raises(P4sgdError, match=gone):
            act()
