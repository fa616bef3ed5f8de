"""Numbered frames, and what has become of them."""

from amaranth.hdl import Cat, Const, Module, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.axi_stream import FRAME_BEAT_BYTES, FrameBeat

__all__ = ["NUMBER_BITS", "FrameChecker", "FrameSource", "frame"]

NUMBER_BITS = 32

_HEADER = bytes.fromhex("020000000002 020000000001 88b6")
"""Local addresses, and the second of the two EtherTypes for experiments (IEEE 802)."""

_ALL_BYTES = (1 << FRAME_BEAT_BYTES) - 1


def frame(number: Value) -> Value:
    """Data of a frame of 64 bytes: a header, then its number again and again, each time with other bits inverted.

    Parameters
    ----------
    number
        Unsigned, `NUMBER_BITS` wide.
    """
    words = -(-8 * (FRAME_BEAT_BYTES - len(_HEADER)) // NUMBER_BITS)
    header = Const(int.from_bytes(_HEADER, "little"), 8 * len(_HEADER))
    inverted = [Const(0x9E37_79B9 * index % (1 << NUMBER_BITS), NUMBER_BITS) for index in range(words)]
    return Cat(header, *(number ^ bits for bits in inverted))[: 8 * FRAME_BEAT_BYTES]


class FrameSource(wiring.Component):
    """Sends frames of one beat as fast as they are taken, numbered from 0.

    Members
    -------
    enable : In(1)
        Frames are begun.
    frames : Out(stream of FrameBeat)
    sent : Out(32)
        Frames taken so far.
    """

    enable: Signal
    frames: stream.Interface
    sent: Signal

    def __init__(self) -> None:
        super().__init__({"enable": In(1), "frames": Out(stream.Signature(FrameBeat)), "sent": Out(NUMBER_BITS)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        beat = self.frames.payload
        m.d.comb += [beat.data.eq(frame(self.sent)), beat.keep.eq(_ALL_BYTES), beat.last.eq(1)]
        with m.If(~self.frames.valid | self.frames.ready):
            m.d.sync += self.frames.valid.eq(self.enable)
        with m.If(self.frames.valid & self.frames.ready):
            m.d.sync += self.sent.eq(self.sent + 1)
        return m


class FrameChecker(wiring.Component):
    """Compares frames with those of a `FrameSource`; its counters are a cycle late.

    Members
    -------
    frames : In(stream of FrameBeat)
        Always taken.
    received : Out(32)
        Frames that are as they were sent.
    wrong : Out(32)
        Beats that are no such frame.
    missing : Out(32)
        Frames between two received ones that did not come, modulo 2^32; one out of order seems as many as that.
    """

    frames: stream.Interface
    received: Signal
    wrong: Signal
    missing: Signal

    def __init__(self) -> None:
        counters = dict.fromkeys(("received", "wrong", "missing"), Out(NUMBER_BITS))
        super().__init__({"frames": In(stream.Signature(FrameBeat)), **counters})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        beat = self.frames.payload
        number = Signal(NUMBER_BITS)
        right = Signal()
        m.d.comb += [
            self.frames.ready.eq(1),
            number.eq(beat.data[8 * len(_HEADER) :][:NUMBER_BITS]),
            right.eq((beat.data == frame(number)) & beat.keep.all() & beat.last),
        ]
        expected = Signal(NUMBER_BITS)
        with m.If(self.frames.valid):
            with m.If(right):
                m.d.sync += [
                    expected.eq(number + 1),
                    self.received.eq(self.received + 1),
                    self.missing.eq(self.missing + (number - expected)),
                ]
            with m.Else():
                m.d.sync += self.wrong.eq(self.wrong + 1)
        return m
