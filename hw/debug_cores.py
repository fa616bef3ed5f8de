"""The vendor's debug cores, which show signals of a running design over JTAG or PCI Express.

They are instances in the design, as UG1393 (Adding Debug IP to RTL Kernels) and UG908 (HDL Instantiation) describe it.
To mark nets (MARK_DEBUG) needs a step after synthesis in which cores are inserted: v++ has none for a kernel's inside.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from amaranth.hdl import Instance, Module, Value, ValueLike

__all__ = ["CoreKind", "DebugCore", "add_debug_core"]


class CoreKind(Enum):
    """Kind of a debug core; the value is the IP's name."""

    ANALYSER = "ila"  # integrated logic analyser (PG172): records its probes around a trigger
    STATUS = "vio"  # virtual input and output (PG159), here without outputs: shows its probes, and which of them move


@dataclass(frozen=True)
class DebugCore:
    """A debug core that a design has an instance of."""

    kind: CoreKind
    module: str  # name of the IP's module
    widths: tuple[int, ...]  # of the probes, in order


def add_debug_core(
    m: Module, platform: object, kind: CoreKind, module: str, clock: Value, probes: Sequence[ValueLike]
) -> None:
    """Add a debug core that samples ``probes`` at ``clock``, if the platform asks for debug cores.

    Such a platform has a list ``debug_cores`` (`p4sgd.hw.kernel.clocking.MarkedSynchronizers`), which gets the core. A
    core of status has synchronizers, so its probes may have other clocks.
    """
    cores: list[DebugCore] | None = getattr(platform, "debug_cores", None)
    if cores is None:
        return
    values = [Value.cast(value) for value in probes]
    port = "probe" if kind is CoreKind.ANALYSER else "probe_in"
    ports = {f"i_{port}{number}": value for number, value in enumerate(values)}
    m.submodules[kind.value] = Instance(module, i_clk=clock, **ports)
    cores.append(DebugCore(kind, module, tuple(map(len, values))))
