"""Sequencer: the phases of a run, in order, with slow and fast engines."""

import random

import cocotb
import pytest
from cocotb.triggers import RisingEdge
from support.bench import run_bench, start

from p4sgd.hw.spec.registers import ModelSource
from p4sgd.hw.worker.engine import COMMANDS
from p4sgd.hw.worker.sequencer import Phase, Sequencer


def raised(dut, name: str) -> bool:
    """Whether an output is high, or a command is given."""
    if name in COMMANDS.members:
        return bool(int(dut.commands.value) >> COMMANDS[name].offset & 1)
    return bool(getattr(dut, name).value)


@cocotb.test()
async def phases_in_order(dut):
    dut.end_early.value = dut.impossible.value = 0
    await start(dut)
    dut.engines_idle.value = dut.labels_idle.value = 1
    for _ in range(40):
        source = random.choice(list(ModelSource))
        store = random.getrandbits(1)
        dut.run_model_source.value, dut.run_model_store.value = source.value, store
        dut.network_busy.value = 1
        expected = ["count"]
        expected += {ModelSource.KEEP: [], ModelSource.ZERO: ["zero"], ModelSource.MEMORY: ["load"]}[source]
        expected += ["train"] + ["store"] * store
        seen: list[str] = []
        phases: list[int] = []
        busy = answers = 0
        counting = 0
        dut.start.value = 1
        for _ in range(1000):
            await RisingEdge(dut.clk)
            phase = int(dut.phase.value)
            if phases[-1:] != [phase]:
                phases.append(phase)
            if dut.started.value:
                dut.start.value = 0
            counting = max(0, counting - 1)
            dut.counted.value = int(counting == 1)
            if dut.count.value:
                seen.append("count")
                counting = random.randint(2, 10)
            for name in ("load", "zero", "train", "store"):
                if raised(dut, name):
                    assert busy == 0, f"{name} while the engines are busy"
                    seen.append(name)
                    busy = random.randint(4, 12)
                    answers = random.randint(0, 2)
            # An engine stays idle for up to three cycles from its command on.
            busy = max(0, busy - 1)
            dut.engines_idle.value = int(busy == 0 or answers > 0)
            answers = max(0, answers - 1)
            if phase == Phase.FINISH.value and random.random() < 0.2:
                dut.network_busy.value = 0
            if dut.done.value:
                break
        else:
            raise AssertionError(f"never done: {seen}")
        assert seen == expected
        tail = [Phase.MODEL.value] * store
        assert [p for p in phases if p != Phase.IDLE.value] == [
            Phase.MODEL.value,
            Phase.TRAIN.value,
            Phase.FINISH.value,
            *tail,
        ]
        for _ in range(3):
            await RisingEdge(dut.clk)
        assert dut.phase.value == Phase.IDLE.value


@cocotb.test()
async def ends_early(dut):
    """An abort at any time ends in a reset and done, but for one that comes to a store."""
    dut.impossible.value = 0
    await start(dut)
    dut.engines_idle.value = dut.labels_idle.value = 1
    dut.run_model_store.value, dut.run_model_source.value = 1, ModelSource.MEMORY.value
    resets = 0
    for _ in range(60):
        dut.end_early.value, dut.network_busy.value, dut.start.value = 0, 1, 1
        patience = random.randint(0, 60)
        seen: list[str] = []
        busy = labels = counting = 0
        for cycle in range(400):
            await RisingEdge(dut.clk)
            if dut.started.value:
                dut.start.value = 0
            for name in ("load", "train", "store", "abort", "reset", "done"):
                if raised(dut, name) and seen[-1:] != [name]:
                    seen.append(name)
                    if name in ("load", "train", "store", "abort"):
                        busy = random.randint(4, 12)
                    if name == "abort":
                        labels = random.randint(0, 30)
                    if name == "reset":
                        assert busy == labels == 0
            counting = 3 if dut.count.value else max(0, counting - 1)
            dut.counted.value = int(counting == 1)
            busy, labels = max(0, busy - 1), max(0, labels - 1)
            dut.engines_idle.value, dut.labels_idle.value = int(busy == 0), int(labels == 0)
            if cycle == 30:
                dut.network_busy.value = 0
            if cycle == patience:
                dut.end_early.value = 1
            if dut.done.value:
                break
        assert seen[-1] == "done"
        assert ("abort" in seen) == ("reset" in seen)
        assert "store" not in seen or "abort" not in seen
        resets += "reset" in seen
        dut.end_early.value = 0
        await RisingEdge(dut.clk)
    assert 10 < resets < 60


@cocotb.test()
async def refuses(dut):
    """A run that cannot be is over at once, and the next is done."""
    dut.end_early.value = dut.network_busy.value = dut.run_model_store.value = 0
    await start(dut)
    dut.engines_idle.value = dut.labels_idle.value = 1
    dut.run_model_source.value = ModelSource.ZERO.value
    for impossible in (1, 0, 1, 1, 0):
        dut.impossible.value = impossible
        dut.start.value = 1
        seen: list[str] = []
        for _ in range(60):
            await RisingEdge(dut.clk)
            if dut.started.value:
                dut.start.value = 0
            dut.counted.value = dut.count.value
            seen += [name for name in ("status_refused", "zero", "train", "done") if raised(dut, name)]
            assert not (dut.idle.value and seen and seen[-1] != "done")
            if dut.done.value:
                break
        assert seen == (["status_refused", "done"] if impossible else ["zero", "train", "done"])


@pytest.mark.rtl
def test_sequencer():
    run_bench(Sequencer(), __file__)
