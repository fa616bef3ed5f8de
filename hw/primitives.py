"""Building blocks: the base of components, adders, saturation, pipelines and adder trees.

Ports are annotations of a `wiring.Component` where none depends on the configuration, else parameters of a `Component`.
A port with the name of a register's field is that field: `p4sgd.hw.bus.register_file.RegisterFile.connect` wires it.
"""

from typing import TYPE_CHECKING, Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, ValueLike, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.spec.fixed import Fixed
from p4sgd.hw.spec.timing import TREE_RADIX, tree_latency

__all__ = ["KEEP", "AdderTree", "Component", "add", "hold", "late_reset", "overflows", "pipeline", "ram_style"]
__all__ += ["saturate"]


class Component(wiring.Component):
    """A component of whose ports type checkers know nothing: they take any attribute."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


def _extend(value: Value, width: int) -> Value:
    """Sign or zero extend a value to ``width`` bits."""
    top = value[-1] if value.shape().signed else Const(0, 1)
    return Cat(value, top.replicate(width - len(value)))


def add(a: ValueLike, b: ValueLike, *, carry: ValueLike) -> Value:
    """``a + b + carry`` from a single carry chain, by a bit more at the low end: signed, one bit wider."""
    a, b, carry = Value.cast(a), Value.cast(b), Value.cast(carry)
    width = max(len(a), len(b)) + 1
    return (Cat(Const(1, 1), _extend(a, width)) + Cat(carry, _extend(b, width)))[1 : width + 1].as_signed()


def overflows(value: Value, form: Fixed) -> Value:
    """Whether a signed value is outside a signed format: its bits from the format's sign bit up are not all equal."""
    high = value[form.width - 1 :]
    return (high[1:] ^ high[:-1]).any()


def saturate(value: Value, overflow: ValueLike, form: Fixed) -> Value:
    """Clamp a signed value to a signed format; ``overflow`` is what `overflows` says of it, perhaps a stage earlier."""
    return Mux(overflow, Mux(value[-1], form.minimum, form.maximum), value)


def pipeline(m: Module, value: Any, cycles: int, name: str, *, reset_less: bool = False) -> list[Any]:
    """A value or a view, then the same after one cycle, after two, and so on, in registers named after ``name``.

    With ``reset_less`` they ignore the reset: safe if a flag of its own tells when they are valid.
    """
    stages = [value]
    for cycle in range(1, cycles + 1):
        later: Any = Signal(value.shape(), name=f"{name}{cycle}", reset_less=reset_less)
        m.d.sync += later.eq(stages[-1])
        stages.append(later)
    return stages


def hold(m: Module, port: Any) -> Any:
    """A register that drives an output and ignores the reset: for data that come with a flag of their own."""
    driven: Any = Value.cast(port)
    register: Any = Signal(port.shape(), name=f"{driven.name}_held", reset_less=True)
    m.d.comb += port.eq(register)
    return register


def late_reset(m: Module, name: str = "late_reset") -> Signal:
    """A register that is set in a reset and for a cycle after it, to reset what may wait for it.

    A reset must leave all that it reaches in the same cycle. A copy for each block of registers that nothing reads in
    the first cycle keeps their loads off it.
    """
    copy = Signal(init=1, name=name, attrs=KEEP)
    m.d.sync += copy.eq(0)
    return copy


_ULTRA_DEPTH = 4096  # depth of a URAM288, which is 72 bits wide (UG573); a RAMB36 of that width is 512 deep


def ram_style(depth: int) -> dict[str, str]:
    """Attributes of a memory: UltraRAM if it is at least as deep as one, otherwise the tools choose."""
    return {"ram_style": "ultra"} if depth >= _ULTRA_DEPTH else {}


KEEP = {"keep": "true"}
"""Attribute of a register that Vivado shall not merge with an equal one (UG901, KEEP): a copy made because of its
fan-out, or one that a synchronizer samples, which constraints name."""


class AdderTree(Component):
    """Exact sum of ``terms`` signed numbers, at least one, each ``width`` bits wide.

    Each level adds groups of three numbers and ends in a register. Throughput is one sum a cycle.
    """

    def __init__(self, terms: int, width: int) -> None:
        if terms < 1:
            raise ValueError(f"an adder tree needs terms, not {terms}")
        self.terms = terms
        self.width = width
        self.latency = tree_latency(terms)
        self.out_width = width + (terms - 1).bit_length()
        ports = {
            "i": In(data.ArrayLayout(signed(width), terms)),  # the terms
            "o": Out(signed(self.out_width)),  # their sum, `latency` cycles later
        }
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        level: list[Value] = [self.i[index] for index in range(self.terms)]
        for depth in range(self.latency):
            sums: list[Value] = []
            for node, first in enumerate(range(0, len(level), TREE_RADIX)):
                total = sum(level[first + 1 : first + TREE_RADIX], start=level[first])
                register = Signal.like(total, name=f"level{depth}_{node}", reset_less=True)
                m.d.sync += register.eq(total)
                sums.append(register)
            level = sums
        m.d.comb += self.o.eq(level[0])
        return m
