"""Loads of the nets of a netlist of UltraScale+ cells, and the registers that its resets reach.

A net with many loads is slow, since they lie far apart: a reset most of all, which must leave all of them in the same
cycle. Vivado copies registers for such nets only if it finds them critical.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import NamedTuple

from p4sgd.build.estimate.synthesis import Netlist
from p4sgd.build.estimate.timing import CLOCK, Arc, End, cell_arcs

__all__ = ["MAX_LOADS", "MAX_RESETTABLE", "Loads", "Net", "count_loads"]


MAX_LOADS = 10_000
"""Number of loads that a net of the design may have, unless it is a clock."""

MAX_RESETTABLE = 1_000
"""Number of registers that the reset of an engine may reach."""


class Net(NamedTuple):
    """A net, and the number of pins that it drives."""

    name: str
    loads: int

    @property
    def keeps_rule(self) -> bool:
        """Whether the net has at most `MAX_LOADS`."""
        return self.loads <= MAX_LOADS


@dataclass(frozen=True)
class Loads:
    """Loads of the nets of a design.

    Attributes
    ----------
    nets
        The nets with the most loads, but for clocks, most first.
    resettable
        Number of registers whose next state depends on a reset, at any pin. A memory, a DSP slice and a black box count
        as one.
    """

    nets: list[Net]
    resettable: int


def count_loads(netlist: Netlist, count: int = 5) -> Loads:
    """Count the loads of every net, and follow the resets to the registers behind them.

    Parameters
    ----------
    netlist
        The design, without hierarchy.
    count
        Maximum number of nets to list.

    Raises
    ------
    ValueError
        If the netlist has submodules.
    """
    if len(netlist.modules) != 1:
        raise ValueError("loads are counted in netlists without hierarchy")
    top = netlist.modules[netlist.top]
    loads: Counter[int] = Counter()
    behind: dict[int, set[int]] = defaultdict(set)  # nets that depend on a net in the same cycle
    registers: dict[int, set[int]] = defaultdict(set)  # registers, by number of the cell, with an input on a net
    for number, cell in enumerate(top.cells):
        for pin, port in cell.pins.items():
            if not port.output and not CLOCK.fullmatch(pin):
                loads.update(net for net in port.bits if net is not None)
        for way in cell_arcs(cell):
            if isinstance(way, Arc):
                behind[way.source].add(way.target)
            elif isinstance(way, End):
                registers[way.net].add(number)
    reached = set(top.resets)
    waiting = list(reached)
    while waiting:
        found = behind[waiting.pop()] - reached
        reached |= found
        waiting += found
    return Loads(
        [Net(top.names.get(net, f"net {net}"), number) for net, number in loads.most_common(count)],
        len(set().union(*(registers[net] for net in reached))),
    )
