"""What `p4sgd switch build` writes: a folder with all that a compiler needs, or that it has made; the headers in it."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.command_line import run
from support.vendor_folders import programs

from p4sgd.build.generate.switch_program import (
    COMPILER_VARIABLE,
    HEADERS_COMMAND,
    TARGETS,
    CompilerError,
    build,
    find_compiler,
    headers,
    sizes,
)
from p4sgd.hw.spec.aggregator import MAX_JOBS, AggregatorConfig, Outcome, group_of
from p4sgd.hw.spec.packet import VERDICT, DropReason, EchoValue, PacketType

CONFIG = AggregatorConfig(slots=64, jobs=2)


@pytest.fixture
def no_compiler(monkeypatch, tmp_path):
    monkeypatch.delenv(COMPILER_VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.parametrize("target", TARGETS)
def test_sources_have_the_sizes(no_compiler, tmp_path, target):
    files, is_compiled = build(target, CONFIG, tmp_path / "out")
    assert not is_compiled
    assert {file.name for file in files} == {
        TARGETS[target].program,
        "p4sgd_headers.p4",
        "p4sgd_sizes.p4",
        "manifest.json",
    }
    text = (tmp_path / "out" / "p4sgd_sizes.p4").read_text()
    assert "#define SLOTS 64\n" in text
    assert "#define JOBS 2\n" in text
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert (manifest["target"], manifest["slots"], manifest["jobs"], manifest["compiled"]) == (target, 64, 2, False)


def test_what_a_compiler_makes_is_in_the_folder_unless_it_fails(monkeypatch, tmp_path):
    script = "pwd > where && echo {} > p4sgd.json && echo info > p4sgd.p4info.txtpb"
    monkeypatch.setenv(COMPILER_VARIABLE, str(tmp_path / "good" / "p4c"))
    programs(tmp_path / "good", monkeypatch, p4c=script)
    files, is_compiled = build("bmv2", CONFIG, tmp_path / "out")
    assert is_compiled
    names = {file.name for file in files}
    assert {"p4sgd.json", "p4sgd.p4info.txtpb"} < names
    assert "where" not in names
    monkeypatch.setenv(COMPILER_VARIABLE, str(tmp_path / "bad" / "p4c"))
    programs(tmp_path / "bad", monkeypatch, p4c="echo 'no such header' >&2; exit 1")
    with pytest.raises(CompilerError, match="no such header"):
        build("bmv2", CONFIG, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_the_command_says_what_is_next(no_compiler, tmp_path):
    out = tmp_path / "out"
    words = ["switch", "build", "--target", "bmv2", "--slots", 64, "--jobs", 2, "--out", out]
    shown = run(*words).stdout
    assert "p4c-bm2-ss" in shown
    assert "p4sgd switch deploy" in shown
    document = json.loads(run(*words, "--json").stdout)
    assert [command.split()[0] for command in document["next"]] == ["cd", "for", "simple_switch_grpc", "p4sgd"]


def test_what_is_next_for_a_tofino_finds_its_files_from_anywhere(no_compiler, tmp_path, own_folder):
    """The configuration names them by what the compiler is told, and bf_switchd looks in the SDE's folder otherwise."""
    done = run("switch", "build", "--target", "tofino", "--slots", 64, "--jobs", 2, "--out", "an out", "--json")
    compiling, starting, deploying = json.loads(done.stdout)["next"]
    folder = f"{tmp_path}/an out/tofino"
    assert f"-o '{folder}' " in compiling
    assert f"--testdir '{folder}' " in compiling
    assert starting == f"$SDE/run_switchd.sh -c '{folder}/p4sgd_tna.conf'"
    assert deploying.startswith("p4sgd switch deploy")


@pytest.mark.parametrize(
    ("target", "slots", "jobs", "message"),
    [
        ("tofino", 65536, 2, r"--slots .*--jobs: .*tofino .*65,536.*, not 131,072"),
        ("bmv2", 65536, 8, None),
        ("tofino", 8192, 8, None),
        ("bmv2", 3, 1, "--slots.*3"),
        ("bmv2", 131072, 1, "--slots.*131072"),
    ],
)
def test_how_many_slots_a_switch_can_have(no_compiler, tmp_path, target, slots, jobs, message):
    out = tmp_path / "out"
    words = ["--slots", slots, "--jobs", jobs, "--out", out, "--target", target]
    done = run("switch", "build", *words, status=2 if message else 0)
    assert re.search(message or "", done.stderr, re.DOTALL)
    assert out.exists() == (message is None)


@pytest.mark.parametrize("named", [True, False])
def test_nothing_is_written_over_or_by_what_is_none(monkeypatch, tmp_path, named):
    """A compiler that is none, and a folder with other files."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("")
    monkeypatch.setenv(COMPILER_VARIABLE, str(tmp_path / "none"))
    words = ["--target", "bmv2", "--out", tmp_path / "fresh" if named else out]
    done = run("switch", "build", *words, status=1 if named else 2)
    assert (COMPILER_VARIABLE if named else "is not empty and was not generated") in done.stderr
    assert os.listdir(tmp_path) == ["out"]
    assert os.listdir(out) == ["mine"]


@pytest.mark.parametrize("jobs", [1, 8])
def test_compiles_for_bmv2(tmp_path, jobs):
    if not find_compiler():
        pytest.skip(f"p4c-bm2-ss is not on the path, nor is it named by {COMPILER_VARIABLE}")
    _, is_compiled = build("bmv2", AggregatorConfig(slots=4096, jobs=jobs), tmp_path / "out")
    assert is_compiled
    program = json.loads((tmp_path / "out" / "p4sgd.json").read_text())
    sizes = {register["name"].split(".")[-1]: register["size"] for register in program["register_arrays"]}
    assert sizes["rounds"] == 4096 * jobs


def compiled_stages(context):
    """How many stages a program takes, ingress and egress together, by the context.json of p4c for Tofino.

    As p4c at 34b86e9bac writes it: backends/tofino/compiler_interfaces/schemas/context_schema.py, "stage_number" of the
    stage tables.
    """

    def numbers(node):
        if isinstance(node, dict):
            yield from [node["stage_number"]] if "stage_number" in node else []
            node = list(node.values())
        if isinstance(node, list):
            for part in node:
                yield from numbers(part)

    return max(numbers(context["tables"])) + 1


def test_compiles_for_tofino(tmp_path):
    """By the commands that `p4sgd switch build` prints, and of the usual size, into at most nine stages."""
    missing = [name for name in ("p4c", "p4c-barefoot", "bfas", "p4c-gen-bfrt-conf") if not shutil.which(name)]
    if missing:
        pytest.skip(f"{', '.join(missing)} of p4c with its Tofino backend not on the path")
    out = tmp_path / "out"
    build("tofino", AggregatorConfig(), out)
    for command in TARGETS["tofino"].commands(out):
        done = subprocess.run(command, cwd=out, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    configuration = json.loads((out / "tofino" / "p4sgd_tna.conf").read_text())
    (program,) = configuration["p4_devices"][0]["p4_programs"]
    (pipe,) = program["p4_pipelines"]
    for path in (program["bfrt-config"], pipe["context"], pipe["config"]):
        assert os.path.isabs(path), "bf_switchd would look for it in the SDE's folder"
        assert os.path.isfile(path)
    used = compiled_stages(json.loads(Path(pipe["context"]).read_text()))
    print(f"{used} stages")
    assert used <= 9


COMMITTED = Path(__file__).parents[3] / "hw" / "switch" / "p4sgd_headers.p4"


def test_the_committed_headers_are_those_of_the_specification():
    assert COMMITTED.read_text() == headers(), f"run {HEADERS_COMMAND}"


def test_numbers():
    found = dict(re.findall(r"^const \S+ (\w+) = (\w+);", COMMITTED.read_text(), re.MULTILINE))
    numbers = {name: int(value, 0) for name, value in found.items()}
    expected = {kind.name: kind.value for kind in PacketType} | {outcome.name: outcome.value for outcome in Outcome}
    expected |= {f"DROPPED_{drop.name}": drop.value for drop in DropReason}
    expected |= {f"FAILS_{check.name}": 1 << bit for bit, check in enumerate(VERDICT)}
    expected |= {"FRAME_BYTES": 64, "ETHERTYPE": 0x88B5, "VERSION": 1, "BROADCAST": 0xFFFF_FFFF_FFFF}
    expected |= {"FLOOD_GROUP": 16, "JOB_GROUPS": 1, "NODE_RID": 1}
    assert numbers == expected
    assert [group_of(place) for place in range(MAX_JOBS)] == [numbers["JOB_GROUPS"] << 3 | place for place in range(8)]
    values = dict(re.findall(r"^#define ECHO_(\w+) value(\d)", COMMITTED.read_text(), re.MULTILINE))
    assert {name: int(value) for name, value in values.items()} == {v.name: v.value for v in EchoValue if v}


def test_outcomes_are_apart():
    assert not {*map(int, DropReason)} & {*map(int, Outcome)}
    bits = int(re.search(r"typedef bit<(\d+)> outcome_t;", COMMITTED.read_text())[1])
    assert max(*DropReason, *Outcome) < 1 << bits
    assert 1 << int(re.search(r"typedef bit<(\d+)> place_t;", COMMITTED.read_text())[1]) >= MAX_JOBS


@pytest.mark.parametrize(("slots", "bits"), [(2, 1), (4096, 12), (65536, 16)])
def test_sizes(slots, bits):
    found = dict(re.findall(r"#define (\w+) (\d+)", sizes(AggregatorConfig(slots=slots, jobs=2), "a command")))
    assert {name: int(value) for name, value in found.items()} == {"SLOTS": slots, "SLOT_BITS": bits, "JOBS": 2}
