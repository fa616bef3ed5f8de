"""What a switch is told of a job: entries of the tables of `hw/switch`, whatever way they are written."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from p4sgd.hw.spec.job import Job
from p4sgd.hw.spec.packet import ROUND_BITS
from p4sgd.hw.spec.switch import GENERATION_BITS

__all__ = [
    "Entry",
    "forward",
    "generation_after",
    "members",
    "own",
    "retire",
    "serve",
]


@dataclass(frozen=True)
class Entry:
    """An entry of a table; without a key it is the action that the table takes by default."""

    table: str
    action: str
    key: Mapping[str, int] = field(default_factory=dict)
    data: Mapping[str, int] = field(default_factory=dict)


def generation_after(last: int) -> int:
    """The generation of the switch's next job; 0 is that of slots that no job has used."""
    return last % ((1 << GENERATION_BITS) - 1) + 1


def own(mac: int) -> Entry:
    """The aggregator's own address."""
    return Entry("own", "set_mac", data={"mac": mac})


def serve(place: int, job: Job, first_round: int, generation: int) -> Entry:
    """A job that is served: all slots of which are fresh if no job of the switch had the generation that they keep."""
    return Entry(
        "jobs",
        "serve",
        _job_key(job.number),
        {
            "place": place,
            "generation": generation,
            "before": (first_round - 1) % (1 << ROUND_BITS),
            "workers": len(job.members),
            "everyone": job.everyone,
            "group_mac": job.group_mac,
        },
    )


def retire(number: int, generation: int) -> Entry:
    """A job that is not served any longer; it stays noted so that the next one takes another generation."""
    return Entry("jobs", "retire", _job_key(number), {"generation": generation})


def members(job: Job) -> list[Entry]:
    """The workers of a job."""
    return [
        Entry(
            "members",
            "member",
            {"job": job.number, "shard": shard},
            {"bitmap": 1 << shard, "mac": member.mac, "port_of_member": member.port},
        )
        for shard, member in enumerate(job.members)
    ]


def forward(station: int, port: int) -> Entry:
    """An address that frames of other protocols reach through a port."""
    return Entry("forwarding", "forward", {"destination": station}, {"port": port})


def _job_key(number: int) -> dict[str, int]:
    return {"job": number}
