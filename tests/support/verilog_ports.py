"""Ports and instances of modules, as the Verilog of yosys has them."""

import re

from p4sgd.hw.verilog import instances, modules


def ports_of(text: str, top: str) -> dict[str, tuple[str, int]]:
    """Ports of the module ``top`` of a Verilog text that yosys wrote: name → (direction, bits)."""
    module = re.search(rf"^module {top}\(.*?^endmodule", text, re.MULTILINE | re.DOTALL)[0]
    found = re.findall(r"^ *(input|output) +(?:\[(\d+):0\] +)?(\w+) *;", module, re.MULTILINE)
    return {name: (direction, int(high or 0) + 1) for direction, high, name in found}


def instances_of(text: str, module: str) -> dict[str, str]:
    """Instances in a module of a Verilog text that yosys wrote: name → their module."""
    return {name: kind for kind, name in instances(modules(text)[module])}


def module_at(text: str, top: str, path: str) -> str:
    """Module of the cell that a path of instances leads to, ``a/b/c``.

    Raises
    ------
    KeyError
        If there is none.
    """
    for name in path.split("/"):
        top = instances_of(text, top)[name]
    return top
