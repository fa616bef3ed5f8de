"""The packet format as Markdown, C header and JSON, from the declarations that RTL and codecs use."""

import json

from p4sgd.build.generate.artifacts import header_comment
from p4sgd.hw.spec.fixed import ACTIVATION
from p4sgd.hw.spec.packet import ETHERTYPE, FIELDS, FRAME_BYTES, VALUES, VERSION, PacketType


def markdown(command: str) -> str:
    """A table of the frame's fields in network order, and the packet types; the first line names ``command``."""
    lines = [
        header_comment("<!-- {} -->", command),
        "",
        "# Packet",
        "",
        f"One Ethernet frame of {FRAME_BYTES} bytes without the frame check sequence, EtherType "
        f"`0x{ETHERTYPE:04x}`, format version {VERSION}. "
        "Fields of more than one byte are big-endian; numbers are two's complement. "
        f"Activations have {ACTIVATION.fraction} fraction bits.",
        "",
        "| bytes | bits | field | meaning |",
        "|---|---|---|---|",
    ]
    for field in FIELDS:
        first, last = field.offset_bits // 8, (field.offset_bits + field.bits - 1) // 8
        where = f"{first}" if first == last else f"{first}–{last}"
        if field.bits % 8:
            high = 7 - field.offset_bits % 8
            where += f" [{high}:{high - field.bits + 1}]"
        lines.append(f"| {where} | {field.bits} | `{field.name}` | {field.help} |")
    lines += ["", "| type | number |", "|---|---|"]
    lines += [f"| {kind.name} | {kind.value} |" for kind in PacketType]
    return "\n".join(lines) + "\n"


def c_header(command: str) -> str:
    """The frame as preprocessor constants: ``P4SGD_PACKET_<FIELD>_OFFSET`` and ``…_BITS``, both in bits."""
    lines = [
        header_comment("/* {} */", command),
        "#ifndef P4SGD_PACKET_H",
        "#define P4SGD_PACKET_H",
        "",
        "/* Offsets count bits from the first bit on the wire; fields are big-endian. */",
        f"#define P4SGD_PACKET_BYTES {FRAME_BYTES}u",
        f"#define P4SGD_PACKET_ETHERTYPE_VALUE 0x{ETHERTYPE:04x}u",
        f"#define P4SGD_PACKET_VERSION_VALUE {VERSION}u",
        f"#define P4SGD_PACKET_VALUES {VALUES}u",
        f"#define P4SGD_PACKET_VALUE_FRACTION_BITS {ACTIVATION.fraction}u",
        "",
        *(f"#define P4SGD_PACKET_TYPE_{kind.name} {kind.value}u" for kind in PacketType),
        "",
    ]
    for field in FIELDS:
        name = f"#define P4SGD_PACKET_{field.name.upper()}"
        lines += [f"{name}_OFFSET {field.offset_bits}u /* {field.help} */", f"{name}_BITS {field.bits}u"]
    return "\n".join([*lines, "", "#endif"]) + "\n"


def json_text(command: str) -> str:
    """The whole declaration of the frame as JSON."""
    document = {
        "generated_by": command,
        "bytes": FRAME_BYTES,
        "ethertype": ETHERTYPE,
        "version": VERSION,
        "value_fraction_bits": ACTIVATION.fraction,
        "types": {kind.name: kind.value for kind in PacketType},
        "fields": [field._asdict() for field in FIELDS],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
