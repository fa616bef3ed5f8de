"""Numbered frames: they are sent to a MAC, and what comes back is compared with them."""

from typing import Any

from amaranth.hdl import Cat, Const, Module, ResetInserter, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.axi import FRAME_BEAT_BYTES, FrameBeat
from p4sgd.hw.bus.stream import connect_stream
from p4sgd.hw.spec.selftest import PATTERN_STEP, WORD_BITS, cage_registers

__all__ = ["CageTest", "FrameChecker", "FrameSource", "frame", "pattern"]


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
