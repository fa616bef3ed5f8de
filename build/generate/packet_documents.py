"""The packet format as Markdown, C header and JSON.

All three are made from :data:`p4sgd.hw.spec.packet.FIELDS`, or :data:`p4sgd.hw.spec.udp.FIELDS` if packets travel in
UDP. RTL and codecs use the same declarations.
"""

import json
from typing import NamedTuple

from p4sgd.build.generate.artifacts import header_comment
from p4sgd.hw.spec import packet
from p4sgd.hw.spec import udp as udp_spec
from p4sgd.hw.spec.packet import VALUES, VERSION, Field, PacketType

__all__ = ["c_header", "json_text", "markdown"]


class _Frame(NamedTuple):
    fields: tuple[Field, ...]
    size: int
    """In bytes."""
    ethertype: int
    port: int | None
    """UDP port."""


_ETHERNET = _Frame(packet.FIELDS, packet.FRAME_BYTES, packet.ETHERTYPE, None)
_UDP = _Frame(udp_spec.FIELDS, udp_spec.FRAME_BYTES, udp_spec.REQUIRED["ethertype"], udp_spec.PORT)


def markdown(command: str, *, udp: bool = False) -> str:
    """A table of the frame's fields in network order, and the packet types.

    Parameters
    ----------
    command
        Command that makes the document, for its first line.
    udp
        Whether packets travel in UDP.
    """
    frame = _UDP if udp else _ETHERNET
    port = "" if frame.port is None else f"in IPv4 and UDP, port {frame.port}, "
    lines = [
        header_comment("<!-- {} -->", command),
        "",
        "# Packet",
        "",
        f"One Ethernet frame of {frame.size} bytes without the frame check sequence, EtherType "
        f"`0x{frame.ethertype:04x}`, {port}format version {VERSION}. "
        "Fields of more than one byte are big-endian; numbers are two's complement.",
        "",
        "| bytes | bits | field | meaning |",
        "|---|---|---|---|",
    ]
    for field in frame.fields:
        first, last = field.offset_bits // 8, (field.offset_bits + field.bits - 1) // 8
        where = f"{first}" if first == last else f"{first}–{last}"
        if field.bits % 8:
            high = 7 - field.offset_bits % 8
            where += f" [{high}:{high - field.bits + 1}]"
        lines.append(f"| {where} | {field.bits} | `{field.name}` | {field.help} |")
    lines += ["", "| type | number |", "|---|---|"]
    lines += [f"| {kind.name} | {kind.value} |" for kind in PacketType]
    return "\n".join(lines) + "\n"


def c_header(command: str, *, udp: bool = False) -> str:
    """The frame as preprocessor constants: ``P4SGD_PACKET_<FIELD>_OFFSET`` and ``…_BITS``, both in bits.

    Parameters are those of `markdown`. A program for one kind of frame can be recompiled for the other.
    """
    frame = _UDP if udp else _ETHERNET
    lines = [
        header_comment("/* {} */", command),
        "#ifndef P4SGD_PACKET_H",
        "#define P4SGD_PACKET_H",
        "",
        "/* Offsets count bits from the first bit on the wire; fields are big-endian. */",
        f"#define P4SGD_PACKET_BYTES {frame.size}u",
        f"#define P4SGD_PACKET_ETHERTYPE_VALUE 0x{frame.ethertype:04x}u",
        *([] if frame.port is None else [f"#define P4SGD_PACKET_PORT_VALUE {frame.port}u"]),
        f"#define P4SGD_PACKET_VERSION_VALUE {VERSION}u",
        f"#define P4SGD_PACKET_VALUES {VALUES}u",
        "",
        *(f"#define P4SGD_PACKET_TYPE_{kind.name} {kind.value}u" for kind in PacketType),
        "",
    ]
    for field in frame.fields:
        name = f"P4SGD_PACKET_{field.name.upper()}"
        lines += [
            f"#define {name}_OFFSET {field.offset_bits}u /* {field.help} */",
            f"#define {name}_BITS {field.bits}u",
        ]
    lines += ["", "#endif"]
    return "\n".join(lines) + "\n"


def json_text(command: str, *, udp: bool = False) -> str:
    """The whole declaration of the frame as JSON. Parameters are those of `markdown`."""
    frame = _UDP if udp else _ETHERNET
    document = {
        "generated_by": command,
        "bytes": frame.size,
        "ethertype": frame.ethertype,
        **({} if frame.port is None else {"port": frame.port}),
        "version": VERSION,
        "types": {kind.name: kind.value for kind in PacketType},
        "fields": [field._asdict() for field in frame.fields],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
