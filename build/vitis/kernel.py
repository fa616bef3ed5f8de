"""A kernel, as far as Vitis has to be told of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from p4sgd.build.devices import Device
from p4sgd.build.floorplan import slice_dies
from p4sgd.build.registers import RegisterDocuments, aggregator_documents, cmac_documents, worker_documents
from p4sgd.build.verilog_ports import Bus, BusKind, find_buses
from p4sgd.hw.kernel.verilog import KernelVerilog, aggregator_kernel, cmac_kernel, worker_kernel
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.aggregator import AggregatorConfig, aggregator_map
from p4sgd.hw.spec.cmac import cmac_map, kernel_name
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.register_map import Access, Register, RegisterMap
from p4sgd.hw.spec.unstarted import CTRL

__all__ = [
    "FREE_CLOCK",
    "LIBRARY",
    "REFERENCE_CLOCK",
    "TRANSCEIVERS",
    "VENDOR",
    "VERSION",
    "Kernel",
    "aggregator",
    "cmac",
    "memory_bus",
    "worker",
]

VENDOR, LIBRARY, VERSION = "p4sgd.org", "kernel", "1.0"
"""With a kernel's name, what Vivado knows it by (VLNV)."""

REFERENCE_CLOCK, TRANSCEIVERS, FREE_CLOCK = "gt_refclk", "gt_serial", "clk_gt_freerun"
"""Interfaces of a MAC's kernel that are no AXI, and its port that is no interface."""


@dataclass(frozen=True)
class Kernel:
    """A kernel.

    Attributes
    ----------
    name
        Its name; its files are named likewise.
    verilog
        Its modules, and the ports of the top.
    control
        Its control block, as of ``ap_ctrl_hs`` (UG1393): XRT gives nobody the registers of other kernels.
    documents, prefix
        Its register map, and how the names of its files begin.
    pointers
        Register with the lower half of the address of what each memory port reads, by the name of the port's bus.
    scalars
        Other registers that are arguments, so that a kernel without memory has some.
    ip
        Module of the vendor's MAC in it, if it has one; then it has transceivers and two further clocks.
    """

    name: str
    verilog: KernelVerilog
    control: Register
    documents: RegisterDocuments
    prefix: str = ""
    pointers: Mapping[str, Register] = field(default_factory=dict)
    scalars: tuple[Register, ...] = ()
    ip: str | None = None

    @property
    def vlnv(self) -> str:
        """Vendor, library, name, version."""
        return f"{VENDOR}:{LIBRARY}:{self.name}:{VERSION}"

    @property
    def unit(self) -> str:
        """Name of its only instance, the one that Vitis would give it too."""
        return f"{self.name}_1"

    @cached_property
    def buses(self) -> list[Bus]:
        """The buses that the ports of its top form."""
        return find_buses(self.verilog.ports)

    def buses_of(self, kind: BusKind) -> list[Bus]:
        """Those of one kind."""
        return [bus for bus in self.buses if bus.kind is kind]


def memory_bus(number: int) -> str:
    """Bus of a worker's memory, numbered as in `WorkerConfig.memories`."""
    return f"m_axi_gmem{number}"


def worker(config: WorkerConfig, device: Device, build_id: int = 0) -> Kernel:
    """The worker's kernel, with register slices as the dies of a board's FPGA ask for."""
    banks = [(engine, port) for engine in range(config.engines) for port in range(config.ports)]
    addresses = [registers.lines_address(engine, port)[0] for engine, port in banks] + [registers.LABELS_ADDRESS[0]]
    return Kernel(
        "p4sgd_worker",
        worker_kernel(config, build_id=build_id, slices=[len(dies) for dies in slice_dies(config, device)]),
        registers.CTRL,
        worker_documents(config, build_id),
        pointers={memory_bus(number): register for number, register in enumerate(addresses)},
    )


def aggregator(config: AggregatorConfig, build_id: int = 0) -> Kernel:
    """The aggregator's kernel, which is never started."""
    return Kernel(
        "p4sgd_aggregator",
        aggregator_kernel(config, build_id=build_id),
        CTRL,
        aggregator_documents(config, build_id),
        "aggregator_",
        scalars=_writable(aggregator_map(config)),
    )


def cmac(port: int, build_id: int = 0) -> Kernel:
    """The kernel of the MAC of a QSFP28 port, which is never started.

    Each port has a kernel of its own, because its MAC has a place of its own.
    """
    name = kernel_name(port)
    ip = f"{name}_usplus"
    return Kernel(
        name,
        cmac_kernel(build_id=build_id, top=f"{name}_kernel", mac=ip),
        CTRL,
        cmac_documents(build_id),
        "cmac_",
        scalars=_writable(cmac_map()),
        ip=ip,
    )


def _writable(known: RegisterMap) -> tuple[Register, ...]:
    """Registers that the host writes."""
    written = {Access.RW, Access.STROBE, Access.W1C, Access.W1S}
    return tuple(register for register in known if {each.access for each in register.fields} & written)
