"""A mapped netlist: modules, their cells and what connects them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

__all__ = ["Cell", "Module", "Netlist", "Port"]

Bits = list[int | None]
"""Numbers of nets, within a module; None for a constant."""


class Port(NamedTuple):
    """A port of a module or a pin of a cell: its direction and its nets, least significant first."""

    output: bool
    bits: Bits


class Cell(NamedTuple):
    """An instance of a primitive or of a module."""

    name: str
    type: str
    parameters: Mapping[str, str]
    pins: Mapping[str, Port]


@dataclass(frozen=True)
class Module:
    """A module; ``names`` has those of the nets that the source names."""

    ports: Mapping[str, Port]
    cells: list[Cell]
    names: Mapping[int, str]


@dataclass(frozen=True)
class Netlist:
    """Modules by name, ``top`` among them; cells of other types are primitives or black boxes."""

    modules: Mapping[str, Module]
    top: str

    @classmethod
    def from_json(cls, document: Mapping[str, Any], top: str) -> Self:
        """Read what yosys's ``write_json`` wrote; only modules below ``top`` are kept."""
        found = document["modules"]
        modules: dict[str, Module] = {}
        wanted = [top]
        while wanted:
            name = wanted.pop()
            if name not in modules:
                modules[name] = _module(found[name])
                kinds = {cell.type for cell in modules[name].cells} & found.keys()
                wanted += [kind for kind in kinds if "blackbox" not in found[kind]["attributes"]]
        return cls(modules, top)


def _module(found: Mapping[str, Any]) -> Module:
    names: dict[int, str] = {}
    for name, net in found["netnames"].items():
        if net["hide_name"]:
            continue
        several = len(net["bits"]) > 1
        for index, bit in enumerate(net["bits"]):
            if isinstance(bit, int):
                full = f"{name}[{index}]" if several else name
                names[bit] = min(names.get(bit, full), full, key=lambda text: ("$" in text, len(text), text))
    return Module(
        {name: Port(port["direction"] == "output", _bits(port["bits"])) for name, port in found["ports"].items()},
        [
            Cell(
                name,
                cell["type"],
                cell["parameters"],
                {
                    pin: Port(cell["port_directions"].get(pin) == "output", _bits(bits))
                    for pin, bits in cell["connections"].items()
                },
            )
            for name, cell in found["cells"].items()
        ],
        names,
    )


def _bits(bits: list[int | str]) -> Bits:
    return [bit if isinstance(bit, int) else None for bit in bits]
