"""Ctrl-C at any call of XRT: no kernel is left running, nothing is freed before it ends, and the next session works."""

import contextlib
import random

import pytest
from support.bench import default_seed
from support.jobs import random_job
from support.xrt import CLOSED_EARLY, TINY, Machine, make_xclbin

from p4sgd.host.aggregators.cluster_file import read_cluster
from p4sgd.host.boards.library import XrtLibrary, open_library
from p4sgd.host.devices.cluster import ClusterDevice
from p4sgd.host.devices.session import Session
from p4sgd.host.errors import P4sgdError
from p4sgd.host.experiments.cycles import random_image
from p4sgd.hw.spec.image import ImageLayout
from p4sgd.hw.spec.registers import ModelSource

JOB = random_job(TINY, 2, seed=1, signed=False, chunks=2, micro_batches=2, mini_batches=2)

OF_HANDLES = ("AllocFilename", "OpenByBDF", "OpenExclusive", "BOAlloc", "FreeHandle", "Close", "BOFree")
"""Ends of the names of calls that open or close handles."""


class Interrupter:
    """Counts the calls of XRT, and interrupts one, before or after XRT carries it out."""

    def __init__(self, monkeypatch):
        self.names = []
        self.at, self.after, self.interrupted = None, False, None
        self._call = XrtLibrary.call
        monkeypatch.setattr(XrtLibrary, "call", lambda *arguments: self.call(*arguments))

    def call(self, library, name, *arguments):
        number = len(self.names)
        self.names.append(name)
        if number == self.at:
            self.interrupted = name
        if number == self.at and not self.after:
            raise KeyboardInterrupt
        result = self._call(library, name, *arguments)
        if number == self.at:
            raise KeyboardInterrupt
        return result

    def arm(self, at, *, after=False):
        self.names.clear()
        self.at, self.after, self.interrupted = at, after, None


@pytest.fixture
def machine(tmp_path, monkeypatch):
    with contextlib.closing(Machine(tmp_path, 2)) as found:
        found.install(monkeypatch)
        yield found


@pytest.fixture
def cluster(machine, tmp_path):
    return read_cluster(machine.cluster_file(make_xclbin(tmp_path / "worker.xclbin", TINY)))


def train(cluster, timeout_s=60):
    with contextlib.closing(ClusterDevice(None, 2, cluster=cluster)) as device:
        session = Session(device)
        samples = 8 * JOB.settings.micro_batches * JOB.settings.mini_batches
        layout = ImageLayout(TINY, 2 * TINY.lanes, samples, JOB.settings.features.stored, JOB.settings.unit)
        session.upload([random_image(layout, seed) for seed in range(2)])
        session.load_table(JOB.table)
        session.configure(JOB.settings)
        session.run(ModelSource.ZERO, timeout_s=timeout_s)
        return [[own.tolist() for own in engines] for engines in session.read_weights()]


def test_ctrl_c_anywhere(machine, cluster, monkeypatch):
    seed = default_seed()
    pick = random.Random(seed)
    open_library()
    interrupter = Interrupter(monkeypatch)
    right = train(cluster)
    names = list(interrupter.names)
    first = {names.index(name) for name in names}
    last = {len(names) - 1 - names[::-1].index(name) for name in names}
    points = first | last | set(pick.sample(range(len(names)), 30))
    for at in sorted(points):
        for after in (False, True):
            interrupter.arm(at, after=after)
            with contextlib.suppress(KeyboardInterrupt):  # the number of polls varies, so the call may not be reached
                train(cluster)
            name = interrupter.interrupted
            place = f"P4SGD_SEED={seed}, {'after' if after else 'before'} call {at}, {name}"
            assert not any(board.runs for board in machine.boards), place
            if name is not None and name.endswith(
                OF_HANDLES
            ):  # a handle may get lost; the end of the program releases it
                machine.violations = [each for each in machine.violations if each != CLOSED_EARLY]
            else:
                assert not machine.open_handles, place
            assert not machine.violations, place
            machine.crash()
    interrupter.arm(None)
    assert train(cluster) == right


@pytest.mark.parametrize(
    ("is_lost", "says"),
    [
        (False, r"worker \d at \S+(, \d at \S+)? was still running after 0.2 s"),
        (True, r"worker 1 at \S+ does not answer any more"),
    ],
)
def test_a_run_that_takes_too_long_or_loses_a_board(machine, cluster, is_lost, says):
    machine.ports["port1"].send = lambda frame: None  # no answer reaches worker 1

    def lose(name, arguments):
        if is_lost and machine.boards[0].runs and machine.boards[1].runs:
            machine.boards[1].lost = True

    machine.on_call = lose
    with pytest.raises(P4sgdError, match=says):
        train(cluster, timeout_s=60 if is_lost else 0.2)
    assert not machine.boards[0].runs
    assert is_lost or not machine.boards[1].runs
    assert not machine.open_handles
