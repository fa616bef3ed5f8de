"""What v++ links: kernels, the memory of every port, streams between them, and wires to the shell (UG1393)."""

from dataclasses import dataclass, field

from p4sgd.build.marking import mark
from p4sgd.build.vitis.kernel import Kernel
from p4sgd.build.vitis.shell import Shell
from p4sgd.hw.spec.clock import CLOCK_NS

__all__ = ["Design", "bank", "link_configuration"]

_FIFO_DEPTH = 16
"""Beats of the FIFO in a stream, so that no ready signal crosses from die to die in one cycle."""


@dataclass(frozen=True)
class Design:
    """What an image of the FPGA is made of; each kernel is there once.

    Attributes
    ----------
    kernels
        The kernels.
    memories
        Memory of a memory port, as `Shell` names it; by the name of the port, ``<instance>.<bus>``.
    streams
        Streams, from port to port.
    wires
        What else is connected: pairs of ``<instance>/<port>`` and a name in the shell.
    dies
        Die of an instance that is whole on one.
    """

    kernels: tuple[Kernel, ...]
    memories: dict[str, str] = field(default_factory=dict)
    streams: tuple[tuple[str, str], ...] = ()
    wires: tuple[tuple[str, str], ...] = ()
    dies: dict[str, int] = field(default_factory=dict)


def bank(channels: range, other: str) -> str:
    """Pseudo channels as v++ names them, or the other memory if there are none."""
    if not channels:
        return other
    return f"HBM[{channels[0]}]" if len(channels) == 1 else f"HBM[{channels[0]}:{channels[-1]}]"


def link_configuration(design: Design, shell: Shell, summary: str, command: str) -> str:
    """A file for ``v++ --link --config``.

    Parameters
    ----------
    design
        What is linked.
    shell
        The board's.
    summary
        What it is, for a comment.
    command
        Command that makes the file.
    """
    lines = [
        mark("# {}", command),
        f"# What v++ links: {summary}.",
        "",
        f"platform={shell.platform}",
        f"kernel_frequency={1000 // CLOCK_NS}",
        "save-temps=1",
        "",
        "[connectivity]",
        *(f"nk={kernel.name}:1:{kernel.unit}" for kernel in design.kernels),
        *(f"sp={port}:{memory}" for port, memory in design.memories.items()),
        *(f"stream_connect={source}:{sink}:{_FIFO_DEPTH}" for source, sink in design.streams),
        *(f"connect={one}:{other}" for one, other in design.wires),
        *(f"slr={unit}:SLR{die}" for unit, die in design.dies.items()),
    ]
    return "\n".join(lines) + "\n"
