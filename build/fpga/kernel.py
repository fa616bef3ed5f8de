"""Kernels of Vitis: worker, aggregator and MAC, their buses, and the XML that describes them (UG1393)."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import NamedTuple
from xml.etree import ElementTree

from p4sgd.build.generate.artifacts import header_comment
from p4sgd.build.generate.boards import Board
from p4sgd.build.generate.floorplan import slice_dies
from p4sgd.build.generate.register_documents import (
    RegisterDocuments,
    aggregator_documents,
    cmac_documents,
    selftest_documents,
    worker_documents,
)
from p4sgd.hw.aggregator.aggregator import AGGREGATOR
from p4sgd.hw.bus.ports import Port
from p4sgd.hw.kernel.verilog import (
    KernelVerilog,
    aggregator_kernel,
    cmac_kernel,
    emulated_cmac_kernel,
    selftest_kernel,
    worker_kernel,
)
from p4sgd.hw.spec import registers, selftest
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.cmac import EMULATED_KERNEL, kernel_name
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.register_map import ADDRESS_BITS, Access, Register
from p4sgd.hw.worker.worker import WORKER

VENDOR, LIBRARY, VERSION = "p4sgd.org", "kernel", "1.0"
"""Vendor, library and version in the VLNV by which Vivado identifies a kernel."""

SETTINGS = {WORKER: "worker/engine*/stable_reg[*]", selftest.KERNEL: "test*/stable_reg[*]"}
"""Cells of registers, by their path in a kernel, in which settings of a run have some cycles to arrive."""

REFERENCE_CLOCK, TRANSCEIVERS, FREE_CLOCK = "gt_refclk", "gt_serial", "clk_gt_freerun"
"""Interfaces of a MAC's kernel that are not AXI, and its port that belongs to no interface."""


class BusKind(Enum):
    """Kind of a bus; the value is what its name begins with."""

    CONTROL = "s_axi"  # AXI4-Lite slave
    MEMORY = "m_axi"  # AXI4 master
    STREAM = "axis"  # AXI4-Stream, in either direction


class Bus(NamedTuple):
    """A bus of a module, by the prefix of its ports' names. A stream has no address; a master starts transfers."""

    name: str
    kind: BusKind
    data_bits: int
    address_bits: int
    is_master: bool


_BUS = re.compile(r"^((?:[sm]_axi|axis)_\w+?)_((?:aw|w|b|ar|r)(?:addr|data|valid)|t(?:data|valid))$")
"""A port that every bus of its kind has: name of the bus, and name of the port within the bus."""


def find_buses(ports: Iterable[Port]) -> list[Bus]:
    """Buses that ports form, by kind and then in the order of the ports."""
    found: dict[str, dict[str, Port]] = {}
    for port in ports:
        if match := _BUS.match(port.name):
            found.setdefault(match[1], {})[match[2]] = port
    buses = []
    for name, signals in found.items():
        kind = next(kind for kind in BusKind if name.startswith(f"{kind.value}_"))
        data, address = (
            max((signals[each].bits for each in names if each in signals), default=0)
            for names in (("tdata", "rdata", "wdata"), ("araddr", "awaddr"))
        )
        # Whoever drives these begins the transfers.
        starts = [signals[each] for each in ("tvalid", "arvalid", "awvalid") if each in signals]
        buses.append(Bus(name, kind, data, address, any(port.direction == "output" for port in starts)))
    return sorted(buses, key=lambda bus: list(BusKind).index(bus.kind))


@dataclass(frozen=True)
class Kernel:
    """A kernel."""

    name: str  # from which those of its files are made
    verilog: KernelVerilog
    documents: RegisterDocuments
    pointers: Mapping[str, Register] = field(default_factory=dict)  # address, lower half, by bus of a memory port
    ip: str | None = None  # module of the vendor's MAC, if it has one: then also transceivers and two more clocks

    @property
    def settings(self) -> str:
        """Its cells in `SETTINGS`, empty if it has none."""
        return SETTINGS.get(self.name, "")

    @property
    def control(self) -> Register:
        """The register of ``ap_ctrl_hs`` (UG1393): XRT opens the registers of no other kind of kernel."""
        return self.documents.registers[0]

    @property
    def scalars(self) -> tuple[Register, ...]:
        """Other registers that are arguments: a kernel without memory needs some, and has all that can be written."""
        written = {Access.RW, Access.STROBE, Access.W1C, Access.W1S}
        known = () if self.pointers else self.documents.registers
        return tuple(register for register in known if {each.access for each in register.fields} & written)

    @property
    def debug_script(self) -> str | None:
        """File that makes its debug cores; None if it has none."""
        return f"{self.name}_debug.tcl" if self.verilog.debug_cores else None

    @property
    def vlnv(self) -> str:
        """Vendor, library, name and version."""
        return f"{VENDOR}:{LIBRARY}:{self.name}:{VERSION}"

    @property
    def unit(self) -> str:
        """Name of its first or only instance."""
        return self.unit_at(0)

    def unit_at(self, index: int) -> str:
        """Name of an instance, counted from 0, as Vitis chooses it."""
        return f"{self.name}_{index + 1}"

    @cached_property
    def buses(self) -> list[Bus]:
        """Buses that the ports of its top form."""
        return find_buses(self.verilog.ports)

    def buses_of(self, kind: BusKind) -> list[Bus]:
        """Its buses of one kind."""
        return [bus for bus in self.buses if bus.kind is kind]


def memory_bus(number: int) -> str:
    """Name of the bus to a worker's memory, numbered as in `WorkerConfig.memories`."""
    return f"m_axi_gmem{number}"


def worker(config: WorkerConfig, board: Board, build_id: int = 0, *, debug: bool = False) -> Kernel:
    """The worker's kernel, with the register slices of its memory ports, for ``debug`` with a logic analyser."""
    banks = [(engine, port) for engine in range(config.engines) for port in range(config.ports)]
    addresses = [registers.lines_address(engine, port)[0] for engine, port in banks] + [registers.LABELS_ADDRESS[0]]
    slices = [len(dies) for dies in slice_dies(config, board)]
    return Kernel(
        WORKER,
        worker_kernel(config, build_id=build_id, slices=slices, debug=debug),
        worker_documents(config, build_id),
        pointers={memory_bus(number): register for number, register in enumerate(addresses)},
    )


def self_test(config: WorkerConfig, board: Board, build_id: int = 0) -> Kernel:
    """The kernel that tests the memory ports of a worker and the MACs of all cages; ValueError if it has too many."""
    sizes = selftest.Sizes.of(config, len(board.cages))
    slices = [len(dies) for dies in slice_dies(config, board)]
    return Kernel(
        selftest.KERNEL,
        selftest_kernel(config, cages=sizes.cages, build_id=build_id, slices=slices),
        selftest_documents(sizes, build_id),
        pointers={memory_bus(port): selftest.address_of(port)[0] for port in range(sizes.memories)},
    )


def aggregator(config: AggregatorConfig, build_id: int = 0) -> Kernel:
    """The aggregator's kernel, which runs without being started."""
    return Kernel(AGGREGATOR, aggregator_kernel(config, build_id=build_id), aggregator_documents(config, build_id))


def cmac(port: int, build_id: int = 0, *, debug: bool = False) -> Kernel:
    """The kernel of the MAC of a QSFP28 port, which runs without being started; for ``debug`` a core shows the link.

    Every port has a kernel of its own, because each MAC is at another site of the FPGA.
    """
    name = kernel_name(port)
    ip = f"{name}_usplus"
    verilog = cmac_kernel(build_id=build_id, top=f"{name}_kernel", mac=ip, debug=debug)
    return Kernel(name, verilog, cmac_documents(build_id), ip=ip)


def emulated_cmac(build_id: int = 0) -> Kernel:
    """The kernel that stands in for the MAC of a worker where transceivers cannot be simulated."""
    return Kernel(EMULATED_KERNEL, emulated_cmac_kernel(build_id=build_id), cmac_documents(build_id))


_SCALAR, _POINTER, _STREAM = "0", "1", "4"
"""Kinds of arguments, the attribute ``addressQualifier``."""


def kernel_xml(kernel: Kernel, command: str) -> str:
    """The ``kernel.xml`` of a kernel.

    Pointers come first, so that the argument of memory ``i`` has the number ``i``: the runtime asks XRT for the memory
    bank of an argument by its number. There is no interrupt, as the interrupt registers of ``ap_ctrl_hs`` are missing.
    """
    root = ElementTree.Element("root", versionMajor="1", versionMinor="6")
    words, _, _ = command.partition(" --")  # a comment cannot contain two dashes; the manifest has the whole command
    root.append(ElementTree.Comment(header_comment(" {} ", words)))
    attributes = {"name": kernel.name, "language": "ip_c", "vlnv": kernel.vlnv, "attributes": ""}
    attributes |= {"preferredWorkGroupSizeMultiple": "0", "workGroupSize": "1", "interrupt": "false"}
    element = ElementTree.SubElement(root, "kernel", attributes | {"hwControlProtocol": "ap_ctrl_hs"})
    ports = ElementTree.SubElement(element, "ports")
    for bus in kernel.buses:
        ElementTree.SubElement(ports, "port", _port(bus))
    arguments = ElementTree.SubElement(element, "args")
    for number, attributes in enumerate(_arguments(kernel)):
        ElementTree.SubElement(arguments, "arg", attributes | {"id": str(number)})
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _port(bus: Bus) -> dict[str, str]:
    named = {"name": bus.name}
    width = {"dataWidth": str(bus.data_bits)}
    if bus.kind is BusKind.STREAM:
        return named | {"mode": "write_only" if bus.is_master else "read_only"} | width | {"portType": "stream"}
    if bus.kind is BusKind.CONTROL:
        reach = {"mode": "slave", "range": f"{1 << ADDRESS_BITS:#x}"}
    else:
        reach = {"mode": "master", "range": f"0x{(1 << bus.address_bits) - 1:X}"}
    return named | reach | width | {"portType": "addressable", "base": "0x0"}


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
