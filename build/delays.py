"""How signals go through the cells of an UltraScale+ FPGA, and how long they take, in nanoseconds.

The data sheet (DS923) gives no such numbers for logic: they are assumptions for speed grade -2 at 0.85 V, the boards'
own. Wires make up most of a real path and depend on where its cells come to lie: take an estimate to compare paths, not
to promise a clock.
"""

import re
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from p4sgd.build.netlist import Cell, Port

__all__ = ["CLOCK_TO_OUT", "DELAY", "FLIP_FLOPS", "ROUTE", "SETUP", "Arc", "End", "Kind", "Start", "ways"]

CLOCK_TO_OUT = 0.08
"""Clock to the output of a flip-flop."""

SETUP = 0.07
"""Input of a register to the clock."""

ROUTE = 0.35
"""From one cell to another. Within a slice, from a LUT to its carry chain, multiplexer or flip-flop, there is none."""

LUT_RAM = 0.5
"""Clock to the output of a LUT that is memory or shift register."""

BLOCK_RAM = 1.0
"""Clock to the output of a block RAM without its output register."""

ULTRA_RAM = 1.5
"""Clock to the output of an UltraRAM without its output register."""


class Kind(Enum):
    """What a signal goes through."""

    LUT = "LUT"
    MUX = "multiplexer"
    """Joins the LUTs of a slice."""
    ENTRY = "entry"
    """Onto a carry chain, through its first bit."""
    CARRY = "carry"
    """One bit along a chain."""
    DSP = "DSP"
    WIRE = "wire"


DELAY = {
    Kind.LUT: 0.05,
    Kind.MUX: 0.05,
    Kind.ENTRY: 0.015,
    Kind.CARRY: 0.015,
    # Through a multiplier. DS923: 544 MHz from register to register of the DSP slice itself, without the one between,
    # that is 1.84 ns with clock-to-out and setup. yosys leaves the registers of this family's slices outside.
    Kind.DSP: 1.5,
    Kind.WIRE: 0.0,
}
"""Through each, without the wire to it."""


class Arc(NamedTuple):
    """A way through a cell, between nets of its module."""

    source: int
    target: int
    kind: Kind
    near: bool
    """Whether a LUT, multiplexer or carry chain of the same slice can drive ``source``."""


class Start(NamedTuple):
    """A net that leaves a register."""

    net: int
    delay: float


class End(NamedTuple):
    """A net that goes into a register."""

    net: int
    pin: str
    near: bool


FLIP_FLOPS = ("FDRE", "FDSE", "FDCE", "FDPE")
_SHIFT_REGISTERS = ("SRL16E", "SRLC32E")
_MEMORIES = {"RAMB18E2": BLOCK_RAM, "RAMB36E2": BLOCK_RAM, "URAM288": ULTRA_RAM}
_CLOCK = re.compile(r"C|W?CLK|CLK[AB]\w+CLK|clk")


def ways(cell: Cell) -> Iterator[Arc | Start | End]:
    """All ways through a cell, out of it and into it. A cell that is not known ends and starts in registers."""
    inputs = {pin: port for pin, port in cell.pins.items() if not port.output and not _CLOCK.fullmatch(pin)}
    outputs = {pin: port for pin, port in cell.pins.items() if port.output}
    if re.fullmatch(r"LUT\d", cell.type):
        yield from _through(inputs, outputs, Kind.LUT)
    elif cell.type == "LUT6_2":
        table = int(cell.parameters["INIT"], 2)
        low = table % (1 << 32)
        for out, port in outputs.items():
            function = table if out == "O6" else low << 32 | low
            used = {pin: net for pin, net in inputs.items() if _depends(function, int(pin.removeprefix("I")))}
            yield from _through(used, {out: port}, Kind.LUT)
    elif re.fullmatch(r"MUXF\d", cell.type):
        select = {"S": inputs.pop("S")}
        yield from _through(inputs, outputs, Kind.MUX, near=True)
        yield from _through(select, outputs, Kind.MUX)
    elif cell.type == "INV":
        yield from _through(inputs, outputs, Kind.WIRE)
    elif cell.type in ("CARRY4", "CARRY8"):
        yield from _carry(cell)
    elif cell.type == "DSP48E2" and not any(_is_register(*item) for item in cell.parameters.items()):
        yield from _through(inputs, outputs, Kind.DSP)
    elif cell.type in _SHIFT_REGISTERS or re.fullmatch(r"RAM\d+[XM].*", cell.type):
        yield from _starts(outputs, LUT_RAM)
        for pin, port in inputs.items():
            read = {out: port for out, port in outputs.items() if _reads(pin, out)}
            yield from _through({pin: port}, read, Kind.LUT) if read else _ends({pin: port})
    else:
        yield from _starts(outputs, _MEMORIES.get(cell.type, CLOCK_TO_OUT))
        yield from _ends(inputs, near="D" if cell.type in FLIP_FLOPS else "")


def _nets(ports: dict[str, Port]) -> Iterator[tuple[str, int]]:
    return ((pin, net) for pin, port in ports.items() for net in port.bits if net is not None)


def _through(inputs: dict[str, Port], outputs: dict[str, Port], kind: Kind, *, near: bool = False) -> Iterator[Arc]:
    targets = [target for _, target in _nets(outputs)]
    return (Arc(source, target, kind, near) for _, source in _nets(inputs) for target in targets)


def _starts(outputs: dict[str, Port], delay: float) -> Iterator[Start]:
    return (Start(net, delay) for _, net in _nets(outputs))


def _ends(inputs: dict[str, Port], *, near: str = "") -> Iterator[End]:
    return (End(net, pin, pin == near) for pin, net in _nets(inputs))


def _depends(table: int, pin: int) -> bool:
    """Whether an output of a LUT with six inputs, a table of 64 bits, depends on one of them."""
    return any((table >> place ^ table >> (place ^ 1 << pin)) & 1 for place in range(64))


def _is_register(parameter: str, value: str) -> bool:
    """Whether a parameter of a DSP slice puts a register into the way."""
    return parameter.endswith("REG") and "1" in value


def _reads(pin: str, out: str) -> bool:
    """Whether an input of a memory in LUTs is an address that an output is read at."""
    if match := re.fullmatch(r"ADDR([A-H])", pin):  # the last of them addresses what is written, and no output
        return out == f"DO{match[1]}"
    return bool(re.fullmatch(r"(DPR)?A\d?", pin)) and not (pin.startswith("DPR") and out == "SPO")


def _carry(cell: Cell) -> Iterator[Arc]:
    """Bit by bit: each sum and each carry come from the carry before and from this bit's inputs."""
    before = [
        (net, Kind.CARRY if pin == "CI" else Kind.ENTRY, pin == "CI")
        for pin in ("CI", "CYINIT")
        for net in (cell.pins[pin].bits if pin in cell.pins else [])
    ]
    carries = cell.pins["CO"].bits
    sums = cell.pins["O"].bits if "O" in cell.pins else [None] * len(carries)  # a comparison needs none
    for data, select, out, carry in zip(cell.pins["DI"].bits, cell.pins["S"].bits, sums, carries, strict=True):
        here = [(select, Kind.ENTRY, True)]
        for target, sources in ((out, [*before, *here]), (carry, [*before, *here, (data, Kind.ENTRY, False)])):
            if target is not None:
                yield from (Arc(source, target, kind, near) for source, kind, near in sources if source is not None)
        before = [(carry, Kind.CARRY, True)]
