"""What a simulated worker asks of its simulator, for which a few lines stand in."""

import pytest

from p4sgd.host.errors import P4sgdError
from p4sgd.host.serve.simulated_worker import SimulatedWorker
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.sim.cluster import build, process
from p4sgd.sim.verilator import SimulationError

TINY = WorkerConfig.tiny()
START = registers.CTRL.encode(start=1)


class Simulator:
    """Notes requests; ``answers`` are those to the next exchanges, else the worker is idle and sends nothing."""

    def __init__(self, build, settings):
        self.directory = Simulator.folder
        self.asked, self.answers, self.registers = [], [], {}
        self.has_ended = False
        Simulator.last = self

    def request(self, do, **arguments):
        if self.has_ended:
            raise SimulationError("the simulator ended unexpectedly")
        if do == "write":
            self.registers[arguments["offset"]] = arguments["word"]
        if do == "read":
            return self.registers.get(arguments["offset"], 0)
        if do == "exchange":
            self.asked.append((arguments["frames"], arguments["cycles"]))
            return self.answers.pop(0) if self.answers else ([], True)
        return None

    def close(self):
        self.is_closed = True


@pytest.fixture
def sent():
    return []


@pytest.fixture
def worker(tmp_path, monkeypatch, sent):
    monkeypatch.setattr(build, "build_single_worker", lambda config: None)
    monkeypatch.setattr(process, "ClusterProcess", Simulator)
    Simulator.folder = tmp_path
    return SimulatedWorker(TINY, sent.append)


def test_time_passes_after_a_write_and_after_a_frame_only(worker, sent):
    worker.read_register(registers.STATUS.offset)
    assert worker.next_work is None
    worker.work()
    for disturb in (lambda: worker.write_register(registers.PROBE.offset, 0), lambda: worker.receive(b"ab")):
        disturb()
        assert worker.next_work == 0
        assert worker.idle
        Simulator.last.answers = [([b"\1\2", b"\3"], True)]
        worker.work()
        assert worker.next_work is None
        assert sent == [b"\1\2", b"\3"]
        sent.clear()
    assert [frames for frames, _ in Simulator.last.asked] == [[], [b"ab"]], "every frame once"


def test_a_run_lasts_until_the_worker_is_idle(worker):
    worker.write_register(registers.CTRL.offset, START)
    Simulator.last.answers = [([], False)] * 2
    for _ in range(2):
        assert not worker.idle
        worker.work()
        assert worker.next_work == 0
    worker.work()
    assert worker.idle
    assert worker.next_work is None
    first, *others = (cycles for _, cycles in Simulator.last.asked)
    assert others == [first, first]
    assert first > 100


@pytest.mark.parametrize(("word", "cycles", "seen"), [(500_000, 200, 500_000), (1, 1, 2500), (0, 0, 0)])
def test_waits_are_of_this_machines_time(worker, word, cycles, seen):
    worker.write_register(registers.RESEND_CYCLES.offset, word)
    assert Simulator.last.registers[registers.RESEND_CYCLES.offset] == cycles
    assert worker.read_register(registers.RESEND_CYCLES.offset) == seen
    Simulator.last.registers[registers.ECHO_CYCLES.offset] = 4
    assert worker.read_register(registers.ECHO_CYCLES.offset) == 10_000
    worker.write_register(registers.CHUNKS.offset, 5000)
    assert worker.read_register(registers.CHUNKS.offset) == 5000


def test_a_simulator_that_ends_is_told(worker):
    Simulator.last.has_ended = True
    with pytest.raises(P4sgdError, match="the simulator ended unexpectedly"):
        worker.read_register(0)
    worker.close()
    assert Simulator.last.is_closed
