"""What Vitis and its runtime read of a kernel: ports, and arguments with their registers (UG1393)."""

from collections.abc import Iterator
from xml.etree import ElementTree

from p4sgd.build.marking import mark
from p4sgd.build.verilog_ports import Bus, BusKind
from p4sgd.build.vitis.kernel import Kernel
from p4sgd.hw.spec.register_map import ADDRESS_BITS

__all__ = ["kernel_xml"]

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
    root.append(ElementTree.Comment(mark(" {} ", words)))
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
