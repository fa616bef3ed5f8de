"""The register map as documents: Markdown for people, a C header for drivers, JSON for programs.

All three come from :func:`p4sgd.hw.spec.registers.after_reset`: the map that the RTL and the host use too, with the
words that identify the worker.
"""

import json

from p4sgd.build.marking import mark
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.registers import ABI_VERSION, MAGIC, after_reset

__all__ = ["c_header", "json_text", "markdown"]


def markdown(config: WorkerConfig, command: str, build_id: int = 0) -> str:
    """The map as a table of registers and a table of fields.

    Parameters
    ----------
    config
        Worker whose registers are meant: the number of engines decides the last block.
    command
        Command that makes the document, for its first line.
    build_id
        What the worker's BUILD_ID register gives.
    """
    registers = list(after_reset(config, build_id))
    lines = [
        mark("<!-- {} -->", command),
        "",
        "# Registers of a worker",
        "",
        f"AXI4-Lite, 32-bit words, byte offsets. Map version {ABI_VERSION}, configuration hash "
        f"`0x{config.config_hash:08x}`. Offsets that are not listed read as 0 and ignore writes.",
        "",
        "| offset | register | after reset | meaning |",
        "|---|---|---|---|",
        *(f"| `0x{r.offset:03x}` | `{r.name}` | `0x{r.reset:08x}` | {_cell(r.help)} |" for r in registers),
        "",
        "## Fields",
        "",
        "| register | bits | field | access | after reset | meaning |",
        "|---|---|---|---|---|---|",
    ]
    for register in registers:
        for field in register.fields:
            high = field.low + field.bits - 1
            bits = f"{high}" if field.bits == 1 else f"{high}:{field.low}"
            kind = f"{field.access.value}, signed" if field.signed else field.access.value
            lines.append(
                f"| `{register.name}` | {bits} | `{field.name}` | {kind} | {field.reset} | {_cell(field.help)} |"
            )
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """Text for a Markdown table: a bar would end the cell."""
    return text.replace("|", "\\|")


def c_header(config: WorkerConfig, command: str, build_id: int = 0) -> str:
    """The map as preprocessor constants (C99 and C++).

    For each register ``P4SGD_<REGISTER>`` (byte offset) and ``…_RESET``; for each field ``…_<FIELD>_SHIFT``, ``…_BITS``
    and ``…_MASK`` (in place within the word).
    """
    lines = [
        mark("/* {} */", command),
        "#ifndef P4SGD_REGISTERS_H",
        "#define P4SGD_REGISTERS_H",
        "",
        f"#define P4SGD_MAGIC_WORD 0x{MAGIC:08x}u",
        f"#define P4SGD_ABI {ABI_VERSION}u",
        f"#define P4SGD_CONFIG 0x{config.config_hash:08x}u",
        "",
    ]
    for register in after_reset(config, build_id):
        name = f"P4SGD_{register.name}"
        lines += [
            f"/* {register.help} */",
            f"#define {name} 0x{register.offset:03x}u",
            f"#define {name}_RESET 0x{register.reset:08x}u",
        ]
        for field in register.fields:
            part = f"{name}_{field.name.upper()}"
            lines += [
                f"#define {part}_SHIFT {field.low}u",
                f"#define {part}_BITS {field.bits}u",
                f"#define {part}_MASK 0x{field.mask:08x}u /* {field.access.value}: {field.help} */",
            ]
        lines.append("")
    lines.append("#endif")
    return "\n".join(lines) + "\n"


def json_text(config: WorkerConfig, command: str, build_id: int = 0) -> str:
    """The map as JSON: all that the declaration says, and the worker's derived sizes."""
    document = {
        "generated_by": command,
        "magic": MAGIC,
        "abi_version": ABI_VERSION,
        "config": config.table(),
        "config_hash": config.config_hash,
        "registers": [
            {
                "name": register.name,
                "offset": register.offset,
                "help": register.help,
                "reset": register.reset,
                "fields": [
                    {
                        "name": field.name,
                        "low": field.low,
                        "bits": field.bits,
                        "access": field.access.name,
                        "help": field.help,
                        "reset": field.reset,
                        "signed": field.signed,
                    }
                    for field in register.fields
                ],
            }
            for register in after_reset(config, build_id)
        ],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
