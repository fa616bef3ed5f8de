"""The documents of registers and packets say what the declarations say."""

import json
import re
import subprocess

import pytest

from p4sgd.build.generate import packet_documents as packet
from p4sgd.build.generate.register_documents import (
    RegisterDocuments,
    aggregator_documents,
    cmac_documents,
    selftest_documents,
    worker_documents,
)
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.fixed import ACTIVATION
from p4sgd.hw.spec.packet import ETHERTYPE, FIELDS, FRAME_BYTES, VALUES, VERSION, PacketType
from p4sgd.hw.spec.packet import Field as PacketField
from p4sgd.hw.spec.register_map import Access, Field, Register
from p4sgd.hw.spec.registers import MAGIC
from p4sgd.hw.spec.selftest import Sizes
from p4sgd.sim.emulator.worker import EmulatedWorker

COMMAND = "p4sgd generate --config tiny"
BUILD_ID = 0x1234ABCD

CONFIGS = pytest.mark.parametrize("config", [WorkerConfig.tiny(), WorkerConfig.u280()], ids=["tiny", "u280"])

MAPS = {
    "tiny": lambda *build: worker_documents(WorkerConfig.tiny(), *build),
    "u280": lambda *build: worker_documents(WorkerConfig.u280(), *build),
    "aggregator": lambda *build: aggregator_documents(AggregatorConfig(), *build),
    "small aggregator": lambda *build: aggregator_documents(AggregatorConfig(slots=16, jobs=1, ports=32), *build),
    "self-test": lambda *build: selftest_documents(Sizes.of(WorkerConfig.small(), 2), *build),
    "cmac": cmac_documents,
}


@pytest.fixture(params=MAPS)
def make(request):
    return MAPS[request.param]


def compiled_constants(header, directory):
    """Compile a header as C99 and as C++, and print every constant it defines; returns them by name."""
    (directory / "generated.h").write_text(header)
    names = re.findall(r"^#define (\w+) \S", header, re.MULTILINE)
    prints = "".join(f'printf("{name} %llu\\n", (unsigned long long)({name}));' for name in names)
    source = (
        f'#include <stdio.h>\n#include "generated.h"\n#include "generated.h"\nint main(void) {{ {prints} return 0; }}'
    )
    (directory / "print.c").write_text(source)
    flags = ["-Wall", "-Wextra", "-Werror", "-pedantic"]
    for command in (["gcc", "-std=c99", *flags], ["g++", "-x", "c++", "-std=c++11", *flags]):
        subprocess.run([*command, "-o", directory / "print", directory / "print.c"], check=True)
    out = subprocess.run([directory / "print"], check=True, capture_output=True, text=True).stdout
    return {name: int(value) for name, value in (line.split() for line in out.splitlines())}


def test_a_c_header_compiles_to_the_map(make, tmp_path):
    documents = make()
    prefix = documents.prefix
    expected = {f"{prefix}_MAGIC_WORD": documents.magic, f"{prefix}_ABI": documents.abi_version}
    if documents.config_hash is not None:
        expected[f"{prefix}_CONFIG"] = documents.config_hash
    for register in documents.registers:
        name = f"{prefix}_{register.name}"
        expected |= {name: register.offset, f"{name}_RESET": register.encode()}
        for field in register.fields:
            part = f"{name}_{field.name.upper()}"
            expected |= {f"{part}_SHIFT": field.low, f"{part}_BITS": field.bits, f"{part}_MASK": field.mask}
    assert compiled_constants(documents.c_header(COMMAND), tmp_path) == expected


SHOWN = {  # readable, writable, effects of a write and of a read, set by hardware, cleared by it, told of writes
    Access.RO: (True, False, None, None, False, False, False),
    Access.RW: (True, True, None, None, False, False, False),
    Access.W1C: (True, True, "woclr", None, True, False, False),
    Access.W1S: (True, True, "woset", None, False, True, False),
    Access.RC: (True, False, None, "rclr", True, False, False),
    Access.STROBE: (False, True, None, None, False, False, True),
}


def test_systemrdl_compiles_to_the_map_of_which_peakrdl_makes_the_same_header(make, tmp_path):
    compiler, header = pytest.importorskip("systemrdl"), pytest.importorskip("peakrdl_cheader.exporter")
    documents = make()
    (source := tmp_path / "registers.rdl").write_text(documents.systemrdl(COMMAND))
    compilation = compiler.RDLCompiler(warning_flags=compiler.warnings.ALL, error_flags=compiler.warnings.ALL)
    compilation.compile_file(str(source))
    top = compilation.elaborate().top
    header.CHeaderExporter().export(top, str(tmp_path / "peakrdl.h"))
    (tmp_path / "ours.h").write_text(documents.c_header(COMMAND))
    lines = ["#include <stddef.h>", '#include "peakrdl.h"', '#include "ours.h"']
    assert [node.inst_name for node in top.registers()] == [register.name for register in documents.registers]
    for node, register in zip(top.registers(), documents.registers, strict=True):
        assert (node.absolute_address, node.get_property("desc")) == (register.offset, register.help)
        own, theirs = f"{documents.prefix}_{register.name}", f"{top.inst_name.upper()}__{register.name.upper()}"
        lines.append(f'_Static_assert({own} == offsetof({top.inst_name}_t, {register.name}), "");')
        assert [part.inst_name for part in node.fields()] == [field.name for field in register.fields]
        for part, field in zip(node.fields(), register.fields, strict=True):
            assert (part.low, part.width, part.get_property("desc")) == (field.low, field.bits, field.help)
            assert part.get_property("reset") == field.encode(field.reset) >> field.low
            assert bool(part.get_property("is_signed", default=False)) == field.signed
            effects = [effect and effect.name for effect in map(part.get_property, ("onwrite", "onread"))]
            told = [bool(part.get_property(name)) for name in ("hwset", "hwclr", "swmod")]
            assert (part.is_sw_readable, part.is_sw_writable, *effects, *told) == SHOWN[field.access]
            assert part.is_hw_writable == (field.access in (Access.RO, Access.W1C, Access.RC))
            name, their = f"{own}_{field.name.upper()}", f"{theirs}__{field.name.upper()}"
            for end, other in (("SHIFT", "bp"), ("BITS", "bw"), ("MASK", "bm")):
                lines.append(f'_Static_assert({name}_{end} == {their}_{other}, "");')
            lines.append(f'_Static_assert(({own}_RESET & {name}_MASK) >> {name}_SHIFT == {their}_reset, "");')
    (tmp_path / "equal.c").write_text("\n".join(lines))
    subprocess.run(["gcc", "-std=c11", "-fsyntax-only", tmp_path / "equal.c"], check=True)


@pytest.mark.slow
def test_peakrdl_renders_systemrdl(tmp_path):
    compiler, html = pytest.importorskip("systemrdl"), pytest.importorskip("peakrdl_html")
    (source := tmp_path / "registers.rdl").write_text(worker_documents(WorkerConfig.tiny()).systemrdl(COMMAND))
    compilation = compiler.RDLCompiler()
    compilation.compile_file(str(source))
    html.HTMLExporter().export(compilation.elaborate(), str(tmp_path / "html"))
    assert '"memory_error"' in (tmp_path / "html/data/ral-data-0.json").read_text()


def test_json_rebuilds_the_map(make):
    documents = make()
    document = json.loads(documents.json_text(COMMAND))
    rebuilt = [
        Register(
            register["name"],
            register["offset"],
            register["help"],
            tuple(Field(**{**field, "access": Access[field["access"]]}) for field in register["fields"]),
        )
        for register in document["registers"]
    ]
    assert rebuilt == documents.registers
    assert [register["reset"] for register in document["registers"]] == [r.reset for r in documents.registers]
    assert (document["magic"], document["abi_version"]) == (documents.magic, documents.abi_version)


def test_markdown_has_every_register_and_field_once(make):
    documents = make()
    text = documents.markdown(COMMAND)
    for register in documents.registers:
        assert text.count(f"| `0x{register.offset:03x}` | `{register.name}` |") == 1
        for field in register.fields:
            assert len(re.findall(rf"^\| `{register.name}` \| [\d:]+ \| `{field.name}` \|", text, re.MULTILINE)) == 1
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.split(r"(?<!\\)\|", row)) for row in rows} == {6, 8}, "a cell's text has broken a table"
    names = {register.name.removesuffix("_LOW") for register in documents.registers}
    assert set(re.findall(r"[A-Z][A-Z0-9_]{2,}", " ".join(documents.write_order))) <= names


@pytest.mark.parametrize("form", ["markdown", "systemrdl", "c_header", "json_text"])
def test_documents_give_command_and_build_id(make, form):
    text, plain = (getattr(RegisterDocuments, form)(documents, COMMAND) for documents in (make(BUILD_ID), make()))
    first, second = text.splitlines()[:2]
    assert COMMAND in (second if first == "{" else first)
    shown = str(BUILD_ID) if form == "json_text" else f"{BUILD_ID:x}"
    assert shown in text
    assert shown not in plain


@CONFIGS
def test_documents_give_what_a_worker_reads_after_reset(config):
    """As an emulated worker, which no one has written to, answers."""
    worker = EmulatedWorker(config, 0)
    documents = worker_documents(config)
    document = json.loads(documents.json_text(COMMAND))
    reset = {register["name"]: register["reset"] for register in document["registers"]}
    assert reset == {register["name"]: worker.read_register(register["offset"]) for register in document["registers"]}
    assert (reset["MAGIC"], reset["SLOTS"]) == (MAGIC, config.slots)
    assert WorkerConfig(**{k: document["config"][k] for k in WorkerConfig.__dataclass_fields__}) == config
    assert document["config_hash"] == config.config_hash
    assert f"`MAGIC` | `0x{MAGIC:08x}` |" in documents.markdown(COMMAND)
    assert f"#define P4SGD_MAGIC_RESET 0x{MAGIC:08x}u" in documents.c_header(COMMAND)


def test_documents_of_the_packet(tmp_path):
    document = json.loads(packet.json_text(COMMAND))
    assert tuple(PacketField(**field) for field in document["fields"]) == FIELDS
    assert (document["bytes"], document["ethertype"], document["version"]) == (FRAME_BYTES, ETHERTYPE, VERSION)
    types = {kind.name: int(kind) for kind in PacketType}
    assert document["types"] == types
    expected = {"BYTES": FRAME_BYTES, "ETHERTYPE_VALUE": ETHERTYPE, "VERSION_VALUE": VERSION, "VALUES": VALUES}
    assert document["value_fraction_bits"] == ACTIVATION.fraction
    expected["VALUE_FRACTION_BITS"] = ACTIVATION.fraction
    expected |= {f"TYPE_{name}": number for name, number in types.items()}
    for field in FIELDS:
        name = field.name.upper()
        expected |= {f"{name}_OFFSET": field.offset_bits, f"{name}_BITS": field.bits}
    found = compiled_constants(packet.c_header(COMMAND), tmp_path)
    assert found == {f"P4SGD_PACKET_{name}": number for name, number in expected.items()}
    text = packet.markdown(COMMAND)
    assert f"frame of {FRAME_BYTES} bytes" in text
    for field in FIELDS:
        assert len(re.findall(rf"\| {field.bits} \| `{field.name}` \|", text)) == 1
    for row in (
        "14 [7:4] | 4 | `version`",
        "14 [3:0] | 4 | `type`",
        "0–5 | 48 | `destination`",
        "60–63 | 32 | `value7`",
    ):
        assert f"| {row} |" in text
