"""Register maps as Markdown, SystemRDL, C header and JSON, from the declarations that RTL and host use."""

import json
from dataclasses import asdict, dataclass, field
from types import ModuleType
from typing import Any

from p4sgd.build.generate.artifacts import header_comment
from p4sgd.hw.spec import aggregator, cmac, registers, selftest
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.register_map import Access, Field, Register

_RDL_ACCESS = {
    Access.RO: "sw = r; hw = w;",
    Access.RW: "sw = rw; hw = r;",
    Access.W1C: "sw = rw; onwrite = woclr; hw = w; hwset;",
    Access.W1S: "sw = rw; onwrite = woset; hw = r; hwclr;",
    Access.RC: "sw = r; onread = rclr; hw = w; hwset;",
    Access.STROBE: "sw = w; hw = r; swmod;",  # not singlepulse, which has one bit and does nothing if it is written 0
}
"""Properties of SystemRDL 2.0 that tell of an access."""


@dataclass(frozen=True)
class RegisterDocuments:
    """Documents of one register map."""

    owner: str  # with an article
    prefix: str  # of the names in the C header, and in small letters of its own name
    magic: int
    abi_version: int
    registers: list[Register]  # with the values that they have after reset
    config: dict[str, int] = field(default_factory=dict)  # sizes of the hardware
    config_hash: int | None = None  # if the hardware has a register for it
    write_order: tuple[str, ...] = ()  # steps of a driver

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
            *(["## Order of writes", "", *(f"1. {step}" for step in self.write_order), ""] if self.write_order else []),
            "## Fields",
            "",
            "| register | bits | field | access | after reset | meaning |",
            "|---|---|---|---|---|---|",
        ]
        for register in self.registers:
            for part in register.fields:
                bits = f"{part.low}" if part.bits == 1 else f"{part.low + part.bits - 1}:{part.low}"
                kind = f"{part.access.value}, signed" if part.signed else part.access.value
                lines.append(
                    f"| `{register.name}` | {bits} | `{part.name}` | {kind} | {part.reset} | {_cell(part.help)} |"
                )
        return "\n".join(lines) + "\n"

    def c_header(self, command: str) -> str:
        """The map as preprocessor constants for C99 and C++: offsets, resets, and shift, bits and mask of fields."""
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
            for part in register.fields:
                start = f"#define {name}_{part.name.upper()}"
                lines += [
                    f"{start}_SHIFT {part.low}u",
                    f"{start}_BITS {part.bits}u",
                    f"{start}_MASK 0x{part.mask:08x}u /* {part.access.value}: {part.help} */",
                ]
            lines.append("")
        return "\n".join([*lines, "#endif"]) + "\n"

    def json_text(self, command: str) -> str:
        """The map as JSON: the whole declaration, and the sizes of the hardware."""
        document: dict[str, object] = {"generated_by": command}
        document |= {name: getattr(self, name) for name in ("magic", "abi_version", "config", "config_hash")}
        document["registers"] = [
            {name: getattr(register, name) for name in ("name", "offset", "help", "reset")}
            | {"fields": [{**asdict(part), "access": part.access.name} for part in register.fields]}
            for register in self.registers
        ]
        return json.dumps(document, indent=2, ensure_ascii=False) + "\n"

    def systemrdl(self, command: str) -> str:
        """The map in SystemRDL 2.0, of which PeakRDL and other tools make HTML, UVM, IP-XACT and more.

        A field of two's complement has the property ``is_signed``, as PeakRDL-regblock names it.
        """
        lines = [
            header_comment("// {}", command),
            "property is_signed { type = boolean; component = field; default = true; };",
            "",
            f"addrmap {self.prefix.lower()}_registers {{",
            f"  name = {_rdl_text(f'Registers of {self.owner}, version {self.abi_version}')};",
            "  default regwidth = 32;",
            "  littleendian;",
        ]
        for register in self.registers:
            fields = map(_rdl_field, register.fields)
            lines += ["", "  reg {", f"    desc = {_rdl_text(register.help)};", *fields]
            lines.append(f"  }} {register.name} @ 0x{register.offset:03x};")
        return "\n".join([*lines, "};"]) + "\n"

    def files(self, command: str) -> dict[str, str]:
        """All documents by file name; the prefix distinguishes the maps of a folder."""
        header = f"{self.prefix.lower()}_registers"
        name = header.removeprefix("p4sgd_")
        return {
            f"{name}.md": self.markdown(command),
            f"{name}.json": self.json_text(command),
            f"{name}.rdl": self.systemrdl(command),
            f"{header}.h": self.c_header(command),
        }


def _documents(owner: str, prefix: str, spec: ModuleType, *more: Any, **config: Any) -> RegisterDocuments:
    """Documents of a module of `p4sgd.hw.spec`; ``more`` are parameters of its ``after_reset``, BUILD_ID last."""
    found, order = list(spec.after_reset(*more)), getattr(spec, "WRITE_ORDER", ())
    return RegisterDocuments(owner, prefix, spec.MAGIC, spec.ABI_VERSION, found, write_order=order, **config)


def worker_documents(config: WorkerConfig, build_id: int = 0) -> RegisterDocuments:
    """Documents of a worker's registers."""
    sizes = {"config": config.table(), "config_hash": config.config_hash}
    return _documents("a worker", "P4SGD", registers, config, build_id, **sizes)


def aggregator_documents(config: AggregatorConfig, build_id: int = 0) -> RegisterDocuments:
    """Documents of an aggregator's registers."""
    return _documents("an aggregator", "P4SGD_AGGREGATOR", aggregator, config, build_id, config=asdict(config))


def cmac_documents(build_id: int = 0) -> RegisterDocuments:
    """Documents of the registers of an Ethernet MAC's kernel."""
    return _documents("the kernel of an Ethernet MAC", "P4SGD_CMAC", cmac, build_id)


def selftest_documents(sizes: selftest.Sizes, build_id: int = 0) -> RegisterDocuments:
    """Documents of the registers of a self-test's kernel."""
    return _documents("a self-test", "P4SGD_SELFTEST", selftest, sizes, build_id, config=asdict(sizes))


def _cell(text: str) -> str:
    """Text in a Markdown table, where a bar would end the cell."""
    return text.replace("|", "\\|")


def _rdl_text(text: str) -> str:
    """A string of SystemRDL."""
    return '"{}"'.format(text.replace("\\", "\\\\").replace('"', '\\"'))


def _rdl_field(part: Field) -> str:
    """A field in SystemRDL. The backslash makes a name of any word: ``number`` is a keyword."""
    shape = f"{part.low + part.bits - 1}:{part.low}"
    sign = " is_signed;" if part.signed else ""
    properties = f"{_RDL_ACCESS[part.access]}{sign} desc = {_rdl_text(part.help)};"
    return f"    field {{ {properties} }} \\{part.name}[{shape}] = {part.bits}'h{part.reset & (1 << part.bits) - 1:x};"
