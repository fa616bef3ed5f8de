"""Expressions of the datapath that map to one carry chain, or to a few gates."""

from amaranth.hdl import Cat, Const, Mux, Value, ValueLike

from p4sgd.hw.spec.fixed import Fixed

__all__ = ["add", "overflows", "saturate"]


def _extend(value: Value, width: int) -> Value:
    """The bits of ``value``, sign or zero extended."""
    top = value[-1] if value.shape().signed else Const(0, 1)
    return Cat(value, top.replicate(width - len(value)))


def add(a: ValueLike, b: ValueLike, *, carry: ValueLike) -> Value:
    """``a + b + carry``, signed and one bit wider than the wider of them, with a single adder for all three.

    The carry enters as the sum of two bits below: tools recognise that, but make two adders of three addends.
    """
    a, b, carry = Value.cast(a), Value.cast(b), Value.cast(carry)
    width = max(len(a), len(b)) + 1
    return (Cat(Const(1, 1), _extend(a, width)) + Cat(carry, _extend(b, width)))[1 : width + 1].as_signed()


def overflows(value: Value, form: Fixed) -> Value:
    """Whether a signed value is outside a signed format: not all bits from its sign up are equal."""
    high = value[form.width - 1 :]
    return (high[1:] ^ high[:-1]).any()


def saturate(value: Value, overflow: ValueLike, form: Fixed) -> Value:
    """A signed value clamped to a signed format; ``overflow`` is what `overflows` says of it."""
    return Mux(overflow, Mux(value[-1], form.minimum, form.maximum), value)
