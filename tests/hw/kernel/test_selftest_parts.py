"""CageTest and PortTest: what they send, read, write and count, with faults of frames, memory and bus."""

import itertools
import random

import cocotb
import numpy as np
import pytest
from cocotb.triggers import ClockCycles, RisingEdge
from support.axi import ReadMemory, WriteMemory
from support.bench import parameters, run_bench, run_sizes, start
from support.signals import Cycles, cycles_until, drive, pulse
from support.streams import StreamSink, StreamSource, unpack

from p4sgd.hw.kernel.selftest import PORT_SETTINGS, CageTest, PortTest
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.selftest import Sizes, cage_registers, pattern, port_results, read_result

CONFIG = WorkerConfig.small()


def results(dut, registers):
    names = list(registers(0))
    return dict(zip(names, unpack(int(dut.results.value), 32, len(names), signed=False), strict=True))


async def send(dut, count):
    """Send frames; returns the cycles that it took."""
    drive(dut, count=count)
    await pulse(dut, "send")
    drive(dut, count=0)
    return await cycles_until(dut, lambda: not results(dut, cage_registers)["sending"])


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.5])
async def cage_counts_what_happens_on_the_way(dut, stall):
    back, sink = StreamSource(dut, "axis_rx", stall), StreamSink(dut, "axis_tx", stall)
    await start(dut)
    for case in range(20):
        sink.items.clear()
        count = random.choice([0, 1, 2, random.randint(10, 80)])
        cycles = await send(dut, count)
        frames = list(sink.items)
        for number, frame in enumerate(item.to_bytes(73, "little") for item in frames):
            assert frame[:18] == bytes.fromhex("02000000000202000000000188b6") + number.to_bytes(4, "little")
            assert frame[64:] == b"\xff" * 8 + b"\1", "whole, and in one beat"
        wanted = {"sent": count, "sending": 0, "received": count, "wrong": 0, "missing": 0}
        if case % 2 and count > 9:  # one is spoilt, some are lost, the last comes again without its end or a byte
            lost, several = random.randint(1, count - 5), random.randint(1, 3)
            frames[0] ^= 1 << random.randrange(8 * 64)
            del frames[lost : lost + several]
            frames = [*frames, frames[-1] ^ 1 << random.randrange(8 * 64, 8 * 64 + 65)]
            wanted |= {"received": count - several - 1, "wrong": 2, "missing": several + 1}
        back.send(frames)
        await back.drained()
        await ClockCycles(dut.clk, 8)
        found = results(dut, cage_registers)
        assert found == wanted | {"cycles": found["cycles"]}
        assert len(sink.items) == count
        assert abs(found["cycles"] - cycles) <= 1


class Port:
    """The memory behind a port, from ``base`` on: ``content`` is uint8 (beats, bytes of a beat)."""

    def __init__(self, dut, stall=0.0):
        number, sizes = parameters()["number"], Sizes.of(CONFIG, 0)
        self.beat_bytes = sizes.bytes_of(number)
        self.base, self.content = 0, np.zeros((0, self.beat_bytes), np.uint8)
        self.memory = ReadMemory(dut, "memory", 8 * self.beat_bytes, self._word_at, stall)
        self.written = WriteMemory(dut, "memory", 8 * self.beat_bytes, stall) if sizes.writes(number) else None
        self._dut = dut
        channels = {"asks": ["ar", "aw"][: 1 + sizes.writes(number)], "answers": ["r", "b"][: 1 + sizes.writes(number)]}
        self._transfers = {
            what: [Cycles(dut, f"memory__{name}__valid", f"memory__{name}__ready") for name in names]
            for what, names in channels.items()
        }

    def _word_at(self, address):
        return int.from_bytes(self.content[(address - self.base) // self.beat_bytes].tobytes(), "little")

    async def run(self, command, first, burst_beats=1, stride_beats=1, groups=1, chunks=1):
        """Run once; returns the results."""
        values = {"address": self.base, "first": first, "burst_beats": burst_beats, "stride_beats": stride_beats}
        values["short"] = random.randint(0, 1)  # which changes no result
        self._dut.settings.value = PORT_SETTINGS.const(values | {"groups": groups, "chunks": chunks}).as_value().value
        for cycles in (cycles for of_kind in self._transfers.values() for cycles in of_kind):
            cycles.clear()
        await RisingEdge(self._dut.clk)
        await pulse(self._dut, command)
        await RisingEdge(self._dut.clk)
        busy = await cycles_until(self._dut, lambda: not self._dut.busy.value, 40_000)
        found = results(self._dut, port_results)
        assert abs(found["cycles"] - busy) <= 1
        asked, answered = (min(itertools.chain(*of_kind)) for of_kind in self._transfers.values())
        assert found["latency"] == answered - asked
        return found


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.5])
async def port_finds_what_the_model_finds(dut, stall):
    port = Port(dut, stall)
    await start(dut)
    hurts = 0
    for case in range(24):
        stride = random.randint(1, 8)
        burst = stride if case % 2 else random.randint(1, stride)
        groups, first = random.choice([1, 2, random.randint(1, 60)]), random.getrandbits(32)
        port.base = 4096 * random.getrandbits(40)
        port.content = pattern(first, groups * stride, port.beat_bytes)
        if case % 3:
            for beat in random.choices(range(groups * stride), k=random.choice([1, 1, 20])):
                for _ in range(random.randint(1, 3)):
                    port.content[beat, random.randrange(port.beat_bytes)] ^= 1 << random.randrange(8)
        bad = random.sample(range(groups), min(groups, random.choice([0, 0, 2])))
        port.memory.bad_beats = {port.base + group * stride * port.beat_bytes for group in bad}
        found = await port.run("read", first, burst, stride, groups)
        wanted = read_result(port.content, first, burst, stride) | {"errors": len(bad)}
        assert {name: found[name] for name in wanted} == wanted
        hurts += wanted["wrong"]
    assert hurts


@cocotb.test()
async def port_reads_a_beat_a_cycle_and_knows_places(dut):
    """Beats that are swapped or come twice are wrong, as are words of a beat in another order."""
    port = Port(dut)
    await start(dut)
    first = random.getrandbits(32)
    port.content = pattern(first, 512, port.beat_bytes)
    for burst, stride in ((1, 1), (1, 8), (3, 8)):
        found = await port.run("read", first, burst, stride, 512 // 8)
        assert found["beats"] == burst * 64 <= found["cycles"] <= burst * 64 + 24 + 512 * port.beat_bytes // 4096
    for places, wrong in (([0, 2, 1, 3], (2, 1)), ([0, 1, 1, 3], (1, 2))):
        port.content = pattern(first, 4, port.beat_bytes)[places]
        found = await port.run("read", first, groups=4)
        assert (found["wrong"], found["wrong_beat"]) == wrong
    port.content = pattern(first, 4, port.beat_bytes)
    port.content[1] = np.roll(port.content[1], 4)
    found = await port.run("read", first, groups=4)
    assert (found["wrong"], found["wrong_words"]) == (1, (1 << port.beat_bytes // 4) - 1)


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.5])
async def port_writes_the_pattern(dut, stall):
    port = Port(dut, stall)
    await start(dut)
    if port.written is None:
        return  # a port without write channels
    for bad in (False, True, False):
        chunks, first = random.randint(1, 40), random.getrandbits(32)
        port.base = 4096 * random.getrandbits(40)
        port.written.contents.clear()
        port.written.response = 0b10 if bad else 0
        found = await port.run("write", first, chunks=chunks)
        beats = chunks * CONFIG.weight_beats
        port.content = pattern(first, beats, port.beat_bytes)
        assert port.written.contents == dict(enumerate(port.content.reshape(-1).tolist(), port.base))
        assert (found["beats"], found["errors"], found["wrong"]) == (beats, chunks * bad, 0)


@pytest.mark.rtl
def test_cage_test():
    run_bench(CageTest(), __file__, only="cage")


@pytest.mark.rtl
def test_port_test():
    ports = (0, 1, CONFIG.labels_memory)
    run_sizes({f"port{n}": (PortTest(CONFIG, n), {"number": n}) for n in ports}, __file__, only="port_")
