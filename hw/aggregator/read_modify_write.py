"""A memory whose words are changed in the order of their readings, one a cycle."""

from typing import Any

from amaranth.hdl import Module, Mux, ShapeLike, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from p4sgd.hw.delay import delayed
from p4sgd.hw.memory.ram_style import ram_style

__all__ = ["ReadModifyWrite"]

_RECENT = 5
"""Words that are not in the memory yet when one is read: those read so many cycles before, or fewer."""


class ReadModifyWrite(wiring.Component):
    """Reads a word, and writes what becomes of it `LATENCY` cycles later; the next reading may be of the same word.

    A word that was read less than six cycles before is not taken from the memory but from those on the way there. So
    ``made`` must be given for every word that is read, changed or not::

        address ──▶ memory ──▶ register ──▶ before ──▶ old ──▶ (outside) ──▶ made ─▶ memory
           0                      2           3         4                    4         5

    Parameters
    ----------
    shape
        Of a word.
    depth
        Words; all are 0 at first.

    Members
    -------
    address : In(range(depth))
        Word to read; there is one in every cycle.
    before : Out(shape)
        The word as it was read by the item before last, 3 cycles later.
    follows : Out(1)
        With ``before``: the last item had the same word, and what it makes of it is not in ``before``.
    old : Out(shape)
        The word, `LATENCY` cycles later.
    made : In(shape), write : In(1)
        What becomes of it, in the same cycle; and whether this is to be kept, without which ``made`` is ``old``.
    """

    LATENCY = 4

    def __init__(self, shape: ShapeLike, depth: int) -> None:
        self._shape = shape
        self._depth = depth
        super().__init__(
            {
                "address": In(range(depth)),
                "before": Out(shape),
                "follows": Out(1),
                "old": Out(shape),
                "made": In(shape),
                "write": In(1),
            }
        )

    address: Signal
    before: Any
    follows: Signal
    old: Any
    made: Any
    write: Signal

    def elaborate(self, platform: object) -> Module:
        m = Module()
        memory: Memory = Memory(shape=self._shape, depth=self._depth, init=[], attrs=ram_style(self._depth))
        m.submodules.memory = memory
        read_port = memory.read_port()
        write_port = memory.write_port()
        addresses = delayed(m, self.address, self.LATENCY + 1, "address", reset_less=True)
        read: Any = Signal(self._shape, reset_less=True)
        m.d.comb += read_port.addr.eq(self.address)
        m.d.sync += read.eq(read_port.data)

        # Whether the item so many cycles before had the same word; in step with `before` and, but for the last, `read`.
        same = Signal(_RECENT, reset_less=True)
        m.d.sync += [bit.eq(self.address == addresses[1 + distance]) for distance, bit in enumerate(same)]
        same_as = delayed(m, same, 2, "same", reset_less=True)
        lately = delayed(m, self.made, _RECENT - 2, "lately", reset_less=True)
        recent: Any = read
        for distance in range(_RECENT, 1, -1):
            recent = Mux(same_as[1][distance - 1], lately[distance - 2], recent)
        m.d.sync += [self.before.eq(recent), self.old.eq(Mux(self.follows, self.made, self.before))]
        m.d.comb += self.follows.eq(same_as[2][0])

        m.d.sync += [
            write_port.addr.eq(addresses[self.LATENCY]),
            write_port.data.eq(self.made),
            write_port.en.eq(self.write),
        ]
        return m
