"""RunSizes: products of dimensions of a run, and refusals; Sequencer: phases of a run, in order, as engines answer."""

import random

import cocotb
import pytest
from cocotb.triggers import ClockCycles, RisingEdge
from support.bench import parameters, run_bench, run_sizes, start
from support.run_limits import ORDINARY, ROOMS, cases
from support.signals import drive, pulse

from p4sgd.build.fpga.packaging import SETTLE_CYCLES
from p4sgd.hw.spec.registers import ModelSource
from p4sgd.hw.spec.run import COUNT_BITS
from p4sgd.hw.worker.engine import COMMANDS
from p4sgd.hw.worker.sequencer import Phase, RunSizes, Sequencer


async def count(dut, run):
    """Have a run counted: what it changes of an ordinary one."""
    run = ORDINARY | run
    drive(dut, micro_batches=run["micro"], mini_batches=run["mini"], chunks=run["chunks"], run_stale=run["stale"])
    formats = ("precision", "stored", "unit_chunks", "directory")
    drive(dut, **{f"format_{name}": run[name] for name in formats}, no_lines=run["lines"] == 0)
    drive(dut, partial_limit=run["limit"], misplaced=run["misplaced"])
    await pulse(dut, "start")
    chunks, settled, cycles = None, 0, 0
    while not dut.done.value:
        chunks, before = dut.total_chunks.value, chunks
        settled, cycles = settled + 1 if chunks == before else 1, cycles + 1
        await RisingEdge(dut.clk)
    assert SETTLE_CYCLES <= settled <= cycles <= 42


@cocotb.test()
async def sizes_are_multiplied(dut):
    await start(dut)
    products = [(1, 1, 1), (65535, 1 << 24, 1), (1, (1 << 32) - 1, 1), (3, 5, 65536), (1, 1, 65536)]
    while len(products) < 60:
        micro, mini, chunks = (random.randrange(1, 1 << random.randint(1, bits)) for bits in (16, 32, 16))
        if micro * mini * chunks < 1 << COUNT_BITS:
            products.append((micro, mini, chunks))
    for micro, mini, chunks in products:
        await count(dut, {"micro": micro, "mini": mini, "chunks": chunks})
        assert int(dut.total_micro_batches.value) == micro * mini
        assert int(dut.total_chunks.value) == micro * mini * chunks


@cocotb.test()
async def sizes_that_cannot_be_are_refused(dut):
    await start(dut)
    for impossible, case in cases(parameters()["lanes"]):
        await count(dut, case)
        assert bool(dut.impossible.value) == impossible, case


class Engines:
    """Engines, the reader of labels and RunSizes, that answer commands; ``seen`` are what the sequencer has raised."""

    BUSY = ("load", "zero", "train", "store", "abort")

    def __init__(self, dut):
        self.dut, self.seen, self.resets = dut, [], 0  # `resets`: cycles of reset
        self.busy = self.answers = self.labels = self.counting = 0

    async def step(self):
        """A cycle."""
        dut = self.dut
        await RisingEdge(dut.clk)
        if dut.started.value:
            drive(dut, start=0)
        self.counting = random.randint(2, 10) if dut.count.value else max(0, self.counting - 1)
        commands = int(dut.commands.value)
        raised = [name for name in COMMANDS.members if commands >> COMMANDS[name].offset & 1]
        raised += [
            name for name in ("count", "status_refused", "aborting", "reset", "done") if getattr(dut, name).value
        ]
        for name in raised:
            if name in ("load", "zero", "train", "store"):
                assert self.busy == 0, f"{name} while the engines are busy"
            if name in self.BUSY:
                self.busy, self.answers = random.randint(5, 24), random.randint(0, 3)
            if name == "abort":
                self.labels = random.randint(0, 30)
            if name == "reset" and name not in self.seen:
                assert self.busy == self.labels == 0
        self.seen += [name for name in raised if name not in self.seen]
        self.resets += "reset" in raised
        self.busy, self.labels, self.answers = (max(0, n - 1) for n in (self.busy, self.labels, self.answers))
        # An engine stays idle for up to four cycles from its command on.
        drive(dut, engines_idle=self.busy == 0 or self.answers > 0, labels_idle=self.labels == 0)
        drive(dut, counted=self.counting == 1)
        return bool(dut.done.value)


async def begin(dut):
    drive(dut, start=0, end_early=0, impossible=0, counted=0, engines_idle=1, labels_idle=1)
    await start(dut)
    return Engines(dut)


@cocotb.test()
async def phases_in_order(dut):
    """Of runs that load, clear, keep and store models, and of those that are refused."""
    engines = await begin(dut)
    commands = {ModelSource.KEEP: [], ModelSource.ZERO: ["zero"], ModelSource.MEMORY: ["load"]}
    for _ in range(60):
        source, store, refused = random.choice(list(ModelSource)), random.getrandbits(1), random.random() < 0.3
        drive(dut, run_model_source=source.value, run_model_store=store, impossible=refused, network_busy=1, start=1)
        engines.seen.clear()
        phases: list[Phase] = []
        for _ in range(1000):
            done = await engines.step()
            phase = Phase(int(dut.phase.value))
            phases += [phase] if phases[-1:] != [phase] else []
            if phase is Phase.FINISH and random.random() < 0.2:
                drive(dut, network_busy=0)
            if done:
                break
        steps, taken = ["status_refused"], [Phase.MODEL]
        if not refused:
            steps, taken = [*commands[source], "train", *["store"] * store], [*taken, Phase.TRAIN, Phase.FINISH]
            taken += [Phase.MODEL] * store
        assert engines.seen == ["count", *steps, "done"]
        assert phases in ([*taken, Phase.IDLE], [Phase.IDLE, *taken, Phase.IDLE])
        await ClockCycles(dut.clk, 3)
        assert (dut.phase.value, dut.idle.value) == (Phase.IDLE.value, 1)


@cocotb.test()
async def ends_early(dut):
    """An abort at any time is told the engines at once and ends in a reset and done; a store is ended first."""
    engines = await begin(dut)
    drive(dut, run_model_store=1, run_model_source=ModelSource.MEMORY.value)
    resets = late = 0
    for _ in range(60):
        drive(dut, end_early=0, network_busy=1, start=1)
        engines.seen.clear()
        engines.resets = waited = 0
        patience = random.randint(0, 90)
        for cycle in range(400):
            done = await engines.step()
            # The engines have been told to begin at the earliest when the run has been counted.
            waited += cycle > patience and engines.counting == 0 and not {"abort", "store"} & {*engines.seen}
            if cycle == 30:
                drive(dut, network_busy=0)
            if cycle == patience:
                drive(dut, end_early=1)
            if done:
                break
        seen = engines.seen
        assert seen[-1] == "done"
        stored = "store" in seen
        assert seen[seen.index("store") + 1 :] in (["done"], ["reset", "done"]) if stored else "reset" in seen
        if "abort" in seen:
            assert seen[seen.index("abort") :] == ["abort", "aborting", "reset", "done"]
            assert waited <= 7
        assert ("abort" in seen) == ("aborting" in seen) == ("reset" in seen and not stored)
        assert engines.resets != 1, "a reset must last two cycles"
        resets += "reset" in seen and not stored
        late += stored and "reset" in seen
        drive(dut, end_early=0)
        await RisingEdge(dut.clk)
    assert 10 < resets < 60
    assert late


@pytest.mark.rtl
def test_run_sizes():
    run_sizes({f"lanes{room.lanes}": (RunSizes(room), {"lanes": room.lanes}) for room in ROOMS}, __file__, only="sizes")


@pytest.mark.rtl
def test_sequencer():
    run_bench(Sequencer(), __file__, only="phases|ends")
