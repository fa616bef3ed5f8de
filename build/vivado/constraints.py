"""Constraints: pins and clocks of the board, and the clock of a module alone."""

from typing import Any

from p4sgd.build.boards.alveo_u280 import CONFIGURATION, AlveoU280Platform
from p4sgd.build.marking import mark

__all__ = ["board_constraints", "clock_constraints"]


def clock_constraints(port: str, megahertz: int, command: str) -> str:
    """A module's clock, where nothing else is around it."""
    return f"{mark('# {}', command)}\ncreate_clock -period {1000 / megahertz:.3f} -name clock [get_ports {port}]\n"


_PAIRS = {
    "pcie_refclk": ("pcie_refclk", 1),
    "hbm_refclk": ("ddr4_refclk", 0),
    "qsfp0_refclk": ("qsfp28_refclk", 0),
}
"""Clocks of the design that come in pairs, and their resources; that of HBM is one of the two for DDR4."""


def board_constraints(command: str) -> str:
    """Pins of the block design's ports on an Alveo U280, and what the card wants, from `AlveoU280Platform`.

    Transceivers have the places that the IP says.
    """
    platform = AlveoU280Platform()
    lines = [mark("# {}", command)]
    for name, (resource, number) in _PAIRS.items():
        found = platform.lookup(resource, number)
        pair = found.ios[0]
        for letter, pins in (("p", pair.p), ("n", pair.n)):
            lines += _pin(f"{name}_clk_{letter}", pins.names[0], found.attrs)
        period = 1e9 / found.clock.frequency
        lines.append(f"create_clock -period {period:.3f} -name {name} [get_ports {name}_clk_p]")
    reset = next(each for each in platform.lookup("pcie", 0).ios if each.name == "rst")
    lines += _pin("pcie_perst_n", reset.ios[0].names[0], reset.attrs)
    too_hot = platform.lookup("hbm_cattrip", 0)
    lines += _pin("hbm_cattrip", too_hot.ios[0].names[0], too_hot.attrs)
    lines.append("set_false_path -from [get_ports pcie_perst_n]")
    return "\n".join(lines) + "\n" + CONFIGURATION


def _pin(port: str, pin: str, attributes: Any) -> list[str]:
    return [
        f"set_property PACKAGE_PIN {pin} [get_ports {port}]",
        *(f"set_property {name} {value} [get_ports {port}]" for name, value in attributes.items()),
    ]
