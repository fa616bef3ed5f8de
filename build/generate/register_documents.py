"""Register maps as Markdown, C header and JSON, from the declarations that RTL and host use."""

import json
from dataclasses import asdict, dataclass

from p4sgd.build.generate.artifacts import header_comment
from p4sgd.hw.spec import aggregator, cmac, registers, selftest
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.register_map import Register

__all__ = ["RegisterDocuments", "aggregator_documents", "cmac_documents", "selftest_documents", "worker_documents"]


@dataclass(frozen=True)
class RegisterDocuments:
    """Documents of one register map.

    Attributes
    ----------
    owner
        Owner of the registers, with an article.
    prefix
        Prefix of the names in the C header.
    magic, abi_version
        First word of the identification block, and version of the map.
    config, config_hash
        Sizes of the hardware, and their hash if the hardware has a register for it.
    registers
        The registers, with the values that they have after reset.
    """

    owner: str
    prefix: str
    magic: int
    abi_version: int
    config: dict[str, int]
    config_hash: int | None
    registers: list[Register]

    def markdown(self, command: str) -> str:
        """A table of registers and a table of fields; the first line names ``command``."""
        hashed = "" if self.config_hash is None else f", configuration hash `0x{self.config_hash:08x}`"
        lines = [
            header_comment("<!-- {} -->", command),
            "",
            f"# Registers of {self.owner}",
            "",
            f"AXI4-Lite, 32-bit words, byte offsets. Map version {self.abi_version}{hashed}. "
            "Offsets that are not listed read as 0 and ignore writes.",
            "",
            "| offset | register | after reset | meaning |",
            "|---|---|---|---|",
            *(f"| `0x{r.offset:03x}` | `{r.name}` | `0x{r.reset:08x}` | {_cell(r.help)} |" for r in self.registers),
            "",
            "## Fields",
            "",
            "| register | bits | field | access | after reset | meaning |",
            "|---|---|---|---|---|---|",
        ]
        for register in self.registers:
            for field in register.fields:
                high = field.low + field.bits - 1
                bits = f"{high}" if field.bits == 1 else f"{high}:{field.low}"
                kind = f"{field.access.value}, signed" if field.signed else field.access.value
                lines.append(
                    f"| `{register.name}` | {bits} | `{field.name}` | {kind} | {field.reset} | {_cell(field.help)} |"
                )
        return "\n".join(lines) + "\n"

    def c_header(self, command: str) -> str:
        """The map as preprocessor constants for C99 and C++.

        For each register ``<PREFIX>_<REGISTER>`` (byte offset) and ``…_RESET``; for each field ``…_<FIELD>_SHIFT``,
        ``…_BITS`` and ``…_MASK`` (in place within the word).
        """
        lines = [
            header_comment("/* {} */", command),
            f"#ifndef {self.prefix}_REGISTERS_H",
            f"#define {self.prefix}_REGISTERS_H",
            "",
            f"#define {self.prefix}_MAGIC_WORD 0x{self.magic:08x}u",
            f"#define {self.prefix}_ABI {self.abi_version}u",
            *([] if self.config_hash is None else [f"#define {self.prefix}_CONFIG 0x{self.config_hash:08x}u"]),
            "",
        ]
        for register in self.registers:
            name = f"{self.prefix}_{register.name}"
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

    def json_text(self, command: str) -> str:
        """The map as JSON: the whole declaration, and the sizes of the hardware."""
        document = {
            "generated_by": command,
            "magic": self.magic,
            "abi_version": self.abi_version,
            "config": self.config,
            "config_hash": self.config_hash,
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
                for register in self.registers
            ],
        }
        return json.dumps(document, indent=2, ensure_ascii=False) + "\n"

    def files(self, command: str, prefix: str = "") -> dict[str, str]:
        """All three documents by file name; ``prefix`` distinguishes the maps of a folder."""
        return {
            f"{prefix}registers.md": self.markdown(command),
            f"{prefix}registers.json": self.json_text(command),
            f"p4sgd_{prefix}registers.h": self.c_header(command),
        }


def worker_documents(config: WorkerConfig, build_id: int = 0) -> RegisterDocuments:
    """Documents of a worker's registers; ``build_id`` is the value of BUILD_ID."""
    return RegisterDocuments(
        owner="a worker",
        prefix="P4SGD",
        magic=registers.MAGIC,
        abi_version=registers.ABI_VERSION,
        config=config.table(),
        config_hash=config.config_hash,
        registers=list(registers.after_reset(config, build_id)),
    )


def aggregator_documents(config: AggregatorConfig, build_id: int = 0) -> RegisterDocuments:
    """Documents of an aggregator's registers; ``build_id`` is the value of BUILD_ID."""
    return RegisterDocuments(
        owner="an aggregator",
        prefix="P4SGD_AGGREGATOR",
        magic=aggregator.MAGIC,
        abi_version=aggregator.ABI_VERSION,
        config=asdict(config),
        config_hash=None,
        registers=list(aggregator.after_reset(config, build_id)),
    )


def cmac_documents(build_id: int = 0) -> RegisterDocuments:
    """Documents of the registers of an Ethernet MAC's kernel; ``build_id`` is the value of BUILD_ID."""
    return RegisterDocuments(
        owner="the kernel of an Ethernet MAC",
        prefix="P4SGD_CMAC",
        magic=cmac.MAGIC,
        abi_version=cmac.ABI_VERSION,
        config={},
        config_hash=None,
        registers=list(cmac.after_reset(build_id)),
    )


def selftest_documents(sizes: selftest.Sizes, build_id: int = 0) -> RegisterDocuments:
    """Documents of the registers of a self-test's kernel; ``build_id`` is the value of BUILD_ID."""
    return RegisterDocuments(
        owner="a self-test",
        prefix="P4SGD_SELFTEST",
        magic=selftest.MAGIC,
        abi_version=selftest.ABI_VERSION,
        config=asdict(sizes),
        config_hash=None,
        registers=list(selftest.after_reset(sizes, build_id)),
    )


def _cell(text: str) -> str:
    """Text in a Markdown table, where a bar would end the cell."""
    return text.replace("|", "\\|")
