"""The folder with the P4 program of a switch: sources, sizes, and the compiled program if there is a compiler.

The headers and constants of the protocol are generated too, but committed beside the sources that include them:
`HEADERS_COMMAND` writes them again.
"""

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import p4sgd.hw
from p4sgd.build.generate.artifacts import check_folder, header_comment, write_folder
from p4sgd.hw.spec.aggregator import (
    FLOOD_GROUP,
    GENERATION_BITS,
    MAX_JOBS,
    NODE_RID,
    OUTCOME_BITS,
    AggregatorConfig,
    Outcome,
    group_of,
)
from p4sgd.hw.spec.packet import (
    BROADCAST,
    ETHERTYPE,
    FIELDS,
    FRAME_BYTES,
    ROUND_BITS,
    VERDICT,
    VERSION,
    DropReason,
    EchoValue,
    Field,
    PacketType,
)

HEADERS_COMMAND = "python -m p4sgd.build.generate.switch_program > hw/switch/p4sgd_headers.p4"
"""Command that writes the result of `headers`, to be run in the repository."""

_JOB_SLOT_BITS = (MAX_JOBS - 1).bit_length()

_ETHERNET_FIELDS = 3  # number of fields of the Ethernet header: destination, source, EtherType


def headers() -> str:
    """The frame as two P4 headers, and the numbers of the protocol as constants."""
    echo = [value for value in EchoValue if value is not EchoValue.NUMBER]
    lines = [
        header_comment("// {}", HEADERS_COMMAND),
        "#ifndef P4SGD_HEADERS_P4",
        "#define P4SGD_HEADERS_P4",
        "",
        *_header("ethernet_t", FIELDS[:_ETHERNET_FIELDS]),
        "",
        *_header("p4sgd_t", FIELDS[_ETHERNET_FIELDS:]),
        "",
        "typedef bit<48> mac_t;",
        "typedef bit<32> bitmap_t; // of shards",
        f"typedef bit<{ROUND_BITS}> round_t;",
        f"typedef bit<{_JOB_SLOT_BITS}> place_t; // of a job in the switch",
        f"typedef bit<{GENERATION_BITS}> generation_t; // tells the slots of one job from those of the next",
        f"typedef bit<{OUTCOME_BITS}> outcome_t;",
        f"typedef bit<{len(VERDICT)}> verdict_t; // checks that a packet fails",
        "",
        f"const bit<32> FRAME_BYTES = {FRAME_BYTES};",
        f"const bit<16> ETHERTYPE = 0x{ETHERTYPE:04x};",
        f"const bit<4> VERSION = {VERSION};",
        f"const mac_t BROADCAST = 0x{BROADCAST:012x};",
        "",
        *(f"const bit<4> {kind.name} = {kind.value};" for kind in PacketType),
        "",
        "// Multicast groups: for other protocols; for jobs, the upper bits (the lower bits are the job's place)",
        f"const bit<16> FLOOD_GROUP = {FLOOD_GROUP};",
        f"const bit<{16 - _JOB_SLOT_BITS}> JOB_GROUPS = {group_of(0) >> _JOB_SLOT_BITS};",
        "// Replication ID of the nodes of all groups",
        f"const bit<16> NODE_RID = {NODE_RID};",
        "",
        "// Reasons for dropping a frame, in the order of the checks",
        *(f"const outcome_t DROPPED_{drop.name} = {drop.value}; // {drop.help}" for drop in DropReason),
        "",
        "// Outcomes of frames that are not dropped",
        *(f"const outcome_t {outcome.name} = {outcome.value};" for outcome in Outcome),
        "",
        "// Checks that a packet fails, as bits of a verdict",
        *(f"const verdict_t FAILS_{check.name} = {1 << bit};" for bit, check in enumerate(VERDICT)),
        "",
        "// Values of ECHO; value0 is the probe's number",
        *(f"#define ECHO_{value.name} value{value.value}" for value in echo),
        "",
        "#endif",
    ]
    return "\n".join(lines) + "\n"


def _header(name: str, fields: tuple[Field, ...]) -> list[str]:
    return [f"header {name} {{", *(f"    bit<{field.bits}> {field.name}; // {field.help}" for field in fields), "}"]


def sizes(config: AggregatorConfig, command: str) -> str:
    """Number of slots and jobs of a switch, as preprocessor constants; the first line names ``command``."""
    lines = [
        header_comment("// {}", command),
        "#ifndef P4SGD_SIZES_P4",
        "#define P4SGD_SIZES_P4",
        "",
        "// AllReduce operations that a job has in flight, a power of two",
        f"#define SLOT_BITS {config.slot_bits}",
        f"#define SLOTS {config.slots}",
        "",
        "// Jobs at a time",
        f"#define JOBS {config.jobs}",
        "",
        "#endif",
    ]
    return "\n".join(lines) + "\n"


COMPILER_VARIABLE = "P4SGD_P4C"
"""Environment variable with the compiler for BMv2, if it is not on the path as ``p4c-bm2-ss``."""

_SOURCES = Path(p4sgd.hw.__path__[0]) / "switch"


@dataclass(frozen=True)
class Target:
    """A kind of switch."""

    program: str  # its P4 program
    compile: tuple[str, ...]  # commands, to be run in its folder one after another; ``{folder}`` is its path
    outputs: tuple[str, ...] = ()  # text files that the compiler writes; empty if only the vendor's tools can finish
    most_slots: int = 1 << 32  # of all jobs together

    def commands(self, folder: Path) -> list[list[str]]:
        """Commands that compile the program in a folder, to be run in it."""
        return [[word.format(folder=folder.resolve()) for word in command.split()] for command in self.compile]


_TOFINO_SLOTS = 1 << 16
"""Largest power of two of slots whose widest register, ``tags`` of 64 bits, fits one stage of a Tofino.

A register cannot be split over stages. It is stored in SRAMs of 1,024 words of 128 bits that have a map RAM, of which a
stage has 48, one of them spare: room for 96,256 slots. p4c compiles 65,536 into 11 of 12 stages. Source: p4c at
34b86e9bac, backends/tofino/bf-p4c/mau: memories.h, tofino/memories.cpp (mems_needed, stateful_RAMs),
table_placement.cpp (can_split)."""


TARGETS = {
    "bmv2": Target(
        "p4sgd_v1model.p4",
        ("p4c-bm2-ss --std p4-16 --p4runtime-files p4sgd.p4info.txtpb -o p4sgd.json p4sgd_v1model.p4",),
        ("p4sgd.json", "p4sgd.p4info.txtpb"),
    ),
    "tofino": Target(
        "p4sgd_tna.p4",
        (
            "p4c --target tofino --arch tna --std p4-16 --bf-rt-schema {folder}/tofino/bf-rt.json -o {folder}/tofino "
            "p4sgd_tna.p4",
            # The path must be absolute: bf_switchd takes relative ones in its configuration from the SDE's folder.
            "p4c-gen-bfrt-conf --name p4sgd_tna --device tofino --testdir {folder}/tofino --pipe pipe",
        ),
        most_slots=_TOFINO_SLOTS,
    ),
}
"""Kinds of switches, by their name in cluster files."""


class TooManySlotsError(ValueError):
    """The slots of all jobs do not fit into the switch."""


class CompilerError(RuntimeError):
    """The compiler failed; the message is its output."""


def find_compiler() -> str | None:
    """Path of the compiler for BMv2, None if there is none; `CompilerError` if `COMPILER_VARIABLE` names no program."""
    named = os.environ.get(COMPILER_VARIABLE)
    found = shutil.which(named or "p4c-bm2-ss")
    if named and not found:
        raise CompilerError(f"{COMPILER_VARIABLE} is {named}, which is no program")
    return found


def build(target: str, config: AggregatorConfig, folder: Path) -> tuple[list[Path], bool]:
    """Write the folder with the program of a switch, one of `TARGETS`, as `write_folder` does.

    Returns the files, and whether the compiled program is among them. `CompilerError` if there is a compiler and it
    fails, `TooManySlotsError` if the target has no room for so many slots.
    """
    check_folder(folder)  # before the work
    switch = TARGETS[target]
    most, wanted = switch.most_slots, config.slots * config.jobs
    if wanted > most:
        raise TooManySlotsError(
            f"a {target} has {most:,} at most, not {wanted:,}: a register of all slots must fit one of its stages"
        )
    command = f"p4sgd switch build --target {target} --slots {config.slots} --jobs {config.jobs} --out DIR"
    files = {
        switch.program: f"{header_comment('// {}', command)}\n{(_SOURCES / switch.program).read_text()}",
        "p4sgd_headers.p4": (_SOURCES / "p4sgd_headers.p4").read_text(),
        "p4sgd_sizes.p4": sizes(config, command),
    }
    compiler = find_compiler() if switch.outputs else None
    if compiler:
        files |= _compile(compiler, switch, files)
    description = {"target": target, "slots": config.slots, "jobs": config.jobs, "compiled": compiler is not None}
    return write_folder(folder, command, files, description), compiler is not None


def _compile(compiler: str, target: Target, files: dict[str, str]) -> dict[str, str]:
    with tempfile.TemporaryDirectory(prefix="p4sgd-") as scratch:
        for name, text in files.items():
            (Path(scratch) / name).write_text(text, encoding="utf-8")
        # Run in the scratch folder, whose path must not get into the output.
        (command,) = target.commands(Path(scratch))
        command[0] = compiler
        done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode:
            raise CompilerError(f"{compiler} failed on {target.program}: {done.stderr.strip() or done.returncode}")
        return {name: (Path(scratch) / name).read_text(encoding="utf-8") for name in target.outputs}


if __name__ == "__main__":
    print(headers(), end="")
