"""PortTest against the exact model: what it reads, writes and counts, with errors in memory and on the bus."""

import random

import cocotb
import numpy as np
import pytest
from cocotb.triggers import ClockCycles, RisingEdge
from support.axi import ReadMemory, WriteMemory, pulse
from support.bench import parameters, run_sizes, start

from p4sgd.hw.kernel.selftest import PORT_SETTINGS, PortTest
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.selftest import Sizes, pattern, port_results, read_result

CONFIG = WorkerConfig.small()
LIMIT_CYCLES = 40_000


class Bench:
    """The memory behind a port, from ``base`` on: ``content`` is uint8 (beats, bytes of a beat)."""

    def __init__(self, dut, stall=0.0):
        self.sizes = Sizes.of(CONFIG, 0)
        self.number = parameters()["number"]
        self.beat_bytes = self.sizes.bytes_of(self.number)
        self.base, self.content = 0, np.zeros((0, self.beat_bytes), np.uint8)
        self.memory = ReadMemory(dut, "memory", 8 * self.beat_bytes, self._word_at, stall)
        self.latency = None
        self._dut = dut
        self._writes = self.sizes.writes(self.number)
        self.written = WriteMemory(dut, "memory", 8 * self.beat_bytes, stall) if self._writes else None
        cocotb.start_soon(self._watch())

    def _word_at(self, address):
        return int.from_bytes(self.content[(address - self.base) // self.beat_bytes].tobytes(), "little")

    def _took(self, channel):
        valid, ready = (getattr(self._dut, f"memory__{channel}__{name}") for name in ("valid", "ready"))
        return bool(valid.value and ready.value)

    async def _watch(self):
        """Measure the time from the first request to the first answer after a command."""
        cycle = asked = 0
        while True:
            await RisingEdge(self._dut.clk)
            cycle += 1
            commands = [self._dut.read] + ([self._dut.write] if self._writes else [])
            if any(command.value for command in commands):
                self.latency = asked = None
            elif asked is None:
                asks = self._took("ar") or (self._writes and self._took("aw"))
                asked = cycle if asks else None
            elif self.latency is None and (self._took("r") or (self._writes and self._took("b"))):
                self.latency = cycle - asked

    async def run(self, command, first, burst_beats=1, stride_beats=1, groups=1, chunks=1):
        """Run once; returns the results."""
        values = {"address": self.base, "first": first, "burst_beats": burst_beats, "stride_beats": stride_beats}
        self._dut.settings.value = PORT_SETTINGS.const(values | {"groups": groups, "chunks": chunks}).as_value().value
        await RisingEdge(self._dut.clk)
        await pulse(self._dut, command)
        await ClockCycles(self._dut.clk, 2)
        busy = 1
        while self._dut.busy.value:
            await RisingEdge(self._dut.clk)
            busy += 1
            assert busy < LIMIT_CYCLES, "the run never ends"
        word = int(self._dut.results.value)
        found = {name: word >> 32 * index & 0xFFFF_FFFF for index, name in enumerate(port_results(0))}
        assert abs(found["cycles"] - busy) <= 1
        assert found["latency"] == self.latency
        return found


def hurt(content, at):
    """Change some bits of some beats."""
    for beat in at:
        for _ in range(random.randint(1, 3)):
            content[beat, random.randrange(content.shape[1])] ^= 1 << random.randrange(8)


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.5])
async def finds_what_the_model_finds(dut, stall):
    bench = Bench(dut, stall)
    await start(dut)
    hurts = 0
    for case in range(24):
        stride = random.randint(1, 8)
        burst = stride if case % 2 else random.randint(1, stride)
        groups = random.choice([1, 2, random.randint(1, 60)])
        first = random.getrandbits(32)
        bench.base = 4096 * random.getrandbits(40)
        bench.content = pattern(first, groups * stride, bench.beat_bytes)
        if case % 3:
            hurt(bench.content, random.choices(range(groups * stride), k=random.choice([1, 1, 20])))
        bad = random.sample(range(groups), min(groups, random.choice([0, 0, 2])))
        bench.memory.bad_beats = {bench.base + group * stride * bench.beat_bytes for group in bad}
        found = await bench.run("read", first, burst, stride, groups)
        wanted = read_result(bench.content, first, burst, stride)
        assert {name: found[name] for name in wanted} == wanted
        assert found["errors"] == len(bad)
        assert found["cycles"] >= wanted["beats"]
        hurts += wanted["wrong"]
    assert hurts


@cocotb.test()
async def reads_a_beat_a_cycle(dut):
    """But for the start of the run: so its cycles tell what the memory gives."""
    bench = Bench(dut)
    await start(dut)
    first = random.getrandbits(32)
    bench.content = pattern(first, 512, bench.beat_bytes)
    for burst, stride in ((1, 1), (1, 8), (3, 8)):
        found = await bench.run("read", first, burst, stride, 512 // 8)
        spare = 24 + 512 * bench.beat_bytes // 4096
        assert found["beats"] == burst * 64
        assert found["cycles"] <= found["beats"] + spare


@cocotb.test()
async def a_beat_out_of_its_place_is_wrong(dut):
    """Two that are swapped, one that comes twice, and words of a beat in another order."""
    bench = Bench(dut, 0.2)
    await start(dut)
    first = random.getrandbits(32)
    for places, wrong in (([0, 2, 1, 3], (2, 1)), ([0, 1, 1, 3], (1, 2))):
        bench.content = pattern(first, 4, bench.beat_bytes)[places]
        found = await bench.run("read", first, groups=4)
        assert (found["wrong"], found["wrong_beat"]) == wrong
    bench.content = pattern(first, 4, bench.beat_bytes)
    bench.content[1] = np.roll(bench.content[1], 4)
    found = await bench.run("read", first, groups=4)
    assert (found["wrong"], found["wrong_words"]) == (1, (1 << bench.beat_bytes // 4) - 1)


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.5])
async def writes_the_pattern(dut, stall):
    bench = Bench(dut, stall)
    await start(dut)
    if bench.written is None:
        return  # a port without write channels
    for bad in (False, True, False):
        chunks = random.randint(1, 40)
        first = random.getrandbits(32)
        bench.base = 4096 * random.getrandbits(40)
        bench.written.contents.clear()
        bench.written.response = 0b10 if bad else 0
        found = await bench.run("write", first, chunks=chunks)
        beats = chunks * CONFIG.weight_beats
        wanted = pattern(first, beats, bench.beat_bytes)
        assert bench.written.contents == {bench.base + at: int(byte) for at, byte in enumerate(wanted.reshape(-1))}
        assert (found["beats"], found["errors"], found["wrong"]) == (beats, chunks * bad, 0)
        bench.content = wanted
        assert (await bench.run("read", first, groups=beats))["wrong"] == 0


@pytest.mark.rtl
def test_port_test():
    run_sizes(
        {f"port{number}": (PortTest(CONFIG, number), {"number": number}) for number in (0, 1, CONFIG.labels_memory)},
        __file__,
    )
