"""Ports of a module, as its Verilog declares them."""

import re


def ports_of(text: str, top: str) -> dict[str, tuple[str, int]]:
    """Ports of the module ``top`` of a Verilog text that yosys wrote: name → (direction, bits)."""
    module = re.search(rf"^module {top}\(.*?^endmodule", text, re.MULTILINE | re.DOTALL)[0]
    found = re.findall(r"^ *(input|output) +(?:\[(\d+):0\] +)?(\w+) *;", module, re.MULTILINE)
    return {name: (direction, int(high or 0) + 1) for direction, high, name in found}
