"""Sums of planes: Horner's rule, one plane a cycle."""

from amaranth.hdl import Module, Mux, Signal, Value, signed

from p4sgd.hw.arithmetic import add

__all__ = ["add_plane"]


def add_plane(m: Module, total: Signal, plane_sum: Value, *, enable: Value, first: Value, negative: Value) -> None:
    """Add a plane to ``total``: ``total = 2·total ± plane_sum``, beginning anew with the first plane.

    Planes come most significant first. A single adder: the first plane's ``2·total`` is gated away, and a negative
    plane, the first of signed features, is inverted with a carry in.

    Parameters
    ----------
    m
        Module to add to.
    total
        Signed register, wide enough for the result.
    plane_sum
        Signed sum of the plane.
    enable, first, negative
        A plane is there; it is the first; it counts negatively.
    """
    doubled = Signal(signed(len(total)), name=f"{total.name}_doubled")
    addend = Signal(signed(len(total)), name=f"{total.name}_addend")
    m.d.comb += [doubled.eq(Mux(first, 0, total << 1)), addend.eq(plane_sum ^ negative.as_signed())]
    with m.If(enable):
        m.d.sync += total.eq(add(doubled, addend, carry=negative))
