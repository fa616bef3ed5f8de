"""What tests of boards look at: the pins of a platform's resources, and the constraints that a plan has for them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from amaranth.build import DiffPairs, Subsignal


@dataclass(frozen=True)
class Line:
    """One wire or differential pair of a resource, as ``qsfp28_0.tx[3]``."""

    name: str
    index: int
    pins: tuple[str, ...]
    """One, or positive and negative."""
    attrs: dict[str, str]
    clock: float | None
    """Hz, if it is one."""

    def __str__(self) -> str:
        return f"{self.name}[{self.index}]"


def lines(resources) -> Iterator[Line]:
    """All of some resources."""
    for resource in resources:
        yield from _lines(resource, f"{resource.name}_{resource.number}", resource.attrs)


def _lines(signal: Subsignal, name: str, attrs: dict[str, str]) -> Iterator[Line]:
    for part in signal.ios:
        if isinstance(part, Subsignal):
            yield from _lines(part, f"{name}.{part.name}", {**attrs, **part.attrs})
            continue
        sides = (part.p.names, part.n.names) if isinstance(part, DiffPairs) else (part.names,)
        for index, pins in enumerate(zip(*sides, strict=True)):
            yield Line(name, index, pins, dict(attrs), signal.clock.frequency if signal.clock else None)


def pin_properties(xdc: str) -> dict[str, dict[str, str]]:
    """Properties of every port in a file of constraints, LOC among them."""
    found: dict[str, dict[str, str]] = {}
    for name, value, port in re.findall(r'^set_property (\w+) "?(\w+)"? \[get_ports "([^"]+)"\]$', xdc, re.MULTILINE):
        assert name not in found.setdefault(port, {}), f"{name} of {port} is set twice"
        found[port][name] = value
    return found
