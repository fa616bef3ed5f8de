"""Longest paths between registers, and loads of nets, of a netlist of UltraScale+ cells.

yosys' own `sta` and `ltp` report a single path, and neither its LUTs and carry chains nor how many registers break the
rule that is checked here. Delays, in ns, are assumed, since the data sheet (DS923) has none for logic: for speed
grade -2 at 0.85 V, that of the boards. Ports and black boxes count as registers.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from enum import Enum
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

from p4sgd.build.estimate.synthesis import Cell, Netlist, Pins

SETUP = 0.07
"""Input of a register to the clock."""

ROUTE = 0.35
"""From one cell to another. There is none within a slice, from a LUT to its carry chain, multiplexer or flip-flop."""


class Kind(Enum):
    """Kind of a cell that a signal passes or comes from, with its delay, without the routing to it."""

    LUT = "LUT", 0.05
    MUX = "multiplexer of the LUTs of a slice", 0.05
    ENTRY = "first bit of a carry chain", 0.015
    CARRY = "further bit of a carry chain", 0.015
    # A multiplier without registers: yosys does not use those in the DSP slices of this family. DS923 has 544 MHz from
    # a slice's input register to its output register, without the one between: 1.84 ns with clock-to-out and setup.
    DSP = "multiplier", 1.5
    WIRE = "wire", 0.0
    FLIP_FLOP = "clock to the output of a flip-flop", 0.08
    LUT_RAM = "clock to the output of a LUT used as memory or shift register", 0.5
    BLOCK_RAM = "clock to the output of a block RAM without its output register", 1.0
    ULTRA_RAM = "clock to the output of an UltraRAM without its output register", 1.5

    @property
    def delay(self) -> float:
        """In nanoseconds."""
        return self.value[1]


_IN_SLICE = (Kind.LUT, Kind.MUX, Kind.ENTRY, Kind.CARRY)

_MEMORIES = {"RAMB18E2": Kind.BLOCK_RAM, "RAMB36E2": Kind.BLOCK_RAM, "URAM288": Kind.ULTRA_RAM}

MAX_LUTS, MAX_CARRY_BITS = 3, 48
"""Number of LUTs that a path of the design may have in a row, and length of the one carry chain besides."""

MAX_LOADS, MAX_RESETTABLE = 10_000, 1_000
"""Number of loads that a net may have, unless it is a clock, since they lie far apart; and of registers that the resets
of an engine, or of all else, may reach, which must leave all of them in the same cycle."""

FLIP_FLOPS = ("FDRE", "FDSE", "FDCE", "FDPE")

_CLOCK = re.compile(r"C|W?CLK|CLK[AB]\w+CLK|(\w+_)?clk")  # pins of cells and black boxes that take a clock


class Path(NamedTuple):
    """A path from register to register."""

    start: str  # hierarchical name of the register
    end: str  # with the name of its pin too, unless that is a flip-flop's data
    delay: float  # in nanoseconds, from clock to clock
    luts: int
    multipliers: int  # DSP slices
    chains: tuple[int, ...]  # length in bits of each carry chain, in the order of the path

    @property
    def keeps_rule(self) -> bool:
        """Whether the path has at most `MAX_LUTS` and one carry chain of `MAX_CARRY_BITS`."""
        return self.luts <= MAX_LUTS and len(self.chains) <= 1 and sum(self.chains) <= MAX_CARRY_BITS

    @property
    def advice(self) -> str:
        """What is wrong with a path that breaks the rule, and what to do."""
        found = []
        if self.luts > MAX_LUTS:
            found.append(
                f"{self.luts} LUTs in a row, more than {MAX_LUTS}: decide a part of it a cycle earlier, or put a "
                "register between and its cycle into hw/spec/timing.py"
            )
        if len(self.chains) > 1:
            found.append(f"{len(self.chains)} carry chains in a row: put a register between them")
        elif sum(self.chains) > MAX_CARRY_BITS:
            found.append(
                f"a carry chain of {sum(self.chains)} bits, more than {MAX_CARRY_BITS}: add in two cycles, or in a DSP "
                "slice (hw/dsp.py)"
            )
        return f"{self.start} to {self.end}: {'; '.join(found)}"

    @property
    def megahertz(self) -> float:
        """Highest clock frequency for the path."""
        return 1000 / self.delay


class Timing(NamedTuple):
    """The longest paths."""

    paths: list[Path]  # the longest paths, and the longest of those that break the rule, worst first
    ends: int  # number of register inputs
    breaking: int  # number of those whose longest path breaks the rule


class Net(NamedTuple):
    """A net, and the number of pins that it drives."""

    name: str
    loads: int

    @property
    def keeps_rule(self) -> bool:
        """Whether the net has at most `MAX_LOADS`."""
        return self.loads <= MAX_LOADS

    @property
    def advice(self) -> str:
        """What is wrong with a net that breaks the rule, and what to do."""
        return (
            f"{self.name} has {self.loads:,} loads, more than {MAX_LOADS:,}: copy its register for each engine or part"
        )


class Loads(NamedTuple):
    """Loads of the nets of a design."""

    nets: list[Net]  # the nets with the most loads, but for clocks, most first
    resettable: int  # number of cells with registers whose next state depends on a reset, at any pin


_REGISTER = -1  # in place of a net: an arc begins or ends at a register


class _Arc(NamedTuple):
    """A timing arc through a cell, from a net or a register to a net or a register."""

    source: int
    target: int
    kind: Kind
    near: bool = False  # a LUT, multiplexer or carry chain in the same slice can drive ``source``, without routing
    pin: str = ""  # where the arc ends, at a register


class _End(NamedTuple):
    """A net that ends at a register or port; ``cell`` is the number of the register's."""

    net: int
    name: str
    near: bool = False
    cell: int | None = None


class _State(NamedTuple):
    """The longest path to a net; ``kind`` is that of the last cell."""

    delay: float
    kind: Kind
    before: int | None = None
    luts: int = 0
    multipliers: int = 0
    chains: tuple[int, ...] = ()

    def wire(self, near: bool) -> float:
        """Delay of the routing to a pin."""
        return 0.0 if near and self.kind in _IN_SLICE else ROUTE

    def through(self, arc: _Arc) -> "_State":
        """The path, longer by an arc."""
        if arc.kind is Kind.WIRE:
            return self._replace(before=arc.source)
        chains = self.chains
        if arc.kind is Kind.CARRY and self.kind in (Kind.ENTRY, Kind.CARRY):
            chains = (*chains[:-1], chains[-1] + 1)
        elif arc.kind in (Kind.ENTRY, Kind.CARRY):
            chains = (*chains, 1)
        return _State(
            self.delay + self.wire(arc.near) + arc.kind.delay,
            arc.kind,
            arc.source,
            self.luts + (arc.kind is Kind.LUT),
            self.multipliers + (arc.kind is Kind.DSP),
            chains,
        )


class TimingGraph:
    """Timing arcs between the nets of a design without hierarchy, and nets that start or end at registers."""

    def __init__(self, netlist: Netlist) -> None:
        (self._top,) = netlist.modules.values()
        top = self._top
        self._arcs: dict[int, list[_Arc]] = defaultdict(list)  # by target
        self._starts = {net: (Kind.FLIP_FLOP, f"port {name}") for name, net in _nets(top.inputs)}
        self._ends = [_End(net, f"port {name}") for name, net in dict.fromkeys(_nets(top.outputs))]
        for number, cell in enumerate(top.cells):
            register = None  # its name, that of the net that it drives
            for arc in _arcs(cell):
                if arc.target == _REGISTER:
                    shown = "" if register and arc.pin == "D" else f" {arc.pin}"
                    self._ends.append(_End(arc.source, f"{register or cell.name}{shown}", arc.near, number))
                elif arc.source == _REGISTER:
                    driven = top.names.get(arc.target)
                    register = driven if cell.type in FLIP_FLOPS else None
                    self._starts[arc.target] = arc.kind, driven or cell.name
                else:
                    self._arcs[arc.target].append(arc)

    def timing(self, count: int = 10) -> Timing:
        """The ``count`` longest paths, and as many that break the rule; ValueError if there is a combinational loop.

        Registers whose names differ only in numbers are reported once, with the longest path.
        """
        latest = self._propagate()
        reached = [
            (latest[end.net].delay + latest[end.net].wire(end.near) + SETUP, end)
            for end in self._ends
            if end.net in latest
        ]
        paths: dict[str, Path] = {}
        breaking = breaking_shown = 0
        for delay, end in sorted(reached, key=lambda item: -item[0]):
            state = latest[end.net]
            path = Path("", end.name, delay, state.luts, state.multipliers, state.chains)
            breaking += not path.keeps_rule
            alike = re.sub(r"\d+", "#", end.name)
            if alike not in paths and (len(paths) < count or (not path.keeps_rule and breaking_shown < count)):
                breaking_shown += not path.keeps_rule
                net = end.net
                while (before := latest[net].before) is not None:
                    net = before
                paths[alike] = path._replace(start=self._starts[net][1])
        return Timing(list(paths.values()), len(reached), breaking)

    def _propagate(self) -> dict[int, _State]:
        """Longest path to each net that any path leads to."""
        latest = {net: _State(kind.delay, kind) for net, (kind, _) in self._starts.items()}
        sources = {target: [arc.source for arc in arcs] for target, arcs in self._arcs.items()}
        try:
            for net in TopologicalSorter(sources).static_order():
                states = [latest[arc.source].through(arc) for arc in self._arcs.get(net, ()) if arc.source in latest]
                if net in latest:
                    states.append(latest[net])
                if states:
                    latest[net] = max(states, key=lambda each: each.delay)
        except CycleError:
            raise ValueError("the netlist has a loop without a register") from None
        return latest

    def loads(self, count: int = 5) -> Loads:
        """Loads of the ``count`` nets that have most, and the registers behind the resets."""
        loads = Counter(net for cell in self._top.cells for _, net in _nets(_data(cell)))
        behind: dict[int, set[int]] = defaultdict(set)  # nets that depend on a net in the same cycle
        for arcs in self._arcs.values():
            for arc in arcs:
                behind[arc.source].add(arc.target)
        reached = set(self._top.resets)
        waiting = list(reached)
        while waiting:
            found = behind[waiting.pop()] - reached
            reached |= found
            waiting += found
        return Loads(
            [Net(self._top.names.get(net, f"net {net}"), number) for net, number in loads.most_common(count)],
            len({end.cell for end in self._ends if end.net in reached} - {None}),
        )


def _nets(pins: Pins) -> Iterator[tuple[str, int]]:
    return ((pin, net) for pin, bits in pins.items() for net in bits if net is not None)


def _data(cell: Cell) -> Pins:
    """Inputs of a cell, but for clocks."""
    return {pin: bits for pin, bits in cell.inputs.items() if not _CLOCK.fullmatch(pin)}


def _arcs(cell: Cell) -> Iterator[_Arc]:
    """All timing arcs of a cell. A cell of unknown type has a register at every input and output."""
    inputs, outputs = dict(_data(cell)), cell.outputs
    if re.fullmatch(r"LUT\d", cell.type):
        yield from _through(inputs, outputs, Kind.LUT)
    elif cell.type == "LUT6_2":
        table = int(cell.parameters["INIT"], 2)
        low = table % (1 << 32)
        for out, bits in outputs.items():
            function = table if out == "O6" else low << 32 | low
            used = {pin: nets for pin, nets in inputs.items() if _depends(function, int(pin.removeprefix("I")))}
            yield from _through(used, {out: bits}, Kind.LUT)
    elif re.fullmatch(r"MUXF\d", cell.type):
        select = {"S": inputs.pop("S")}
        yield from _through(inputs, outputs, Kind.MUX, near=True)
        yield from _through(select, outputs, Kind.MUX)
    elif cell.type == "INV":
        yield from _through(inputs, outputs, Kind.WIRE)
    elif cell.type in ("CARRY4", "CARRY8"):
        yield from _carry(cell)
    elif cell.type == "DSP48E2" and not any(
        parameter.endswith("REG") and "1" in value for parameter, value in cell.parameters.items()
    ):
        yield from _through(inputs, outputs, Kind.DSP)
    elif re.fullmatch(r"SRL16E|SRLC32E|RAM\d+[XM].*", cell.type):
        yield from (_Arc(_REGISTER, net, Kind.LUT_RAM) for _, net in _nets(outputs))
        for pin, nets in inputs.items():
            if read := {out: bits for out, bits in outputs.items() if _reads(pin, out)}:
                yield from _through({pin: nets}, read, Kind.LUT)
            else:
                yield from (_Arc(net, _REGISTER, Kind.WIRE, pin=pin) for _, net in _nets({pin: nets}))
    else:
        yield from (_Arc(_REGISTER, net, _MEMORIES.get(cell.type, Kind.FLIP_FLOP)) for _, net in _nets(outputs))
        near = "D" if cell.type in FLIP_FLOPS else ""
        yield from (_Arc(net, _REGISTER, Kind.WIRE, pin == near, pin) for pin, net in _nets(inputs))


def _through(inputs: Pins, outputs: Pins, kind: Kind, *, near: bool = False) -> Iterator[_Arc]:
    return (_Arc(source, target, kind, near) for _, source in _nets(inputs) for _, target in _nets(outputs))


def _depends(table: int, pin: int) -> bool:
    """Whether the function of a LUT6, a table of 64 bits, depends on one of its inputs."""
    return any((table >> entry ^ table >> (entry ^ 1 << pin)) & 1 for entry in range(64))


def _reads(pin: str, out: str) -> bool:
    """Whether an input of a LUT memory is the address of a read output."""
    if match := re.fullmatch(r"ADDR([A-H])", pin):  # ADDRH is the write address
        return out == f"DO{match[1]}"
    return bool(re.fullmatch(r"(DPR)?A\d?", pin)) and not (pin.startswith("DPR") and out == "SPO")


def _carry(cell: Cell) -> Iterator[_Arc]:
    """Arcs of a carry chain: each sum and carry depends on the carry before and the inputs of its bit."""
    before = [
        (net, Kind.CARRY if pin == "CI" else Kind.ENTRY, pin == "CI")
        for pin in ("CI", "CYINIT")
        for net in cell.inputs.get(pin, [])
    ]
    carries = cell.outputs["CO"]
    sums = cell.outputs.get("O", [None] * len(carries))  # a comparison has none
    for data, select, out, carry in zip(cell.inputs["DI"], cell.inputs["S"], sums, carries, strict=True):
        here = [*before, (select, Kind.ENTRY, True)]
        for target, sources in ((out, here), (carry, [*here, (data, Kind.ENTRY, False)])):
            if target is not None:
                yield from (_Arc(source, target, kind, near) for source, kind, near in sources if source is not None)
        before = [(carry, Kind.CARRY, True)]
