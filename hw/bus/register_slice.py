"""A stream through registers, both ways."""

from typing import Any

from amaranth.hdl import Module, Mux, ShapeLike, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["RegisterSlice"]


class RegisterSlice(wiring.Component):
    """Hands a stream on a cycle later, all of whose signals it drives from registers; a beat in every cycle.

    As no output depends on an input in the same cycle, both ways are cut: that of payload and valid, and that of ready.
    What arrives is a multiplexer, or the logic of an enable, away from its register. So a wire between two slices may
    cross a boundary between dies.

    Parameters
    ----------
    shape
        Of the payload.

    Members
    -------
    i : In(stream of shape), o : Out(stream of shape)
        Up to two beats are within.
    """

    def __init__(self, shape: ShapeLike) -> None:
        super().__init__({"i": In(stream.Signature(shape)), "o": Out(stream.Signature(shape))})

    i: stream.Interface
    o: stream.Interface

    def elaborate(self, platform: object) -> Module:
        m = Module()
        # Ready tells of the cycle before: what comes while the output waits goes to `spare`, and then ready falls.
        ready = Signal(init=1)
        payload: Any = Signal(self.o.payload.shape(), reset_less=True)
        spare: Any = Signal.like(payload, reset_less=True)
        m.d.comb += [self.i.ready.eq(ready), self.o.payload.eq(payload)]
        with m.If(ready):
            m.d.sync += spare.eq(self.i.payload)
        with m.If(self.o.ready | ~self.o.valid):
            m.d.sync += [
                payload.eq(Mux(ready, self.i.payload, spare)),
                self.o.valid.eq(self.i.valid | ~ready),
                ready.eq(1),
            ]
        with m.Elif(self.i.valid):
            m.d.sync += ready.eq(0)
        return m
