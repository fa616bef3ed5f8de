"""Amaranth to Verilog, the same bytes every time.

Amaranth to Verilog, the same bytes every time.

A component whose Verilog is made on its own.
"""

import os
import re
import warnings

from amaranth.back import verilog
from amaranth.hdl import ClockSignal, Instance, ResetSignal
from amaranth.lib import wiring
from amaranth.lib.wiring import Out

__all__ = ["BlackBox", "instances", "modules", "share_modules", "to_verilog"]


_MODULE = re.compile(r"^(?:\(\* [^\n]* \*\)\n)*module +(\S+) *(\(.*?^endmodule\n)\n?", re.MULTILINE | re.DOTALL)
"""A module with its attributes, and the empty line behind it: name, and all from its list of ports to its end."""

_INSTANCE = re.compile(r"^  (\\\S+)(?= +\S+ +\($)", re.MULTILINE)
"""An instance in a module: the name of its module, which Amaranth forms from the path to it, so that it is escaped."""

_NAMED_INSTANCE = re.compile(r"^  (\S+) +(\w+) \($", re.MULTILINE)
"""An instance in a module: its module, and its name."""

_START = re.compile(r"\\\$auto\$verilog_backend\.cc:\d+:dump_module\$\d+ ")
"""The register that starts a module's `always @*` blocks in simulation: yosys numbers them all, and needs one each."""


def to_verilog(component: wiring.Component, name: str, *, platform: object = None) -> str:
    """Convert a component to Verilog text, every module once.

    Parameters
    ----------
    component
        The top level; its signature becomes the ports.
    name
        Name of the top module.
    platform
        What ``elaborate`` gets: says how synchronizers are built, if not as Amaranth does by itself.
    """
    os.environ.setdefault("AMARANTH_USE_YOSYS", "builtin")
    with warnings.catch_warnings():
        warnings.simplefilter("error", category=SyntaxWarning)
        text: str = verilog.convert(component, name=name, platform=platform, emit_src=False, strip_internal_attrs=True)
    return share_modules(text)


def modules(text: str) -> dict[str, str]:
    """Modules of a Verilog text as `to_verilog` writes it: from the list of ports to the end, by name."""
    return {match[1]: match[2] for match in _MODULE.finditer(text)}


def instances(body: str) -> list[tuple[str, str]]:
    """Instances in the text of one of the `modules`: the name of the module, and that of the instance."""
    return [(match[1], match[2]) for match in _NAMED_INSTANCE.finditer(body)]


def share_modules(text: str) -> str:
    r"""Replace modules that are the same by the first of them.

    Amaranth writes a module for every instance, ``\top.tree0``, ``\top.tree1`` and so on. Those whose text is the same
    become one, then those that differed only in the names of such modules, and so on up to the top, which stays.

    Parameters
    ----------
    text
        Verilog as yosys writes what Amaranth made.
    """
    text = _START.sub(r"\\$start ", text)
    while True:
        first: dict[str, str] = {}
        shared = {name: first.setdefault(body, name) for name, body in modules(text).items()}
        if len(first) == len(shared):
            return text
        text = _MODULE.sub(lambda match: match[0] if shared[match[1]] == match[1] else "", text)  # noqa: B023
        text = _INSTANCE.sub(lambda match: f"  {shared.get(match[1], match[1])}", text)  # noqa: B023


class BlackBox(wiring.Component):
    """Stands for a component in a larger design, where it is an instance of a module that is written elsewhere.

    However many there are, the component is elaborated and written once.

    Parameters
    ----------
    signature
        Of the component, which is in the clock domain ``sync`` and has a reset.
    module
        Name under which :func:`p4sgd.hw.verilog.to_verilog` writes the component.

    Members
    -------
    As in the signature.
    """

    def __init__(self, signature: wiring.Signature, module: str) -> None:
        self._module = module
        super().__init__(signature)

    def elaborate(self, platform: object) -> Instance:
        """The instance, its ports named as in Verilog."""
        ports = {"i_clk": ClockSignal(), "i_rst": ResetSignal()}
        for path, member, value in self.signature.flatten(self):
            ports[f"{'o' if member.flow is Out else 'i'}_{'__'.join(map(str, path))}"] = value
        return Instance(self._module, **ports)
