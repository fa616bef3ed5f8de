"""The documents of the register map say what the map says."""

import json
import re
import subprocess

import pytest

from p4sgd.build.registers import c_header, json_text, markdown
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.register_map import Access, Field, Register
from p4sgd.hw.spec.registers import ABI_VERSION, MAGIC, after_reset, identity
from p4sgd.sim.emulator.worker import EmulatedWorker

CONFIGS = [WorkerConfig.tiny(), WorkerConfig.u280()]


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


@pytest.mark.parametrize("config", CONFIGS, ids=["tiny", "u280"])
def test_c_header_compiles_to_the_map(config, tmp_path):
    got = compiled_constants(c_header(config, "p4sgd generate"), tmp_path)
    expected = {"P4SGD_MAGIC_WORD": MAGIC, "P4SGD_ABI": ABI_VERSION, "P4SGD_CONFIG": config.config_hash}
    for register in after_reset(config):
        name = f"P4SGD_{register.name}"
        expected |= {name: register.offset, f"{name}_RESET": register.encode()}
        for field in register.fields:
            part = f"{name}_{field.name.upper()}"
            expected |= {f"{part}_SHIFT": field.low, f"{part}_BITS": field.bits, f"{part}_MASK": field.mask}
    assert got == expected


@pytest.mark.parametrize("config", CONFIGS, ids=["tiny", "u280"])
def test_json_rebuilds_the_map(config):
    document = json.loads(json_text(config, "p4sgd generate"))
    rebuilt = [
        Register(
            register["name"],
            register["offset"],
            register["help"],
            tuple(Field(**{**field, "access": Access[field["access"]]}) for field in register["fields"]),
        )
        for register in document["registers"]
    ]
    assert rebuilt == list(after_reset(config))
    assert [register["reset"] for register in document["registers"]] == [r.reset for r in after_reset(config)]
    assert WorkerConfig(**{k: document["config"][k] for k in WorkerConfig.__dataclass_fields__}) == config
    assert (document["magic"], document["abi_version"]) == (MAGIC, ABI_VERSION)
    assert document["config_hash"] == config.config_hash


@pytest.mark.parametrize("config", CONFIGS, ids=["tiny", "u280"])
def test_markdown_has_every_register_and_field_once(config):
    text = markdown(config, "p4sgd generate")
    for register in after_reset(config):
        assert text.count(f"| `0x{register.offset:03x}` | `{register.name}` |") == 1
        for field in register.fields:
            assert len(re.findall(rf"^\| `{register.name}` \| [\d:]+ \| `{field.name}` \|", text, re.MULTILINE)) == 1
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.split(r"(?<!\\)\|", row)) for row in rows} == {6, 8}, "a cell's text has broken a table"


@pytest.mark.parametrize("make", [markdown, c_header])
def test_first_line_names_the_command(make):
    first = make(WorkerConfig.tiny(), "p4sgd generate --config tiny").splitlines()[0]
    assert "`p4sgd generate --config tiny`" in first


@pytest.mark.parametrize("config", CONFIGS, ids=["tiny", "u280"])
def test_documents_give_what_a_worker_reads_after_reset(config):
    """As an emulated worker, which no one has written to, answers."""
    worker = EmulatedWorker(config, 0)
    document = json.loads(json_text(config, "p4sgd generate"))
    reset = {register["name"]: register["reset"] for register in document["registers"]}
    assert reset == {register["name"]: worker.read_register(register["offset"]) for register in document["registers"]}
    assert (reset["MAGIC"], reset["SLOTS"]) == (MAGIC, config.slots)
    assert f"`MAGIC` | `0x{MAGIC:08x}` |" in markdown(config, "p4sgd generate")
    assert f"#define P4SGD_MAGIC_RESET 0x{MAGIC:08x}u" in c_header(config, "p4sgd generate")


@pytest.mark.parametrize("make", [markdown, c_header, json_text])
def test_documents_give_the_build_id(make):
    config = WorkerConfig.tiny()
    number = identity(config, build_id=0x1234ABCD)["BUILD_ID"]
    shown = str(number) if make is json_text else "0x1234abcd"
    assert shown in make(config, "p4sgd generate", build_id=number)
    assert shown not in make(config, "p4sgd generate")
