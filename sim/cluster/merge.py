"""Many streams into one."""

from amaranth.hdl import Module, ShapeLike, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["Merge"]


class Merge(wiring.Component):
    """Takes items from ``count`` streams in turn and says from which each came.

    Members
    -------
    i : In(stream of ``shape``).array(count)
    o : Out(stream of {item: shape, port})
    """

    def __init__(self, shape: ShapeLike, count: int) -> None:
        self._count = count
        self.payload = data.StructLayout({"item": shape, "port": max(1, (count - 1).bit_length())})
        super().__init__({"i": In(stream.Signature(shape)).array(count), "o": Out(stream.Signature(self.payload))})

    i: list[stream.Interface]
    o: stream.Interface

    def elaborate(self, platform: object) -> Module:
        m = Module()
        turn = Signal(range(self._count))
        free = ~self.o.valid | self.o.ready
        with m.If(free):
            m.d.sync += [self.o.valid.eq(0), turn.eq(turn + 1)]
            with m.If(turn == self._count - 1):
                m.d.sync += turn.eq(0)
            with m.Switch(turn):
                for port, taken in enumerate(self.i):
                    with m.Case(port):
                        m.d.comb += taken.ready.eq(1)
                        m.d.sync += [
                            self.o.valid.eq(taken.valid),
                            self.o.payload.item.eq(taken.payload),
                            self.o.payload.port.eq(port),
                        ]
        return m
