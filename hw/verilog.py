"""Amaranth to Verilog, the same bytes every time."""

import os
import warnings

from amaranth.back import verilog
from amaranth.lib import wiring

__all__ = ["to_verilog"]


def to_verilog(component: wiring.Component, name: str, *, platform: object = None) -> str:
    """Convert a component to Verilog text.

    Parameters
    ----------
    component
        The top level; its signature becomes the ports.
    name
        Name of the top module.
    platform
        Passed to ``elaborate``; None for simulation and vendor-neutral output.
    """
    os.environ.setdefault("AMARANTH_USE_YOSYS", "builtin")
    with warnings.catch_warnings():
        warnings.simplefilter("error", category=SyntaxWarning)
        text: str = verilog.convert(component, name=name, platform=platform, emit_src=False)
    return text
