"""The self-test: memory ports and Ethernet ports of a board, tried with the parts by which a worker uses them."""

from collections.abc import Sequence
from typing import Any

from amaranth.hdl import (
    Array,
    Cat,
    ClockDomain,
    ClockSignal,
    Const,
    DomainRenamer,
    Module,
    Mux,
    ResetInserter,
    ResetSignal,
    Signal,
    Value,
)
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.axi import FRAME_BEAT_BYTES, Axi4Signature, FrameBeat
from p4sgd.hw.bus.register_file import RegisterFile
from p4sgd.hw.bus.stream import connect_stream
from p4sgd.hw.datapath.model import ModelStorer
from p4sgd.hw.kernel.clocking import PORTS, connect_control, kernel_clock
from p4sgd.hw.kernel.kernels import connect_memory
from p4sgd.hw.primitives import Component
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.selftest import (
    CHUNKS,
    GROUP_BITS,
    PATTERN_STEP,
    SHAPE,
    STRIDE_LIMIT,
    WORD_BITS,
    Sizes,
    cage_registers,
    identity,
    port_results,
    selftest_map,
)
from p4sgd.hw.worker.engine import lines_reader
from p4sgd.hw.worker.worker import labels_reader

__all__ = ["PORT_SETTINGS", "CageTest", "PortTest", "SelfTestKernel", "port_test_name"]


def pattern(number: Value, bits: int) -> Value:
    """``bits`` bits that tell a number of `WORD_BITS`: the number in every word, each time with other bits inverted.

    The exact model is :func:`p4sgd.hw.spec.selftest.pattern`.
    """
    words = -(-bits // WORD_BITS)
    inverted = [Const(PATTERN_STEP * word % (1 << WORD_BITS), WORD_BITS) for word in range(words)]
    return Cat(number ^ mask for mask in inverted)[:bits]


_HEADER = bytes.fromhex("020000000002 020000000001 88b6")
"""Destination, source (both locally administered), and the second EtherType for experiments (IEEE 802)."""

_HEADER_BITS = 8 * len(_HEADER)
_ALL_BYTES = (1 << FRAME_BEAT_BYTES) - 1


def frame(number: Value) -> Value:
    """Data of a 64-byte frame: a header, then the `pattern` of the frame's number."""
    header = Const(int.from_bytes(_HEADER, "little"), _HEADER_BITS)
    return Cat(header, pattern(number, 8 * FRAME_BEAT_BYTES - _HEADER_BITS))


class FrameSource(wiring.Component):
    """Source of single-beat frames, numbered from 0, at the full rate of its sink."""

    enable: In(1)  # start further frames
    starts: Out(1)  # a frame is started in this cycle
    frames: Out(stream.Signature(FrameBeat))
    sent: Out(WORD_BITS)  # number of frames sent

    def elaborate(self, platform: object) -> Module:
        m = Module()
        beat = self.frames.payload
        m.d.comb += [beat.data.eq(frame(self.sent)), beat.keep.eq(_ALL_BYTES), beat.last.eq(1)]
        with m.If(~self.frames.valid | self.frames.ready):
            m.d.comb += self.starts.eq(self.enable)
            m.d.sync += self.frames.valid.eq(self.enable)
        with m.If(self.frames.valid & self.frames.ready):
            m.d.sync += self.sent.eq(self.sent + 1)
        return m


class FrameChecker(wiring.Component):
    """Sink that compares frames with those of a `FrameSource`. Counters lag the frames by up to 5 cycles."""

    frames: In(stream.Signature(FrameBeat))  # always ready
    received: Out(WORD_BITS)  # number of intact frames
    wrong: Out(WORD_BITS)  # number of beats that are not an intact frame
    missing: Out(WORD_BITS)  # number of frames skipped between received ones; a frame out of order counts as many

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.d.comb += self.frames.ready.eq(1)
        # The comparison takes a cycle for each word, and one for all words together.
        beat: Any = Signal(FrameBeat, reset_less=True)
        number = beat.data[_HEADER_BITS:][:WORD_BITS]
        wanted = frame(number)
        words = range(_HEADER_BITS, 8 * FRAME_BEAT_BYTES, WORD_BITS)
        fits = Signal(len(words) + 2, reset_less=True)
        valids = Signal(3)
        numbers = [Signal(WORD_BITS, name=f"number_{stage}", reset_less=True) for stage in range(2)]
        right = Signal(reset_less=True)
        m.d.sync += [
            valids.eq(Cat(self.frames.valid, valids)),
            beat.eq(self.frames.payload),
            fits.eq(
                Cat(
                    *(beat.data[low:][:WORD_BITS] == wanted[low:][:WORD_BITS] for low in words),
                    beat.data[:_HEADER_BITS] == wanted[:_HEADER_BITS],
                    beat.keep.all() & beat.last,
                )
            ),
            numbers[0].eq(number),
            right.eq(fits.all()),
            numbers[1].eq(numbers[0]),
        ]
        expected = Signal(WORD_BITS)
        skipped = Signal(WORD_BITS)
        m.d.sync += [skipped.eq(0), self.missing.eq(self.missing + skipped)]
        with m.If(valids[-1]):
            with m.If(right):
                m.d.sync += [
                    self.received.eq(self.received + 1),
                    skipped.eq(numbers[1] - expected),
                    expected.eq(numbers[1] + 1),
                ]
            with m.Else():
                m.d.sync += self.wrong.eq(self.wrong + 1)
        return m


class CageTest(wiring.Component):
    """Sends numbered frames to a MAC, and compares what comes back."""

    send: In(1)  # pulse: begin, with all counters at 0; ignored while ``sending``
    count: In(WORD_BITS)  # frames to send
    axis_tx: Out(stream.Signature(FrameBeat))  # to and from the MAC
    axis_rx: In(stream.Signature(FrameBeat))
    results: Out(data.StructLayout(dict.fromkeys(cage_registers(0), WORD_BITS)))

    def elaborate(self, platform: object) -> Module:
        m = Module()
        results = self.results
        begins, sending = Signal(), Signal()
        source, checker = FrameSource(), FrameChecker()
        m.submodules.source = ResetInserter(begins)(source)
        m.submodules.checker = ResetInserter(begins)(checker)
        connect_stream(m, source.frames, wiring.flipped(self.axis_tx))
        connect_stream(m, wiring.flipped(self.axis_rx), checker.frames)
        left = Signal(WORD_BITS + 1, init=-1)  # frames to start less one, so negative if there are none
        cycles = Signal(WORD_BITS)
        m.d.comb += [
            begins.eq(self.send & ~sending),
            source.enable.eq(~left[-1]),
            results.sending.eq(sending),
            results.sent.eq(source.sent),
            *(results[name].eq(getattr(checker, name)) for name in ("received", "wrong", "missing")),
            results.cycles.eq(cycles),
        ]
        m.d.sync += sending.eq(begins | ~left[-1] | (source.frames.valid & ~source.frames.ready))
        with m.If(begins):
            m.d.sync += [left.eq(self.count - 1), cycles.eq(0)]
        with m.Else():
            m.d.sync += [left.eq(left - source.starts), cycles.eq(cycles + sending)]
        return m


PORT_SETTINGS = data.StructLayout(
    {
        "address": 64,
        "first": WORD_BITS,
        **{field.name: field.bits for field in SHAPE.fields},
        "groups": GROUP_BITS,
        "chunks": CHUNKS.fields[0].bits,
    }
)
"""Settings of a `PortTest`: those of the registers of the same names."""


class PortTest(Component):
    """Reads memory as a worker does and compares it with the pattern, or writes the pattern as a worker does its model.

    ::

        memory ─▶ StridedReader ─▶ = pattern? ─▶ results
               ◀─ ModelStorer ◀─── pattern

    It is placed as a region of the chip, like an `Engine`: all inputs go into registers, the reset too, which must last
    at least 2 cycles; results are registers. ``number`` is that of the memory port in `WorkerConfig.memories`.
    """

    def __init__(self, config: WorkerConfig, number: int) -> None:
        self._config = config
        self._sizes = sizes = Sizes.of(config, 0)
        self._bits = 8 * sizes.bytes_of(number)
        self._writes = sizes.writes(number)
        self._labels = number == config.labels_memory
        ports = {
            # Of the width and with the channels that it has at the worker.
            "memory": Out(Axi4Signature(data_bits=self._bits, write=self._writes)),
            "settings": In(PORT_SETTINGS),  # stable from a cycle before a command to the end of its run
            # Pulses while not busy: begin a run, with all results at 0. Only port 0 of an engine can write.
            "read": In(1),
            **({"write": In(1)} if self._writes else {}),
            # A run is under way, from 2 cycles after its command on.
            "busy": Out(1),
            "results": Out(data.StructLayout(dict.fromkeys(port_results(0), WORD_BITS))),
        }
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        reset = Signal(init=1, reset_less=True)
        m.domains.port = ClockDomain("port", local=True)
        m.d.sync += reset.eq(ResetSignal("sync"))
        m.d.comb += [ClockSignal("port").eq(ClockSignal("sync")), ResetSignal("port").eq(reset)]
        stable: Any = Signal(PORT_SETTINGS, reset_less=True)
        read, write = Signal(), Signal()
        m.d.port += [stable.eq(self.settings), read.eq(self.read)]

        reader = labels_reader() if self._labels else lines_reader(self._config)
        m.submodules.reader = DomainRenamer("port")(reader)
        for channel in ("ar", "r"):
            wiring.connect(m, getattr(reader.memory, channel), wiring.flipped(getattr(self.memory, channel)))
        m.d.comb += [
            reader.start.eq(read),
            reader.base.eq(stable.address),
            reader.burst_beats.eq(stable.burst_beats),
            reader.stride_beats.eq(stable.stride_beats),
            reader.bursts.eq(stable.groups),
            reader.short.eq(stable.short),
            reader.data.ready.eq(1),
        ]
        asks = self.memory.ar.valid & self.memory.ar.ready
        answers, error, wrote, stored = self.memory.r.valid, Signal(), Signal(), Signal()
        if self._writes:
            m.d.port += write.eq(self.write)
            storer = self._store(m, stable, write)
            asks |= self.memory.aw.valid & self.memory.aw.ready
            answers |= self.memory.b.valid
            m.d.comb += [
                error.eq(reader.error | storer.error),
                wrote.eq(self.memory.w.valid & self.memory.w.ready),
                stored.eq(storer.done),
            ]
        else:
            m.d.comb += error.eq(reader.error)

        checking = self._check(m, reader, stable, read, begins=read | write, wrote=wrote)
        reading, writing = Signal(), Signal()
        asked, answered = Signal(), Signal()
        results = self.results
        m.d.comb += self.busy.eq(reading | writing)
        m.d.port += [
            reading.eq(read | (reading & (reader.busy | checking))),
            writing.eq(write | (writing & ~stored)),
            asked.eq(asked | asks),
            answered.eq(answered | answers),
            results.cycles.eq(results.cycles + self.busy),
            results.errors.eq(results.errors + error),
            results.latency.eq(results.latency + (asked & ~answered)),
        ]
        with m.If(read | write):
            m.d.port += [asked.eq(0), answered.eq(0)]
            m.d.port += [results[name].eq(0) for name in ("cycles", "errors", "latency")]
        return m

    def _store(self, m: Module, stable: Any, write: Signal) -> ModelStorer:
        """Build the way to memory of the pattern, which takes the place of weights."""
        storer = ModelStorer(self._config)
        m.submodules.storer = DomainRenamer("port")(storer)
        for channel in ("aw", "w", "b"):
            wiring.connect(m, getattr(storer.memory, channel), wiring.flipped(getattr(self.memory, channel)))
        beats = self._config.weight_beats // 2
        number = Signal(WORD_BITS, reset_less=True)  # of the first beat of half a chunk
        numbers = [(number + PATTERN_STEP * beat)[:WORD_BITS] for beat in range(beats)]
        m.d.comb += [
            storer.start.eq(write),
            storer.base.eq(stable.address),
            storer.chunks.eq(stable.chunks),
            storer.weights.data.eq(Cat(pattern(each, self._bits) for each in numbers)),
        ]
        with m.If(write):
            m.d.port += number.eq(stable.first - PATTERN_STEP * beats)
        with m.Elif(storer.weights.enable):
            m.d.port += number.eq(number + PATTERN_STEP * beats)
        return storer

    def _check(self, m: Module, reader: Any, stable: Any, read: Signal, *, begins: Value, wrote: Value) -> Value:
        """Build the comparison; returns whether beats are in it."""
        results = self.results
        number = Signal(WORD_BITS, reset_less=True)  # of the next beat
        beats_left = Signal(range(STRIDE_LIMIT), reset_less=True)  # of its group, after it
        is_last = Signal(reset_less=True)  # there are none
        skip = Signal(WORD_BITS, reset_less=True)  # from the last beat of a group to the next one
        skips = Array(Const(PATTERN_STEP * (gap + 1) % (1 << WORD_BITS), WORD_BITS) for gap in range(STRIDE_LIMIT))
        gap = (stable.stride_beats - stable.burst_beats)[: (STRIDE_LIMIT - 1).bit_length()]
        m.d.port += skip.eq(skips[gap])
        whole, single = stable.burst_beats - 1, stable.burst_beats == 1
        with m.If(read):
            m.d.port += [number.eq(stable.first), beats_left.eq(whole), is_last.eq(single)]
        with m.Elif(reader.data.valid):
            m.d.port += [
                number.eq(number + Mux(is_last, skip, PATTERN_STEP)),
                beats_left.eq(Mux(is_last, whole, beats_left - 1)),
                is_last.eq(Mux(is_last, single, beats_left == 1)),
            ]

        beat = Signal(self._bits, reset_less=True)
        wanted = Signal(WORD_BITS, reset_less=True)
        words = self._bits // WORD_BITS
        differs = Signal(words, reset_less=True)
        lowest = Signal(WORD_BITS, reset_less=True)
        valids = Signal(2)
        expected = pattern(wanted, self._bits)
        found = Signal()  # a beat that was not as expected
        wrong = valids[-1] & differs.any()
        m.d.port += [
            valids.eq(Cat(reader.data.valid, valids)),
            beat.eq(reader.data.payload),
            wanted.eq(number),
            differs.eq(
                Cat(beat.word_select(w, WORD_BITS) != expected.word_select(w, WORD_BITS) for w in range(words)),
            ),
            lowest.eq(beat),
            results.beats.eq(results.beats + (valids[-1] | wrote)),
        ]
        with m.If(wrong):
            m.d.port += [
                found.eq(1),
                results.wrong.eq(results.wrong + 1),
                results.wrong_words.eq(results.wrong_words | differs),
            ]
            with m.If(~found):
                m.d.port += [results.wrong_beat.eq(results.beats), results.wrong_word.eq(lowest)]
        with m.If(begins):
            m.d.port += found.eq(0)
            m.d.port += [results[name].eq(0) for name in ("beats", "wrong", "wrong_beat", "wrong_word", "wrong_words")]
        return valids.any()


def port_test_name(port: int) -> str:
    """Submodule name of the `PortTest` of a memory port."""
    return f"test{port}"


class SelfTestKernel(Component):
    """A `PortTest` at every memory port that a worker has, and a `CageTest` at the MAC of every cage."""

    def __init__(self, config: WorkerConfig, *, cages: int = 1, build_id: int = 0, slices: Sequence[int] = ()) -> None:
        self._sizes = sizes = Sizes.of(config, cages)
        self._build_id = build_id
        self._slices = tuple(slices) or (0,) * sizes.memories
        self._tests = [PortTest(config, number) for number in range(sizes.memories)]
        frames = stream.Signature(FrameBeat)
        ports = {
            **PORTS,
            **{f"gmem{number}": Out(test.memory.signature) for number, test in enumerate(self._tests)},
            # Frames to and from the MAC of each cage.
            "axis_tx": Out(frames).array(cages),
            "axis_rx": In(frames).array(cages),
        }
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        kernel_clock(m, self.ap_clk, self.ap_rst_n)
        m.submodules.registers = registers = RegisterFile(selftest_map(self._sizes))
        connect_control(m, self.control, registers.bus)
        clock = Signal(WORD_BITS)
        m.d.sync += clock.eq(clock + 1)
        m.d.comb += [*registers.show(identity(self._sizes, self._build_id)), registers.clock.eq(clock)]

        busy = Signal(len(self._tests))
        chosen = registers.wide("ports")[: len(self._tests)] & ~busy
        m.d.comb += Cat(registers.busy_low, registers.busy_high).eq(busy)
        for number, test in enumerate(self._tests):
            m.submodules[port_test_name(number)] = test
            connect_memory(m, test.memory, self, number, self._slices[number])
            name = f"port{number}"
            begins = registers.run_read_strobe & chosen[number]
            m.d.comb += [
                test.settings.address.eq(registers.wide(f"{name}_address")),
                test.settings.first.eq(getattr(registers, f"{name}_first")),
                *(test.settings[field.name].eq(getattr(registers, f"shape_{field.name}")) for field in SHAPE.fields),
                test.settings.groups.eq(registers.groups),
                test.settings.chunks.eq(registers.chunks),
                test.read.eq(begins & registers.run_read),
                busy[number].eq(test.busy),
                *(getattr(registers, f"{name}_{result}").eq(test.results[result]) for result in port_results(number)),
            ]
            if self._sizes.writes(number):
                m.d.comb += test.write.eq(begins & registers.run_write & ~registers.run_read)

        for cage, (tx, rx) in enumerate(zip(self.axis_tx, self.axis_rx, strict=True)):
            m.submodules[f"cage{cage}"] = frames = CageTest()
            connect_stream(m, frames.axis_tx, wiring.flipped(tx))
            connect_stream(m, wiring.flipped(rx), frames.axis_rx)
            name = f"cage{cage}"
            m.d.comb += [
                frames.send.eq(registers.send_strobe & registers.cages[cage]),
                frames.count.eq(registers.send),
                *(getattr(registers, f"{name}_{result}").eq(frames.results[result]) for result in cage_registers(cage)),
            ]
        return m
