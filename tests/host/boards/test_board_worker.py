"""A worker on a board: growing banks, runs left by other programs, and errors of boards."""

import atexit
import contextlib
import errno
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.jobs import SMALL, configure, random_job, start
from support.xrt import SHELL, TINY, Machine, bdf_of, make_xclbin
from support.xrt_kernels import PAGE

from p4sgd.host.boards import library
from p4sgd.host.boards.xrt import XrtAddress
from p4sgd.host.devices import board_worker
from p4sgd.host.devices.board_worker import BoardWorker
from p4sgd.host.devices.device import client_of
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.hw.spec import registers

WHO = f"worker 0 at xrt:{bdf_of(0)}"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    with contextlib.closing(Machine(tmp_path, 1)) as found:
        found.install(monkeypatch)
        yield found
        assert not found.open_handles


@pytest.fixture
def xclbin(tmp_path):
    return make_xclbin(tmp_path / "worker.xclbin", SMALL)


def opened(xclbin, bdf=bdf_of(0)):
    return BoardWorker(0, XrtAddress(bdf, xclbin))


@pytest.fixture
def worker(machine, xclbin):
    with contextlib.closing(opened(xclbin)) as found:
        yield found


def kernel(machine):
    return machine.boards[0].kernels["p4sgd_worker_1"][0]


def on_board(machine, pair):
    """The address that a pair of registers has on the board."""
    low, high = pair
    return kernel(machine).registers.get(low) | kernel(machine).registers.get(high) << 32


def begin_run_without_end(machine, worker, model=None):
    job = random_job(SMALL, 2, seed=1)
    (client,) = configure([worker], job, aggregator_mac=5, resend_cycles=5_000_000)
    if model is not None:
        client.write_pair(registers.model_address(0), model)
    start([client], job, first=model is None)
    assert kernel(machine).runs


# -- memory --------------------------------------------------------------------------------------------------------


def data(size, seed=0):
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


@pytest.mark.parametrize("address", [0x1_0000_2000, (1 << 32) - PAGE], ids=["two words", "a carry"])
def test_addresses_are_those_of_the_board(machine, worker, address):
    client = client_of(worker)
    worker.write_memory(2, 0, data(10))
    client.write_pair(registers.lines_address(1, 0), address)
    client.write_pair(registers.model_address(1), PAGE)
    (held,) = machine.boards[0].channels[3].allocations
    assert on_board(machine, registers.lines_address(1, 0)) == held.address + address
    assert on_board(machine, registers.model_address(1)) == held.address + PAGE
    assert held.address % PAGE == 0
    assert held.data[:10].tolist() == data(10).tolist()


def test_a_growing_bank_keeps_its_content(machine, worker):
    client = client_of(worker)
    client.write_pair(registers.lines_address(1, 0), 0)
    client.write_pair(registers.model_address(1), 3 * PAGE)
    worker.write_memory(2, 0, data(100))
    (before,) = machine.boards[0].channels[3].allocations
    worker.write_memory(1, 0, data(7))  # the next bank, in a channel of its own
    machine.boards[0].channels[3].allocate(PAGE)  # of another program
    before.data[50:60] = 77  # written by a run
    worker.write_memory(2, 60_000, data(1000, 1))
    after = machine.boards[0].channels[3].allocations[-1]
    assert after.address != before.address
    kept = data(100)
    kept[50:60] = 77
    assert worker.read_memory(2, 0, 100).tolist() == kept.tolist()
    assert worker.read_memory(2, 60_000, 1000).tolist() == data(1000, 1).tolist()
    assert on_board(machine, registers.lines_address(1, 0)) == after.address
    assert on_board(machine, registers.model_address(1)) == after.address + 3 * PAGE
    assert client.read_pair(registers.model_address(1)) == 3 * PAGE


@pytest.mark.parametrize("first", [3, 4])
def test_labels_make_way_for_lines(machine, tmp_path, first):
    """The last bank has two channels, of which the labels share the second, as on a U280. Lines of a second data set
    are longer than a channel; the labels were at its end."""
    with contextlib.closing(opened(make_xclbin(tmp_path / "sharing.xclbin", SMALL, groups=[1, 2, 3, 8, 9]))) as worker:
        client = client_of(worker)
        pair, end = machine.boards[0].channels[8:]
        client.write_pair(registers.LABELS_ADDRESS, PAGE)
        client.write_pair(registers.lines_address(1, 1), 0)
        for bank in (first, 7 - first):
            worker.write_memory(bank, 0, data(20 * PAGE, bank))
        worker.write_memory(3, 0, data(350 * PAGE, 5))
        lines, labels = pair.allocations
        assert lines.end > end.base + PAGE, "lines are in both channels"
        assert labels.address >= lines.end
        assert on_board(machine, registers.LABELS_ADDRESS) == labels.address + PAGE
        assert on_board(machine, registers.lines_address(1, 1)) == lines.address
        assert worker.read_memory(4, 0, 20 * PAGE).tolist() == data(20 * PAGE, 4).tolist()
        assert worker.read_memory(3, 0, 350 * PAGE).tolist() == data(350 * PAGE, 5).tolist()
        worker.write_memory(4, 20 * PAGE, data(80 * PAGE, 6))
        assert worker.read_memory(4, 0, 100 * PAGE).tolist() == [*data(20 * PAGE, 4), *data(80 * PAGE, 6)]
        with pytest.raises(UserError, match=r"has no room for [0-9,]+ bytes in bank 3: .*take fewer samples"):
            worker.write_memory(3, 350 * PAGE, data(80 * PAGE))


def test_there_is_room_for_weights_before_a_run_that_stores_them(machine, worker):
    """A run stores weights that the host never wrote. Beyond the buffer it would overwrite others' memory."""
    begin_run_without_end(machine, worker, model=50 * PAGE)
    (held,) = (buffer for buffer in machine.boards[0].channels[1].allocations if buffer.data.size > 50 * PAGE)
    assert held.data.size >= 50 * PAGE + 4 * SMALL.chunks * SMALL.lanes
    assert on_board(machine, registers.model_address(0)) == held.address + 50 * PAGE


def test_weights_after_lines_move_nothing(machine, worker):
    """A session writes lines first, and the address of weights after that."""
    worker.write_memory(0, 0, data(3 * PAGE + 5))
    client_of(worker).write_pair(registers.model_address(0), 4 * PAGE)
    worker.write_memory(0, 4 * PAGE, data(4 * SMALL.chunks * SMALL.lanes))
    assert machine.calls.count("xrtBOAlloc") == 1


# -- runs ----------------------------------------------------------------------------------------------------------


def test_waiting_for_the_end_of_a_run(machine, worker, monkeypatch):
    """On a clock that only sleeping advances, the sleeps are as long as the wait: it does not occupy a core."""
    begin_run_without_end(machine, worker)
    with pytest.raises(P4sgdError, match=f"{WHO} cannot move bank 0 while it runs"):
        worker.write_memory(0, 1 << 18, data(1))
    sleeps = []
    with monkeypatch.context() as patch:
        patch.setattr(board_worker, "time", SimpleNamespace(monotonic=lambda: sum(sleeps), sleep=sleeps.append))
        assert not worker.await_end(0.2)
    assert sleeps == sorted(sleeps)
    assert sleeps[0] >= 20e-6
    assert sleeps[-1] == 2e-3
    assert 0.2 <= sum(sleeps) < 0.2 + sleeps[-1]
    client_of(worker).write(registers.ABORT, abort=1)
    assert worker.await_end(20)
    assert client_of(worker).read(registers.CTRL)["done"], "looking has not taken it away"
    assert not client_of(worker).read(registers.CTRL)["done"]
    assert client_of(worker).read(registers.STATUS)["aborted"]


@pytest.mark.parametrize("by", ["close", "the end of Python", "the next program after a crash"])
def test_a_run_ends_with_the_program(machine, xclbin, monkeypatch, by):
    registered = []
    monkeypatch.setattr(atexit, "register", registered.append)
    worker = opened(xclbin)
    begin_run_without_end(machine, worker)
    if by == "the next program after a crash":
        machine.crash()
        assert kernel(machine).runs
        worker = opened(xclbin)
        assert not kernel(machine).runs
    (worker.close if by == "close" else registered[-1])()
    assert not kernel(machine).runs
    assert not machine.open_handles
    worker.close()  # again


def test_a_run_that_cannot_be_ended(machine, xclbin, monkeypatch):
    monkeypatch.setattr(board_worker, "_END_S", 0.05)
    worker = opened(xclbin)
    begin_run_without_end(machine, worker)
    kernel(machine).hangs = True
    for end in (worker.close, lambda: opened(xclbin)):
        with pytest.raises(P4sgdError, match=f"{WHO} does not end its run: .*xbutil reset --device {bdf_of(0)}"):
            end()
        assert not machine.open_handles


# -- what is not as it should be -----------------------------------------------------------------------------------


def made(config=TINY, **options):
    return lambda path: make_xclbin(path, config, **options)


U50 = "xilinx_u50_gen3x16_xdma_5_202210_1"
XCLBINS = {
    "missing": (lambda path: None, UserError, "x.xclbin: cannot read the xclbin: No such file"),
    "broken": (lambda path: path.write_text("hello"), UserError, "x.xclbin: no xclbin, or a broken .*Invalid xclbin"),
    "shell": (made(platform=U50), UserError, rf"x.xclbin: is for {U50}, .*\({SHELL}\): link it for"),
    "kernel": (made(kernel="vadd"), UserError, "has no kernel p4sgd_worker with a compute unit p4sgd_worker_1"),
    "protocol": (made(control="none"), UserError, "x.xclbin: cannot be used: its kernel p4sgd_worker is .*ap_ctrl_hs"),
    "arguments": (made(SMALL, groups=[1, 2, 3]), P4sgdError, f"{WHO} has no memory for argument 3 of its kernel"),
}
"""Xclbins that do not fit."""


@pytest.mark.parametrize("case", XCLBINS)
def test_an_xclbin_that_does_not_fit(machine, tmp_path, case):
    make, error, message = XCLBINS[case]
    make(tmp_path / "x.xclbin")
    with pytest.raises(error, match=message):
        opened(tmp_path / "x.xclbin")


def test_a_board_that_is_not_as_it_should_be(machine, xclbin):
    found = rf"boards of this machine: xrt:{bdf_of(0)} \({SHELL}\)"
    with pytest.raises(UserError, match=rf"xrt:0000:99:00.1 cannot be opened: .*No such device.*{found}"):
        opened(xclbin, "0000:99:00.1")
    with contextlib.closing(opened(xclbin)) as worker:
        machine.on_call = failing("xrtBOSync")
        with pytest.raises(P4sgdError, match=f"{WHO} cannot write bank 0: xrtBOSync: the sky falls"):
            worker.write_memory(0, 0, data(100))
        machine.on_call = lambda name, arguments: None
    kernel(machine).registers.set(registers.MAGIC_WORD, "value", 0x12345678)
    with pytest.raises(P4sgdError, match=f"{WHO} is no P4SGD worker"):
        opened(xclbin)
    machine.on_call = failing("xrtPLKernelOpenExclusive")
    with pytest.raises(P4sgdError, match=f"{WHO} cannot open its kernel p4sgd_worker: .*: the sky falls"):
        opened(xclbin)


def failing(function):
    def fail(name, arguments):
        if name == function:
            raise OSError(errno.ENODEV, "the sky falls")

    return fail


def test_the_same_board_twice(machine, worker, xclbin, tmp_path):
    (tmp_path / "folder").mkdir()
    for same in (xclbin, tmp_path / "folder" / ".." / xclbin.name):
        with pytest.raises(UserError, match=f"{WHO} is in use by another program"):
            opened(same)
    other = make_xclbin(tmp_path / "other.xclbin", TINY, number=2)
    with pytest.raises(UserError, match=f"{WHO} is to run {other}, but it runs {xclbin}: a board runs one xclbin"):
        opened(other)
    assert machine.calls.count("xrtDeviceLoadXclbinHandle") == 1
    assert worker.read_register(registers.MAGIC_WORD.offset) == registers.MAGIC


HOLD = """
import contextlib, pathlib, sys
import pytest
from support.xrt import Machine, bdf_of
from p4sgd.host.boards.xrt import XrtAddress
from p4sgd.host.devices.board_worker import BoardWorker
folder = pathlib.Path(sys.argv[1])
(folder / "other").mkdir()
with contextlib.closing(Machine(folder / "other", 1, locks=folder)) as machine, pytest.MonkeyPatch.context() as patch:
    machine.install(patch)
    with contextlib.closing(BoardWorker(0, XrtAddress(bdf_of(0), folder / "worker.xclbin"))):
        print("holds", flush=True)
        sys.stdin.read()
"""


def test_two_processes_at_one_board(machine, xclbin, tmp_path):
    tests = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": f"{tests.parent / '.packages'}:{tests}"},
        text=True,
    ) as other:
        assert other.stdout.readline() == "holds\n"
        with pytest.raises(UserError, match=f"{WHO} is in use by another program: wait until that has ended"):
            opened(xclbin)
        other.stdin.close()
        assert other.wait(60) == 0
    opened(xclbin).close()


def test_a_board_that_drops_off_the_bus(machine, xclbin):
    worker = opened(xclbin)
    worker.write_memory(0, 0, data(100))
    kernel(machine).registers.set(registers.ECHO_AGGREGATED, "value", 0xFFFFFFFF)
    assert worker.read_register(registers.ECHO_AGGREGATED.offset) == 0xFFFFFFFF, "a register may have all bits"
    machine.boards[0].lost = True
    gone = "does not answer any more: the board is not on the bus"
    for act, says in (
        (lambda: worker.read_register(registers.STATUS.offset), gone),
        (lambda: worker.write_memory(0, 0, data(100)), "cannot write bank 0"),
        (lambda: worker.read_memory(0, 0, 100), "cannot read bank 0"),
        (worker.close, gone),
        (lambda: opened(xclbin), gone),
    ):
        with pytest.raises(P4sgdError, match=f"{WHO} {says}"):
            act()


def test_no_xrt(monkeypatch, tmp_path, xclbin):
    library.open_library.cache_clear()
    for root, says, problem in (
        (None, "XRT is not set up, .*: source /opt/xilinx/xrt/setup.sh", "XILINX_XRT is not set"),
        (
            str(tmp_path),
            "XRT cannot be used: .*libxrt_coreutil.so.2: cannot open shared object",
            f"there is no {tmp_path}/lib/libxrt_coreutil.so.2",
        ),
    ):
        monkeypatch.delenv("XILINX_XRT", raising=False)
        if root is not None:
            monkeypatch.setenv("XILINX_XRT", root)
        with pytest.raises(UserError, match=says):
            opened(xclbin)
        assert library.find_problem() == problem
