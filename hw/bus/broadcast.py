"""One stream to many."""

from amaranth.hdl import Module, ShapeLike, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["Broadcast"]


class Broadcast(wiring.Component):
    """Hands every item of a stream to each of ``count`` takers, which may take it in different cycles.

    An item is held in a register until all have it, so readiness of a taker never reaches the source or another taker
    combinationally. Latency 1 cycle; one item every two cycles.

    Members
    -------
    i : In(stream of ``shape``)
    o : Out(stream of ``shape``).array(count)
    """

    def __init__(self, shape: ShapeLike, count: int) -> None:
        if count < 1:
            raise ValueError(f"a broadcast needs at least one taker, not {count}")
        self._shape = shape
        self._count = count
        super().__init__({"i": In(stream.Signature(shape)), "o": Out(stream.Signature(shape)).array(count)})

    i: stream.Interface
    o: list[stream.Interface]

    def elaborate(self, platform: object) -> Module:
        m = Module()
        item = Signal(self._shape, reset_less=True)
        waiting = Signal(self._count)  # takers that do not have the item yet
        m.d.comb += self.i.ready.eq(waiting == 0)
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += [item.eq(self.i.payload), waiting.eq(~0)]
        for index, taker in enumerate(self.o):
            m.d.comb += [taker.payload.eq(item), taker.valid.eq(waiting[index])]
            with m.If(taker.valid & taker.ready):
                m.d.sync += waiting[index].eq(0)
        return m
