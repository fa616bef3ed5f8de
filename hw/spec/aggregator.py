"""The aggregator: its size, its registers and counters, and the numbers that P4 switches share with controllers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

from p4sgd.hw.spec.job import MAX_PORTS
from p4sgd.hw.spec.packet import ROUND_BITS, DropReason, KeyedDrop
from p4sgd.hw.spec.register_map import (
    CTRL_WORD,
    Access,
    Counter,
    Declarations,
    Field,
    Register,
    RegisterMap,
    counter_block,
    halves,
    pair,
    word,
)
from p4sgd.hw.spec.run import MAX_WORKERS

MAX_JOBS = 8  # maximum number of jobs at a time: the register map has room for these
MAGIC = int.from_bytes(b"P4AG", "big")  # first word of the identification block
ABI_VERSION = 3  # raised whenever the meaning of a register changes, or the host needs a new one


@dataclass(frozen=True)
class AggregatorConfig:
    """Size of an aggregator."""

    slots: int = 4096  # AllReduce operations that each job has in flight, a power of two, 2 to 65536
    jobs: int = 4  # jobs at a time, a power of two, 1 to `MAX_JOBS`
    ports: int = 1  # Ethernet ports, 1 to 32. A port may have a whole network of workers behind it.
    udp: bool = False  # False: packets of hardware travel in Ethernet. Documents have this field.

    def __post_init__(self) -> None:
        for name, low, high in (("slots", 2, 1 << 16), ("jobs", 1, MAX_JOBS)):
            value = getattr(self, name)
            if not low <= value <= high or value & (value - 1):
                raise ValueError(f"{name} must be a power of two, {low} to {high}, not {value}")
        if self.udp:
            raise ValueError("udp must be False: packets of hardware travel in Ethernet")
        if not 1 <= self.ports <= MAX_PORTS:
            raise ValueError(f"ports must be 1 to {MAX_PORTS}, not {self.ports}")

    @property
    def slot_bits(self) -> int:
        return (self.slots - 1).bit_length()

    @property
    def job_bits(self) -> int:
        """Of a job's place; 0 if there is only one."""
        return (self.jobs - 1).bit_length()

    @property
    def port_bits(self) -> int:
        return max(1, (self.ports - 1).bit_length())


_RO, _RW, _STROBE = Access.RO, Access.RW, Access.STROBE

_kernel = Declarations()
IDENTITY = _kernel.identification(b"P4AG")
GEOMETRY = _kernel.register("GEOMETRY", 0x01C, "Size of the aggregator")(
    Field("jobs", 0, 8, _RO, "jobs at a time"),
    Field("ports", 8, 8, _RO, "Ethernet ports"),
    Field("udp", 16, 1, _RO, "packets travel in UDP"),
)
SLOTS = _kernel.word("SLOTS", 0x020, _RO, "slots of each job")
MAC = _kernel.pair("MAC", 0x024, _RW, "the aggregator's MAC address", bits=48)

MEMBER_MAC = _kernel.pair("MEMBER_MAC", 0x030, _RW, "MAC address of a worker or a parent", bits=48)
MEMBER = _kernel.register(
    "MEMBER", 0x038, "A write notes a worker, with the address in MEMBER_MAC, in a job that is not running"
)(
    Field("place", 0, 3, _STROBE, "place of the job"),
    Field("shard", 8, 5, _STROBE, "the worker's shard; of the parent, the number of workers"),
    Field("port", 16, 5, _STROBE, "port that the worker or parent is behind"),
)
BEGIN = _kernel.register(
    "BEGIN", 0x040, "A write resets all slots of a job and then serves it; ignored while JOBS.clearing is 1"
)(
    Field("place", 0, 3, _STROBE, "place of the job"),
    Field("round", 16, ROUND_BITS, _STROBE, "first round of its workers"),
)
END = _kernel.register("END", 0x044, "A write ends a job: its packets are dropped from then on")(
    Field("place", 0, 3, _STROBE, "place of the job"),
)
JOBS = _kernel.register("JOBS", 0x048, "State of the jobs")(
    Field("running", 0, MAX_JOBS, _RO, "bitmap of the jobs that are served"),
    Field("clearing", 31, 1, _RO, "the slots of a job are being reset"),
)
LOOK = _kernel.register("LOOK", 0x050, "A write selects the slot that the registers below show")(
    Field("place", 0, 3, _STROBE, "place of the job"),
    Field("slot", 16, 16, _STROBE, "slot"),
)
SLOT_ROUND = _kernel.register("SLOT_ROUND", 0x054, "Round of the selected slot")(
    Field("round", 0, ROUND_BITS, _RO, "the round"),
    Field("ready", 31, 1, _RO, "the slot is shown; 0 for some cycles after LOOK is written"),
)
SLOT_AGGREGATED = _kernel.word(
    "SLOT_AGGREGATED", 0x058, _RO, "bitmap of the shards whose partials the selected slot has; 0 if it is fresh"
)
SLOT_ACKNOWLEDGED = _kernel.word(
    "SLOT_ACKNOWLEDGED", 0x05C, _RO, "bitmap of the shards that have acknowledged the selected slot's sums"
)
SNAPSHOT = _kernel.register("SNAPSHOT", 0x060, "Counters")(
    Field("take", 0, 1, _STROBE, "a write of any value copies the counters to the registers that show them"),
)


def job_registers(place: int) -> tuple[Register, Register, Register, Register]:
    """Settings of the job in a place, stable while it runs: JOB, GROUP_MAC low and high, PORTS."""
    base = 0x080 + 0x10 * place
    fields = (
        Field("number", 0, 8, _RW, "job number in packets"),
        Field("workers", 8, 6, _RW, f"number of workers, 1 to {MAX_WORKERS}, with a parent one less", reset=1),
        Field("parent_workers", 16, 6, _RW, "number of workers of the parent's job; 0: there is no parent"),
        Field("parent_shard", 24, 5, _RW, "this aggregator's shard there"),
    )
    return (
        Register(f"JOB{place}", base, f"The job in place {place}; jobs that run must have different numbers", fields),
        *pair(f"JOB{place}_GROUP_MAC", base + 4, _RW, "group address of all workers of the job", bits=48),
        word(f"JOB{place}_PORTS", base + 12, _RW, "bitmap of the ports that answers to all workers leave through"),
    )


LOOK_MEMBER = _kernel.register(
    "LOOK_MEMBER", 0x100, "A write selects the noted worker that the registers below show, at once"
)(
    Field("place", 0, 3, _STROBE, "place of the job"),
    Field("shard", 8, 5, _STROBE, "the worker's shard; of the parent, the number of workers"),
)
SHOWN_MAC = _kernel.pair("SHOWN_MAC", 0x104, _RO, "MAC address of the selected worker", bits=48)
SHOWN_PORT = _kernel.word("SHOWN_PORT", 0x10C, _RO, "port that the selected worker is behind", bits=5)

COUNTERS = {
    "FRAMES": "frames received",
    "PARTIALS": "PARTIAL that were added",
    "ACKS": "ACK that were new",
    "FULLS_TO_ALL": "FULL sent to all",
    "FULLS_TO_ONE": "FULL sent to one worker again",
    "CLEARS_TO_ALL": "CLEAR sent to all",
    "CLEARS_TO_ONE": "CLEAR sent to one worker again",
    "ECHOES": "ECHO sent",
    "OVERRUNS": "answers counted above that were lost, because frames could not leave as fast as they came",
} | {f"DROPPED_{drop.name}": f"frames dropped: {drop.help}" for drop in DropReason}
"""Counters of all packets together that any aggregator has, and their meanings."""

PARENT_COUNTERS = {
    "PARTIALS_TO_PARENT": "PARTIAL sent to the parent, the first time and again",
    "ACKS_TO_PARENT": "ACK sent to the parent, the first time and again",
}
"""Counters of aggregators that can have a parent: all but Tofinos."""


KEYED_COUNTERS = {f"DROPPED_{drop.name}": f"frames dropped: {drop.help}" for drop in KeyedDrop}
"""Counters of aggregators that speak version 2 of the packet: programs."""


def job_counters(place: int) -> dict[str, str]:
    """Counters of the job in a place that any aggregator has, and their meanings."""
    return {
        f"JOB{place}_ACCEPTED": f"packets of the job in place {place} that changed something or were answered",
        f"JOB{place}_DROPPED": f"packets with the number of the job in place {place} that were dropped",
    }


def counters(config: AggregatorConfig) -> dict[str, Counter]:
    """All counters of the RTL aggregator by name; they count from reset."""
    found = counter_block(0x200, COUNTERS | PARENT_COUNTERS)
    for place in range(config.jobs):
        found |= counter_block(0x400 + 0x10 * place, job_counters(place))
    return found


WRITE_ORDER = (
    "MAC, while no job is served.",
    "Of a job, in a place that is not running: JOB0, JOB0_GROUP_MAC and JOB0_PORTS; then for each worker MEMBER_MAC, "
    "then MEMBER, and likewise for its parent.",
    "BEGIN; its workers may join when JOBS.clearing is 0 and JOBS.running has the job.",
    "END, when they have ended.",
)
"""Steps of a driver, in order, by the names of registers; those of place 0 stand for all."""


def aggregator_map(config: AggregatorConfig) -> RegisterMap:
    """All registers of an aggregator."""
    of_jobs = (register for place in range(config.jobs) for register in job_registers(place))
    return RegisterMap([*_kernel, *of_jobs, *halves(counters(config))])


def identity(config: AggregatorConfig, build_id: int = 0) -> dict[str, int]:
    """The words of the control block and the identification block by register name."""
    geometry = GEOMETRY.encode(jobs=config.jobs, ports=config.ports, udp=config.udp)
    words = {"CTRL": CTRL_WORD, "MAGIC": MAGIC, "ABI_VERSION": ABI_VERSION, "BUILD_ID": build_id}
    return words | {"GEOMETRY": geometry, "SLOTS": config.slots}


def after_reset(config: AggregatorConfig, build_id: int = 0) -> Iterator[Register]:
    """All registers of an aggregator as a first read finds them."""
    return aggregator_map(config).after_reset(identity(config, build_id))


GENERATION_BITS = 16  # of a job on a P4 switch, which tells its slots from those that earlier jobs have left


FLOOD_GROUP = 2 * MAX_JOBS  # multicast group of a P4 switch that frames of other protocols are flooded to


NODE_RID = 1  # replication ID of all nodes on Tofino: frames with it do not go back to their own port


def group_of(place: int) -> int:
    """Multicast group of a P4 switch with the ports of the job in a place; 0 is no group."""
    return MAX_JOBS + place


OUTCOME_BITS = 5  # bits of an outcome


class Outcome(IntEnum):
    """Outcome of a frame that a switch or a program counts; numbers below 16 are those of `DropReason`."""

    ADDED = 16  # a PARTIAL was added; others are missing
    FULL_TO_ALL = 17  # the last PARTIAL was added
    FULL_TO_ONE = 18  # a PARTIAL was repeated; FULL went to its worker again
    ACKNOWLEDGED = 19  # an ACK was new; others are missing
    CLEAR_TO_ALL = 20  # the last ACK was new
    CLEAR_TO_ONE = 21  # an ACK was repeated or late; CLEAR went to its worker again
    ECHOED = 22  # a PROBE was answered
    # In a job with a parent, which takes the place of FULL_TO_ALL and CLEAR_TO_ALL:
    PARTIAL_TO_PARENT = 23  # the last PARTIAL was added; the sums went to the parent
    PARTIAL_TO_PARENT_AGAIN = 24  # a PARTIAL was repeated, and so was that to the parent
    FULL_PASSED_ON = 25  # FULL came from the parent and went to all
    ACK_TO_PARENT = 26  # the last ACK was new; one went to the parent
    ACK_TO_PARENT_AGAIN = 27  # an ACK was repeated, and so was that to the parent
    CLEAR_PASSED_ON = 28  # CLEAR came from the parent and went to all


_COUNTED = {
    "PARTIALS": (Outcome.ADDED, Outcome.FULL_TO_ALL, Outcome.PARTIAL_TO_PARENT),
    "ACKS": (Outcome.ACKNOWLEDGED, Outcome.CLEAR_TO_ALL, Outcome.ACK_TO_PARENT),
    "FULLS_TO_ALL": (Outcome.FULL_TO_ALL, Outcome.FULL_PASSED_ON),
    "FULLS_TO_ONE": (Outcome.FULL_TO_ONE,),
    "CLEARS_TO_ALL": (Outcome.CLEAR_TO_ALL, Outcome.CLEAR_PASSED_ON),
    "CLEARS_TO_ONE": (Outcome.CLEAR_TO_ONE,),
    "ECHOES": (Outcome.ECHOED,),
    "PARTIALS_TO_PARENT": (Outcome.PARTIAL_TO_PARENT, Outcome.PARTIAL_TO_PARENT_AGAIN),
    "ACKS_TO_PARENT": (Outcome.ACK_TO_PARENT, Outcome.ACK_TO_PARENT_AGAIN),
}
"""The outcomes whose sum each counter of an aggregator is."""


def counters_of(outcomes: Mapping[int, int], *, parents: bool = False) -> dict[str, int]:
    """Counters from numbers of frames by `Outcome` or `DropReason`, but for ETHERTYPE, which a switch forwards."""
    counted = {
        name: sum(outcomes.get(outcome, 0) for outcome in parts)
        for name, parts in _COUNTED.items()
        if parents or name not in PARENT_COUNTERS
    }
    dropped = {f"DROPPED_{drop.name}": outcomes.get(drop, 0) for drop in DropReason if drop is not DropReason.ETHERTYPE}
    return {"FRAMES": sum(outcomes.values())} | counted | dropped


def counters_by_place(frames: Mapping[int, int], jobs: int, *, parents: bool = False) -> dict[str, int]:
    """Counters as of `counters_of`, and of each of ``jobs`` places.

    ``frames`` are numbers by index: the outcome, and from bit `OUTCOME_BITS` on 1 + the job's place, 0 of no job.
    """
    outcomes: dict[int, int] = {}
    by_place = {f"JOB{place}_{end}": 0 for place in range(jobs) for end in ("ACCEPTED", "DROPPED")}
    for index, count in frames.items():
        owner, outcome = divmod(index, 1 << OUTCOME_BITS)
        outcomes[outcome] = outcomes.get(outcome, 0) + count
        if owner:
            by_place[f"JOB{owner - 1}_{'ACCEPTED' if outcome in set(Outcome) else 'DROPPED'}"] += count
    return counters_of(outcomes, parents=parents) | by_place
