"""A folder with the program of a switch: P4 sources with the sizes filled in, compiled where that is possible here.

What the switch's programs are told of the packet: P4 headers and constants, and the sizes of one switch.

The headers are committed, because the programs beside them are read with them; `HEADERS_COMMAND` makes them anew.

A folder with the program of a switch: P4 sources with the sizes filled in, compiled where that is possible here.
"""

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import p4sgd.hw
from p4sgd.build.generate.artifacts import check_folder, header_comment, write_folder
from p4sgd.hw.spec.aggregator import FLOOD_GROUP, GENERATION_BITS, MAX_JOBS, NODE_RID, AggregatorConfig, group_of
from p4sgd.hw.spec.packet import (
    BROADCAST,
    ETHERTYPE,
    FIELDS,
    FRAME_BYTES,
    OUTCOME_BITS,
    ROUND_BITS,
    VERDICT,
    VERSION,
    DropReason,
    EchoValue,
    Field,
    Outcome,
    PacketType,
)

__all__ = [
    "COMPILER_VARIABLE",
    "HEADERS_COMMAND",
    "TARGETS",
    "CompilerError",
    "Target",
    "TooManySlotsError",
    "build",
    "find_compiler",
    "headers",
    "sizes",
    "source_files",
]


HEADERS_COMMAND = "python -m p4sgd.build.generate.switch_program > hw/switch/p4sgd_headers.p4"
"""Command, in the repository, that writes what `headers` makes."""

_PLACE_BITS = (MAX_JOBS - 1).bit_length()
"""Bits of a job's place."""

_ETHERNET_FIELDS = 3
"""Fields of the frame that are Ethernet's: destination, source, EtherType."""


def headers() -> str:
    """The frame as two P4 headers, and every number of the protocol as a constant."""
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
        f"typedef bit<{_PLACE_BITS}> place_t; // of a job in the switch",
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
        f"const bit<{16 - _PLACE_BITS}> JOB_GROUPS = {group_of(0) >> _PLACE_BITS};",
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
    """How many slots and jobs a switch has room for, as preprocessor constants.

    Parameters
    ----------
    config
        Slots and jobs; a switch has the ports that it has.
    command
        Command that makes the file, for its first line.
    """
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
"""Environment variable that names the compiler for BMv2, where it is not on the path as ``p4c-bm2-ss``."""

_SOURCES = Path(p4sgd.hw.__path__[0]) / "switch"


@dataclass(frozen=True)
class Target:
    """What a switch is.

    Attributes
    ----------
    program
        Its P4 program.
    compile
        Commands that compile it, one after another in its folder, which {folder} stands for.
    outputs
        Text files that the one command makes. None where only the vendor's tools can end what they begin.
    most_slots
        Most slots of all jobs together; None if nothing but their configuration limits them.
    """

    program: str
    compile: tuple[tuple[str, ...], ...]
    outputs: tuple[str, ...] = ()
    most_slots: int | None = None

    def commands(self, folder: Path) -> list[list[str]]:
        """Commands that compile the program of a folder, to be run there."""
        return [[word.format(folder=folder.resolve()) for word in command] for command in self.compile]


_TOFINO_SLOTS = 1 << 16
"""A register lies in one stage of a Tofino, in SRAMs of 1,024 words of 128 bits that have a map RAM: 48 of a stage, of
which one is spare. So 96,256 slots fit of the widest register, ``tags`` of 64 bits; numbers of slots are powers of two.
p4c compiles 65,536 into 11 of 12 stages. From p4c at 34b86e9bac, backends/tofino/bf-p4c/mau: memories.h,
tofino/memories.cpp (mems_needed, stateful_RAMs), table_placement.cpp (can_split)."""


TARGETS = {
    "bmv2": Target(
        "p4sgd_v1model.p4",
        (
            (
                "p4c-bm2-ss",
                "--std",
                "p4-16",
                "--p4runtime-files",
                "p4sgd.p4info.txtpb",
                "-o",
                "p4sgd.json",
                "p4sgd_v1model.p4",
            ),
        ),
        ("p4sgd.json", "p4sgd.p4info.txtpb"),
    ),
    "tofino": Target(
        "p4sgd_tna.p4",
        (
            (
                "p4c",
                "--target",
                "tofino",
                "--arch",
                "tna",
                "--std",
                "p4-16",
                "--bf-rt-schema",
                "{folder}/tofino/bf-rt.json",
                "-o",
                "{folder}/tofino",
                "p4sgd_tna.p4",
            ),
            # With the whole path, which the configuration for bf_switchd then has: others count from the SDE's folder.
            (
                "p4c-gen-bfrt-conf",
                "--name",
                "p4sgd_tna",
                "--device",
                "tofino",
                "--testdir",
                "{folder}/tofino",
                "--pipe",
                "pipe",
            ),
        ),
        most_slots=_TOFINO_SLOTS,
    ),
}
"""Kinds of switches, as cluster files call them."""


class TooManySlotsError(ValueError):
    """A switch has no room for so many slots of all jobs."""


class CompilerError(RuntimeError):
    """The compiler was found and failed; the message is what it says."""


def find_compiler() -> str | None:
    """Path of the compiler for BMv2, None if there is none.

    Raises
    ------
    CompilerError
        If `COMPILER_VARIABLE` names something that is no program.
    """
    named = os.environ.get(COMPILER_VARIABLE)
    found = shutil.which(named or "p4c-bm2-ss")
    if named and not found:
        raise CompilerError(f"{COMPILER_VARIABLE} is {named}, which is no program")
    return found


def source_files(target: str, config: AggregatorConfig, command: str) -> dict[str, str]:
    """P4 sources of a target by name.

    Parameters
    ----------
    target
        One of `TARGETS`.
    config
        How many slots and jobs there is room for.
    command
        Command that makes the files.
    """
    program = TARGETS[target].program
    return {
        program: f"{header_comment('// {}', command)}\n{(_SOURCES / program).read_text()}",
        "p4sgd_headers.p4": (_SOURCES / "p4sgd_headers.p4").read_text(),
        "p4sgd_sizes.p4": sizes(config, command),
    }


def build(target: str, config: AggregatorConfig, folder: Path) -> tuple[list[Path], bool]:
    """Write a switch's program to a folder, whole or not at all.

    Parameters
    ----------
    target
        One of `TARGETS`.
    config
        How many slots and jobs there is room for; the rest of it does not matter to a switch.
    folder
        Where; an earlier output is replaced, anything else is refused.

    Returns
    -------
    The files, and whether they hold the compiled program too.

    Raises
    ------
    CompilerError
        If there is a compiler and it fails.
    TooManySlotsError
        If the target cannot have so many.
    ForeignFolderError
        If the folder holds files that were not generated.
    OSError
        If the folder cannot be written.
    """
    check_folder(folder)  # before the work
    most, wanted = TARGETS[target].most_slots, config.slots * config.jobs
    if most is not None and wanted > most:
        raise TooManySlotsError(
            f"a {target} has {most:,} at most, not {wanted:,}: a register of all slots must fit one of its stages"
        )
    command = f"p4sgd switch build --target {target} --slots {config.slots} --jobs {config.jobs} --out DIR"
    files = source_files(target, config, command)
    compiler = find_compiler() if TARGETS[target].outputs else None
    if compiler:
        files |= _compile(compiler, TARGETS[target], files)
    description = {
        "generated_by": command,
        "target": target,
        "slots": config.slots,
        "jobs": config.jobs,
        "compiled": compiler is not None,
    }
    return write_folder(folder, files, description), compiler is not None


def _compile(compiler: str, target: Target, files: dict[str, str]) -> dict[str, str]:
    with tempfile.TemporaryDirectory(prefix="p4sgd-") as scratch:
        for name, text in files.items():
            (Path(scratch) / name).write_text(text, encoding="utf-8")
        # In the folder, so that what the compiler writes names no other one.
        (command,) = target.commands(Path(scratch))
        done = subprocess.run(
            [compiler, *command[1:]],
            cwd=scratch,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode:
            raise CompilerError(f"{compiler} failed on {target.program}: {done.stderr.strip() or done.returncode}")
        return {name: (Path(scratch) / name).read_text(encoding="utf-8") for name in target.outputs}


if __name__ == "__main__":
    print(headers(), end="")
