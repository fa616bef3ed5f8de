"""A kernel, as far as Vitis has to be told of it, and its XML.

A kernel, as far as Vitis has to be told of it.

What Vitis and its runtime read of a kernel: ports, and arguments with their registers (UG1393).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from xml.etree import ElementTree

from p4sgd.build.fpga.verilog_ports import Bus, BusKind, find_buses
from p4sgd.build.generate.artifacts import header_comment
from p4sgd.build.generate.devices import Device
from p4sgd.build.generate.floorplan import slice_dies
from p4sgd.build.generate.register_documents import (
    RegisterDocuments,
    aggregator_documents,
    cmac_documents,
    worker_documents,
)
from p4sgd.hw.kernel.verilog import KernelVerilog, aggregator_kernel, cmac_kernel, worker_kernel
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.aggregator import AggregatorConfig, aggregator_map
from p4sgd.hw.spec.cmac import cmac_map, kernel_name
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.register_map import ADDRESS_BITS, CTRL, Access, Register, RegisterMap

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
    "kernel_xml",
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


_MODES = {BusKind.CONTROL: "slave", BusKind.MEMORY: "master"}

_SCALAR, _POINTER, _STREAM = "0", "1", "4"
"""Kinds of arguments (addressQualifier)."""


def kernel_xml(kernel: Kernel, command: str) -> str:
    """The ``kernel.xml`` of a kernel.

    Pointers come first, so that the argument of memory ``i`` has the number ``i``, by which the runtime asks for the
    memory that an argument is in. The kernel's interrupt registers read as 0, so it has no interrupt.

    Parameters
    ----------
    kernel
        The kernel.
    command
        Command that makes the file.
    """
    root = ElementTree.Element("root", versionMajor="1", versionMinor="6")
    words, _, _ = command.partition(" --")  # two dashes may not be in a comment; the manifest has all of the command
    root.append(ElementTree.Comment(header_comment(" {} ", words)))
    element = ElementTree.SubElement(
        root,
        "kernel",
        name=kernel.name,
        language="ip_c",
        vlnv=kernel.vlnv,
        attributes="",
        preferredWorkGroupSizeMultiple="0",
        workGroupSize="1",
        interrupt="false",
        hwControlProtocol="ap_ctrl_hs",
    )
    ports = ElementTree.SubElement(element, "ports")
    for bus in kernel.buses:
        ElementTree.SubElement(ports, "port", _port(bus))
    arguments = ElementTree.SubElement(element, "args")
    for number, attributes in enumerate(_arguments(kernel)):
        ElementTree.SubElement(arguments, "arg", attributes | {"id": str(number)})
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _port(bus: Bus) -> dict[str, str]:
    width = str(bus.data_bits)
    if bus.kind is BusKind.STREAM:
        mode = "write_only" if bus.is_master else "read_only"
        return {"name": bus.name, "mode": mode, "dataWidth": width, "portType": "stream"}
    size = ADDRESS_BITS if bus.kind is BusKind.CONTROL else bus.address_bits
    return {
        "name": bus.name,
        "mode": _MODES[bus.kind],
        "range": f"{1 << size:#x}" if bus.kind is BusKind.CONTROL else f"0x{(1 << size) - 1:X}",
        "dataWidth": width,
        "portType": "addressable",
        "base": "0x0",
    }


def _arguments(kernel: Kernel) -> Iterator[dict[str, str]]:
    for bus, register in kernel.pointers.items():
        yield _argument(bus.removeprefix("m_axi_"), _POINTER, bus, register.offset, 8, "void*")
    (control,) = kernel.buses_of(BusKind.CONTROL)
    for register in kernel.scalars:
        yield _argument(register.name.lower(), _SCALAR, control.name, register.offset, 4, "uint")
    for stream in kernel.buses_of(BusKind.STREAM):
        kind = f"stream<ap_axiu<{stream.data_bits},0,0,0>>&"
        yield _argument(stream.name, _STREAM, stream.name, 0, 0, kind) | {"memSize": "0x0"}


def _argument(name: str, qualifier: str, port: str, offset: int, size: int, kind: str) -> dict[str, str]:
    return {
        "name": name,
        "addressQualifier": qualifier,
        "id": "",
        "port": port,
        "size": f"{size:#x}",
        "offset": f"0x{offset:03x}",
        "type": kind,
        "hostOffset": "0x0",
        "hostSize": f"{size:#x}",
    }
