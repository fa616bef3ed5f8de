"""Verilog of the kernels, with port names from which the vendor's tools infer buses."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from amaranth.hdl import Module, Shape, ShapeLike
from amaranth.lib import data, wiring
from amaranth.lib.wiring import Flow, In, Out

from p4sgd.hw.bus.axi import Axi4LiteSignature, Axi4Signature
from p4sgd.hw.kernel.cmac import CmacKernel, EmulatedCmacKernel
from p4sgd.hw.kernel.kernels import AggregatorKernel, WorkerKernel
from p4sgd.hw.kernel.selftest import SelfTestKernel
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.ultrascale import UltraScalePlus
from p4sgd.hw.verilog import BlackBox, DebugCore, instances, modules, to_verilog
from p4sgd.hw.worker.engine import Engine
from p4sgd.hw.worker.worker import ENGINE

__all__ = ["CMAC_IP", "CMAC_KERNEL", "SELFTEST_KERNEL", "WORKER_KERNEL", "KernelVerilog", "VendorPorts"]
__all__ += ["aggregator_kernel", "cmac_kernel", "emulated_cmac_kernel", "selftest_kernel", "worker_kernel"]


_ATTRIBUTES = {"lock": (1, 0), "cache": (4, 0b0011), "prot": (3, 0), "qos": (4, 0)}
"""Width and value of the attributes of a request, as UG1037 recommends them for masters in FPGAs."""


class _FlatPort(NamedTuple):
    """A port of `VendorPorts` and the signal of the component that it is connected to."""

    name: str
    flow: Flow
    shape: ShapeLike
    inner: Any  # the component's own signal; None for a port that the component does not have
    constant: int = 0  # value of an output that has no ``inner``


class VendorPorts(wiring.Component):
    """A component with flat ports whose names let Vivado and Vitis infer buses. Adds no logic and no registers.

    A bus named ``prefix`` has the ports ``<prefix>_<channel><field>`` if it is AXI4 or AXI4-Lite, ``<prefix>_t<field>``
    if it is a single stream, where ``valid`` and ``ready`` are fields too; in an array a number follows the prefix:
    ``memory[0].ar.valid`` is ``m_axi_gmem0_arvalid``. Members without a prefix keep Amaranth's names. Clock and reset
    are those of the ``sync`` domain, and the component becomes the submodule ``component``.

    ``prefixes`` are by the name of the component's member: AXI4, AXI4-Lite, a stream of structs such as `FrameBeat`, or
    an array of one; else TypeError. ``id_bits`` is the width of the IDs of AXI4 buses, or 0; outgoing IDs are 0,
    incoming ones ignored. With ``attributes`` requests say: normal memory, not cached, modifiable and bufferable;
    unprivileged secure data accesses without priority. ValueError for a name that is no member's, or is given twice.
    """

    def __init__(
        self, component: wiring.Component, prefixes: Mapping[str, str], *, id_bits: int = 0, attributes: bool = False
    ) -> None:
        self._component = component
        for name in prefixes:
            if name not in component.signature.members:
                raise ValueError(f"{type(component).__name__} has no member {name!r} to give a prefix to")
        self._ports = list(_ports(component, prefixes, id_bits, attributes))
        members: dict[str, Any] = {}
        for port in self._ports:
            if port.name in members:
                raise ValueError(f"two ports would be named {port.name!r}")
            members[port.name] = port.flow(port.shape)
        super().__init__(members)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.component = self._component
        for port in self._ports:
            outer = getattr(self, port.name)
            if port.flow is Out:
                m.d.comb += outer.eq(port.constant if port.inner is None else port.inner)
            elif port.inner is not None:
                m.d.comb += port.inner.eq(outer)
        return m


def _ports(
    component: wiring.Component, prefixes: Mapping[str, str], id_bits: int, attributes: bool
) -> Iterator[_FlatPort]:
    """Flat ports of a component, as described in `VendorPorts`."""
    for path, member, value in component.signature.flatten(component):
        head = str(path[0])
        if head not in prefixes:
            yield _FlatPort("__".join(map(str, path)), member.flow, member.shape, value)
            continue
        numbers = "_".join(str(part) for part in path if isinstance(part, int))
        *channels, last = [str(part) for part in path[1:] if isinstance(part, str)] or [""]
        is_bus = len(channels) <= 1 and last in ("payload", "valid", "ready")
        if not is_bus or (last == "payload" and not isinstance(member.shape, data.StructLayout)):
            raise TypeError(f"{head} of {type(component).__name__} is neither AXI nor a stream of structs")
        channel = channels[0] if channels else "t"
        start = f"{prefixes[head]}{numbers}_{channel}"
        if last != "payload":
            yield _FlatPort(f"{start}{last}", member.flow, member.shape, value)
            continue
        for field, part in member.shape:
            yield _FlatPort(f"{start}{field}", member.flow, part.shape, value[field])
        bus = component.signature.members[head].signature
        if not isinstance(bus, Axi4Signature):
            continue
        if id_bits and channel != "w":
            yield _FlatPort(f"{start}id", member.flow, id_bits, None)
        if attributes and channel in ("aw", "ar"):
            for name, (bits, value) in _ATTRIBUTES.items():
                yield _FlatPort(f"{start}{name}", member.flow, bits, None, value)


WORKER_KERNEL = "p4sgd_worker_kernel"
AGGREGATOR_KERNEL = "p4sgd_aggregator_kernel"
SELFTEST_KERNEL = "p4sgd_selftest_kernel"
CMAC_KERNEL = "p4sgd_cmac_kernel"
EMULATED_CMAC_KERNEL = "p4sgd_emulated_cmac_kernel"  # top modules of the kernels
CMAC_IP = "p4sgd_cmac_usplus"  # module of the vendor's MAC in the MAC's kernel
ID_BITS = 1  # of memory ports; all IDs are 0

_PLACED = re.compile(r"\\\S+\.(gmem\d+_slice\d+|test\d+)")
"""Name of the module of a register slice to memory, or of a `PortTest` of a `SelfTestKernel`."""

_SYNCHRONIZER = re.compile(r"^  reg (\[\d+:0\] )?stage0 ", re.MULTILINE)
"""First register of one of the synchronizers of `UltraScalePlus`, in its module."""


class Port(NamedTuple):
    """A port of a top module."""

    name: str
    direction: str  # ``input`` or ``output``
    bits: int


@dataclass(frozen=True)
class KernelVerilog:
    """Verilog of a kernel."""

    top: str  # name of the top module
    text: str  # all modules
    ports: tuple[Port, ...]  # ports of the top module, in order
    debug_cores: tuple[DebugCore, ...] = ()  # of which there are instances; like other IP not part of the text


def with_ports(kernel: wiring.Component) -> VendorPorts:
    """A kernel whose AXI4-Lite port ``name`` is ``s_axi_<name>_*``, AXI4 ``m_axi_<name>_*``, stream ``<name>_t*``."""
    prefixes = {}
    for name, member in kernel.signature.members.items():
        if not member.is_port:
            kinds = {"s_axi_": Axi4LiteSignature, "m_axi_": Axi4Signature, "": wiring.Signature}
            prefixes[name] = next(kind for kind, bus in kinds.items() if isinstance(member.signature, bus)) + name
    return VendorPorts(kernel, prefixes, id_bits=ID_BITS, attributes=True)


def worker_kernel(
    config: WorkerConfig, *, build_id: int = 0, slices: Sequence[int] = (), debug: bool = False
) -> KernelVerilog:
    """Verilog of the worker's kernel, with the engine written once; for ``debug`` there are debug cores."""
    engine = Engine(config)
    engine_text = to_verilog(engine, ENGINE, platform=UltraScalePlus())
    kernel = WorkerKernel(config, build_id=build_id, engine=lambda _: BlackBox(engine.signature, ENGINE), slices=slices)
    return _keep_placed(_written(kernel, WORKER_KERNEL, engine_text, debug=debug))


def selftest_kernel(
    config: WorkerConfig, *, cages: int = 1, build_id: int = 0, slices: Sequence[int] = ()
) -> KernelVerilog:
    """Verilog of the self-test's kernel."""
    kernel = SelfTestKernel(config, cages=cages, build_id=build_id, slices=slices)
    return _keep_placed(_written(kernel, SELFTEST_KERNEL))


def aggregator_kernel(config: AggregatorConfig, *, build_id: int = 0) -> KernelVerilog:
    """Verilog of the aggregator's kernel."""
    return _written(AggregatorKernel(config, build_id=build_id), AGGREGATOR_KERNEL)


def cmac_kernel(*, build_id: int = 0, top: str = CMAC_KERNEL, mac: str = CMAC_IP, debug: bool = False) -> KernelVerilog:
    """Verilog of the MAC's kernel, with an instance of an IP that is not part of the text.

    A design with several MACs needs a top module and an IP of each, because every IP is placed separately.
    """
    written = _written(CmacKernel(build_id=build_id, mac=mac), top, debug=debug)
    # The constraints name synchronizers and what they sample by their paths, so all modules on these paths are kept.
    bodies = modules(written.text)
    kept = {name for name, body in bodies.items() if _SYNCHRONIZER.search(body)}
    while more := {name for name, body in bodies.items() if kept & {module for module, _ in instances(body)}} - kept:
        kept |= more
    return replace(written, text=_keep(written.text, kept - {top}))


def emulated_cmac_kernel(*, build_id: int = 0) -> KernelVerilog:
    """Verilog of the kernel that stands in for a MAC's in emulation."""
    return _written(EmulatedCmacKernel(build_id=build_id), EMULATED_CMAC_KERNEL)


def _keep_placed(kernel: KernelVerilog) -> KernelVerilog:
    """Keep what is placed on a die by name: Vivado may otherwise dissolve modules this small."""
    return replace(kernel, text=_keep(kernel.text, filter(_PLACED.fullmatch, modules(kernel.text))))


def _keep(text: str, names: Iterable[str]) -> str:
    """Mark modules so that Vivado does not dissolve them (UG901, KEEP_HIERARCHY)."""
    for name in names:
        text = text.replace(f"\nmodule {name} ", f'\n(* keep_hierarchy = "yes" *)\nmodule {name} ')
    return text


def _written(kernel: wiring.Component, top: str, *more: str, debug: bool = False) -> KernelVerilog:
    """Verilog of a kernel with vendor port names, followed by the texts ``more``."""
    component = with_ports(kernel)
    ports = tuple(
        Port(name, "input" if member.flow is In else "output", Shape.cast(member.shape).width)
        for name, member in component.signature.members.items()
    )
    platform = UltraScalePlus(debug=debug)
    text = "\n".join([to_verilog(component, top, platform=platform), *more])
    return KernelVerilog(top, text, ports, tuple(platform.debug_cores or ()))
