"""Ports and instances of modules, as the Verilog of yosys has them."""

from p4sgd.build.check.folder import read_ports
from p4sgd.hw.verilog import instances, modules


def ports_of(text: str, top: str) -> dict[str, tuple[str, int]]:
    """The same ports: name → (direction, bits)."""
    return {port.name: (port.direction, port.bits) for port in read_ports(text, top)}


def instances_of(text: str, module: str) -> dict[str, str]:
    """Instances in a module of a Verilog text that yosys wrote: name → their module."""
    return {name: kind for kind, name in instances(modules(text)[module])}


def module_at(text: str, top: str, path: str) -> str:
    """Module of the cell that a path of instances leads to, ``a/b/c``."""
    for name in path.split("/"):
        top = instances_of(text, top)[name]
    return top
