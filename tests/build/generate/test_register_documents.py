"""The documents of the register map say what the map says."""

import json
import re
import subprocess
from functools import partial

import pytest

from p4sgd.build.generate.register_documents import (
    RegisterDocuments,
    aggregator_documents,
    cmac_documents,
    worker_documents,
)
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.register_map import Access, Field, Register
from p4sgd.hw.spec.registers import MAGIC
from p4sgd.sim.emulator.worker import EmulatedWorker

COMMAND = "p4sgd generate --config tiny"

CONFIGS = pytest.mark.parametrize("config", [WorkerConfig.tiny(), WorkerConfig.u280()], ids=["tiny", "u280"])

MAPS = pytest.mark.parametrize(
    "documents",
    [
        worker_documents(WorkerConfig.tiny()),
        worker_documents(WorkerConfig.u280()),
        aggregator_documents(AggregatorConfig()),
        aggregator_documents(AggregatorConfig(slots=16, jobs=1, ports=32)),
        cmac_documents(),
    ],
    ids=["tiny", "u280", "aggregator", "small aggregator", "cmac"],
)

MAKERS = pytest.mark.parametrize(
    "make", [RegisterDocuments.markdown, RegisterDocuments.c_header, RegisterDocuments.json_text]
)


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


@MAPS
def test_c_header_compiles_to_the_map(documents, tmp_path):
    prefix = documents.prefix
    got = compiled_constants(documents.c_header(COMMAND), tmp_path)
    expected = {f"{prefix}_MAGIC_WORD": documents.magic, f"{prefix}_ABI": documents.abi_version}
    if documents.config_hash is not None:
        expected[f"{prefix}_CONFIG"] = documents.config_hash
    for register in documents.registers:
        name = f"{prefix}_{register.name}"
        expected |= {name: register.offset, f"{name}_RESET": register.encode()}
        for field in register.fields:
            part = f"{name}_{field.name.upper()}"
            expected |= {f"{part}_SHIFT": field.low, f"{part}_BITS": field.bits, f"{part}_MASK": field.mask}
    assert got == expected


@MAPS
def test_json_rebuilds_the_map(documents):
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


@CONFIGS
def test_json_rebuilds_the_configuration(config):
    document = json.loads(worker_documents(config).json_text(COMMAND))
    assert WorkerConfig(**{k: document["config"][k] for k in WorkerConfig.__dataclass_fields__}) == config
    assert document["config_hash"] == config.config_hash


@MAPS
def test_markdown_has_every_register_and_field_once(documents):
    text = documents.markdown(COMMAND)
    for register in documents.registers:
        assert text.count(f"| `0x{register.offset:03x}` | `{register.name}` |") == 1
        for field in register.fields:
            assert len(re.findall(rf"^\| `{register.name}` \| [\d:]+ \| `{field.name}` \|", text, re.MULTILINE)) == 1
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.split(r"(?<!\\)\|", row)) for row in rows} == {6, 8}, "a cell's text has broken a table"


@MAPS
@MAKERS
def test_documents_name_the_command(make, documents):
    first, second = make(documents, COMMAND).splitlines()[:2]
    assert COMMAND in (second if first == "{" else first)


@CONFIGS
def test_documents_give_what_a_worker_reads_after_reset(config):
    """As an emulated worker, which no one has written to, answers."""
    worker = EmulatedWorker(config, 0)
    documents = worker_documents(config)
    document = json.loads(documents.json_text(COMMAND))
    reset = {register["name"]: register["reset"] for register in document["registers"]}
    assert reset == {register["name"]: worker.read_register(register["offset"]) for register in document["registers"]}
    assert (reset["MAGIC"], reset["SLOTS"]) == (MAGIC, config.slots)
    assert f"`MAGIC` | `0x{MAGIC:08x}` |" in documents.markdown(COMMAND)
    assert f"#define P4SGD_MAGIC_RESET 0x{MAGIC:08x}u" in documents.c_header(COMMAND)


@MAKERS
@pytest.mark.parametrize(
    "documents",
    [partial(worker_documents, WorkerConfig.tiny()), partial(aggregator_documents, AggregatorConfig()), cmac_documents],
    ids=["worker", "aggregator", "cmac"],
)
def test_documents_give_the_build_id(make, documents):
    number = 0x1234ABCD
    shown = str(number) if make is RegisterDocuments.json_text else "0x1234abcd"
    assert shown in make(documents(number), COMMAND)
    assert shown not in make(documents(), COMMAND)
