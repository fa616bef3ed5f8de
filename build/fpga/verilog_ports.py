"""The ports of a module, as its Verilog declares them, and the buses that they form by their names."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from p4sgd.hw.kernel.verilog import Port
from p4sgd.hw.verilog import modules

__all__ = ["Bus", "BusKind", "find_buses", "read_ports"]


_PORT = re.compile(r"^ *(input|output|inout) +(?:wire +|reg +)?(?:\[(\d+):0\] +)?(\w+) *;", re.MULTILINE)

_BUS = re.compile(r"^((?:[sm]_axi|axis)_\w+?)_((?:aw|w|b|ar|r)(?:addr|data|valid)|t(?:data|valid))$")
"""A port that a bus cannot be without: the bus's name, and the port's within it."""


_STARTS = ("tvalid", "arvalid", "awvalid")
"""What the master of a bus begins a transfer with."""


class BusKind(Enum):
    """What a bus is, by the first letters of its name."""

    CONTROL = "s_axi"
    """AXI4-Lite, of which the module is the slave."""
    MEMORY = "m_axi"
    """AXI4, of which it is the master."""
    STREAM = "axis"
    """AXI4-Stream, either way."""


@dataclass(frozen=True)
class Bus:
    """A bus of a module.

    Attributes
    ----------
    name
        What its ports' names begin with.
    kind
        What it is.
    data_bits
        Width of its data.
    address_bits
        Width of its addresses; 0 if it is a stream.
    is_master
        Whether the module begins transfers: always at a memory, never at the control bus.
    reads, writes
        Whether it has the channels for that; a stream has neither.
    """

    name: str
    kind: BusKind
    data_bits: int
    address_bits: int
    is_master: bool
    reads: bool
    writes: bool


def read_ports(verilog: str, top: str) -> list[Port]:
    """Ports of a module in Verilog as yosys writes it, in the order of their declarations.

    Raises
    ------
    KeyError
        If there is no such module.
    """
    found = _PORT.findall(modules(verilog)[top])
    return [Port(name, direction, int(high or 0) + 1) for direction, high, name in found]


def find_buses(ports: Iterable[Port]) -> list[Bus]:
    """The buses that ports form, by kind and then in the order of the ports."""
    signals: dict[str, dict[str, Port]] = {}
    for port in ports:
        if match := _BUS.match(port.name):
            signals.setdefault(match[1], {})[match[2]] = port
    order = list(BusKind)
    return sorted((_bus(name, members) for name, members in signals.items()), key=lambda bus: order.index(bus.kind))


def _bus(name: str, signals: dict[str, Port]) -> Bus:
    kind = next(kind for kind in BusKind if name.startswith(f"{kind.value}_"))
    bits = {field: port.bits for field, port in signals.items()}
    is_master = any(port.direction == "output" for field, port in signals.items() if field in _STARTS)
    return Bus(
        name,
        kind,
        max(bits.get(field, 0) for field in ("tdata", "rdata", "wdata")),
        max(bits.get(field, 0) for field in ("araddr", "awaddr")),
        is_master,
        "arvalid" in signals,
        "awvalid" in signals,
    )
