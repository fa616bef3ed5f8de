"""Looking up a bit ahead of the pointer to it."""

from amaranth.hdl import Module, Mux, Signal, Value, ValueLike

__all__ = ["look_up"]


def look_up(
    m: Module,
    name: str,
    moves: Value,
    bits: Signal,
    here: Value,
    after: Value,
    *,
    only: ValueLike = 1,
    forget: ValueLike = 0,
    init: int = 0,
) -> Value:
    """The bit at a pointer, as it was a cycle ago.

    Where the pointer goes is known late, so both bits are looked up first and chosen from a cycle later.

    Parameters
    ----------
    m, name
        Module, and a name for its registers.
    moves
        Whether the pointer goes from ``here`` to ``after``.
    bits
        Looked up in.
    here, after
        Where the pointer is, and where it would go.
    only
        0 if there is nothing at ``after``.
    forget
        Pulse: the bit is 0 in the next cycle.
    init
        The bit after reset.
    """
    moved = Signal(name=f"{name}_moved")
    bit_here = Signal(name=f"{name}_here", init=init)
    bit_after = Signal(name=f"{name}_after")
    m.d.sync += [
        moved.eq(moves),
        bit_here.eq(bits.bit_select(here, 1)),
        bit_after.eq(bits.bit_select(after, 1) & only),
    ]
    with m.If(forget):
        m.d.sync += [bit_here.eq(0), bit_after.eq(0)]
    return Mux(moved, bit_after, bit_here)
