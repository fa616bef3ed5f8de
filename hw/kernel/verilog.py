"""Verilog of the kernels, with port names from which the vendor's tools infer buses."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from amaranth.lib import wiring

from p4sgd.hw.bus.ports import FlatPorts, Port, kernel_names
from p4sgd.hw.kernel.cmac import CmacKernel, EmulatedCmacKernel
from p4sgd.hw.kernel.kernels import AggregatorKernel, WorkerKernel
from p4sgd.hw.kernel.selftest import SelfTestKernel
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.ultrascale import UltraScalePlus
from p4sgd.hw.verilog import BlackBox, DebugCore, instances, modules, to_verilog
from p4sgd.hw.worker.engine import Engine
from p4sgd.hw.worker.worker import ENGINE

__all__ = ["CMAC_IP", "CMAC_KERNEL", "SELFTEST_KERNEL", "WORKER_KERNEL", "KernelVerilog"]
__all__ += ["aggregator_kernel", "cmac_kernel", "emulated_cmac_kernel", "selftest_kernel", "worker_kernel"]


WORKER_KERNEL = "p4sgd_worker_kernel"
AGGREGATOR_KERNEL = "p4sgd_aggregator_kernel"
SELFTEST_KERNEL = "p4sgd_selftest_kernel"
CMAC_KERNEL = "p4sgd_cmac_kernel"
EMULATED_CMAC_KERNEL = "p4sgd_emulated_cmac_kernel"  # top modules of the kernels
CMAC_IP = "p4sgd_cmac_usplus"  # module of the vendor's MAC in the MAC's kernel

_PLACED = re.compile(r"\\\S+\.(gmem\d+_slice\d+|test\d+)")
"""Name of the module of a register slice to memory, or of a `PortTest` of a `SelfTestKernel`."""

_SYNCHRONIZER = re.compile(r"^  reg (\[\d+:0\] )?stage0 ", re.MULTILINE)
"""First register of one of the synchronizers of `UltraScalePlus`, in its module."""


@dataclass(frozen=True)
class KernelVerilog:
    """Verilog of a kernel."""

    top: str  # name of the top module
    text: str  # all modules
    ports: tuple[Port, ...]  # ports of the top module, in order
    debug_cores: tuple[DebugCore, ...] = ()  # of which there are instances; like other IP not part of the text


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
    component = FlatPorts(kernel, kernel_names(kernel))
    platform = UltraScalePlus(debug=debug)
    text = "\n".join([to_verilog(component, top, platform=platform), *more])
    return KernelVerilog(top, text, component.ports, tuple(platform.debug_cores or ()))
