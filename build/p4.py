"""What the switch's programs are told of the packet: P4 headers and constants, and the sizes of one switch.

The headers are committed, because the programs beside them are read with them; `HEADERS_COMMAND` makes them anew.
"""

from p4sgd.build.marking import mark
from p4sgd.hw.spec.aggregator import MAX_JOBS, AggregatorConfig
from p4sgd.hw.spec.drop import VERDICT, Drop
from p4sgd.hw.spec.outcome import OUTCOME_BITS, Outcome
from p4sgd.hw.spec.packet import (
    BROADCAST,
    ETHERTYPE,
    FIELDS,
    FRAME_BYTES,
    ROUND_BITS,
    VERSION,
    EchoValue,
    Field,
    PacketType,
)
from p4sgd.hw.spec.switch import FLOOD_GROUP, GENERATION_BITS, NODE_RID, group_of

__all__ = ["HEADERS_COMMAND", "headers", "sizes"]

HEADERS_COMMAND = "python -m p4sgd.build.p4 > hw/switch/p4sgd_headers.p4"
"""Command, in the repository, that writes what `headers` makes."""

_PLACE_BITS = (MAX_JOBS - 1).bit_length()
"""Bits of a job's place."""

_ETHERNET_FIELDS = 3
"""Fields of the frame that are Ethernet's: destination, source, EtherType."""


def headers() -> str:
    """The frame as two P4 headers, and every number of the protocol as a constant."""
    echo = [value for value in EchoValue if value is not EchoValue.NUMBER]
    lines = [
        mark("// {}", HEADERS_COMMAND),
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
        "// Multicast groups: that of other protocols, and the upper bits of a job's, its place being the lower",
        f"const bit<16> FLOOD_GROUP = {FLOOD_GROUP};",
        f"const bit<{16 - _PLACE_BITS}> JOB_GROUPS = {group_of(0) >> _PLACE_BITS};",
        "// Replication number of their nodes",
        f"const bit<16> NODE_RID = {NODE_RID};",
        "",
        "// Why a frame is dropped, from the check that is made first on",
        *(f"const outcome_t DROPPED_{drop.name} = {drop.value}; // {drop.help}" for drop in Drop),
        "",
        "// What becomes of the others",
        *(f"const outcome_t {outcome.name} = {outcome.value};" for outcome in Outcome),
        "",
        "// What a probe is told that a packet like it fails",
        *(f"const verdict_t FAILS_{check.name} = {1 << bit};" for bit, check in enumerate(VERDICT)),
        "",
        "// Values of ECHO, value0 is the probe's own",
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
        mark("// {}", command),
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


if __name__ == "__main__":
    print(headers(), end="")
