"""Verilog of the kernels, with the ports that the vendor's tools find in it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from amaranth.hdl import Shape
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from p4sgd.hw.bus import axi4, axi4_lite
from p4sgd.hw.bus.vendor_ports import VendorPorts
from p4sgd.hw.external import External
from p4sgd.hw.kernel.aggregator_kernel import AggregatorKernel
from p4sgd.hw.kernel.cmac_kernel import CmacKernel
from p4sgd.hw.kernel.synchronizers import MarkedSynchronizers
from p4sgd.hw.kernel.worker_kernel import WorkerKernel
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.verilog import to_verilog
from p4sgd.hw.worker.engine import Engine
from p4sgd.hw.worker.verilog import ENGINE

__all__ = [
    "AGGREGATOR_KERNEL",
    "CMAC_IP",
    "CMAC_KERNEL",
    "ID_BITS",
    "WORKER_KERNEL",
    "KernelVerilog",
    "Port",
    "aggregator_kernel",
    "cmac_kernel",
    "with_ports",
    "worker_kernel",
]

WORKER_KERNEL = "p4sgd_worker_kernel"
"""Top module of the worker's kernel."""

AGGREGATOR_KERNEL = "p4sgd_aggregator_kernel"
"""Top module of the aggregator's kernel."""

CMAC_KERNEL = "p4sgd_cmac_kernel"
"""Top module of a MAC's kernel."""

CMAC_IP = "p4sgd_cmac_usplus"
"""Module of the vendor's MAC in it."""

ID_BITS = 1
"""Width of the IDs of memory ports, all of which are 0."""

_SLICE = re.compile(r"^(?=module \\\S+\.gmem\d+_slice\d+ )", re.MULTILINE)
"""Where a register slice of a `WorkerKernel` begins."""


class Port(NamedTuple):
    """A port of a top module."""

    name: str
    direction: str
    """``input`` or ``output``."""
    bits: int


@dataclass(frozen=True)
class KernelVerilog:
    """A kernel's Verilog.

    Attributes
    ----------
    top
        Its top module.
    text
        All modules.
    ports
        Those of the top, in their order.
    """

    top: str
    text: str
    ports: tuple[Port, ...]


def with_ports(kernel: wiring.Component) -> VendorPorts:
    """Give a kernel the port names that the vendor's tools recognise.

    An AXI4-Lite bus ``name`` becomes ``s_axi_<name>_*``, an AXI4 one ``m_axi_<name>_*``, a stream ``<name>_t*``.
    """
    prefixes = {}
    for name, member in kernel.signature.members.items():
        if member.is_port:
            continue
        match member.signature:
            case axi4_lite.Signature():
                prefixes[name] = f"s_axi_{name}"
            case axi4.Signature():
                prefixes[name] = f"m_axi_{name}"
            case _:
                prefixes[name] = name
    return VendorPorts(kernel, prefixes, id_bits=ID_BITS, attributes=True)


def worker_kernel(config: WorkerConfig, *, build_id: int = 0, slices: Sequence[int] = ()) -> KernelVerilog:
    """The worker's kernel, in which an engine is written once, as in :func:`p4sgd.hw.worker.verilog.worker_verilog`.

    Parameters are those of a `WorkerKernel`. Its register slices are marked: Vivado may dissolve modules that small,
    even where it rebuilds the hierarchy, and then none could be put on its die by its name (UG901).
    """
    engine = Engine(config)
    kernel = WorkerKernel(config, build_id=build_id, engine=lambda _: External(engine.signature, ENGINE), slices=slices)
    written = _written(kernel, WORKER_KERNEL, to_verilog(engine, ENGINE))
    return replace(written, text=_SLICE.sub('(* keep_hierarchy = "yes" *)\n', written.text))


def aggregator_kernel(config: AggregatorConfig, *, build_id: int = 0) -> KernelVerilog:
    """The aggregator's kernel."""
    return _written(AggregatorKernel(config, build_id=build_id), AGGREGATOR_KERNEL)


def cmac_kernel(*, build_id: int = 0, top: str = CMAC_KERNEL, mac: str = CMAC_IP) -> KernelVerilog:
    """The kernel of a MAC, with an instance of an IP that is not in its text.

    Parameters
    ----------
    build_id
        As of a `CmacKernel`.
    top, mac
        Names of the top module and of the IP: a design with several MACs needs them apart, since each IP has its place.
    """
    return _written(CmacKernel(build_id=build_id, mac=mac), top)


def _written(kernel: wiring.Component, top: str, *more: str) -> KernelVerilog:
    component = with_ports(kernel)
    ports = tuple(
        Port(name, "input" if member.flow is In else "output", Shape.cast(member.shape).width)
        for name, member in component.signature.members.items()
    )
    return KernelVerilog(top, "\n".join([to_verilog(component, top, platform=MarkedSynchronizers()), *more]), ports)
