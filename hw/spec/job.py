"""A job: the group of workers that an aggregator adds up, described the same way to every kind of aggregator."""

from dataclasses import dataclass, field, replace

from p4sgd.hw.spec.packet import GROUP_BIT, KEY_BITS
from p4sgd.hw.spec.run import MAX_WORKERS, MOST_WORKERS

JOB_NUMBERS = 256  # different job numbers that a packet can hold
MAX_PORTS = 32  # maximum number of ports of an aggregator; a job has a 32-bit bitmap of them


@dataclass(frozen=True)
class Member:
    """A worker of a job: its MAC address, and the port of the aggregator that it is behind.

    Members are equal whoever stands in for them.
    """

    mac: int
    port: int
    stand_in: "Member | None" = field(default=None, compare=False)  # another worker that may send its PARTIALs, too

    def __post_init__(self) -> None:
        if self.stand_in is not None and (self.stand_in == self or self.stand_in.stand_in is not None):
            raise ValueError("a worker stands in for another one, and nobody for it there")
        if not 0 <= self.mac < 1 << 48:
            raise ValueError(f"a worker's address has 48 bits, {self.mac:#x} does not fit")
        if not 0 <= self.port < MAX_PORTS:
            raise ValueError(f"port must be 0 to {MAX_PORTS - 1}, not {self.port}")


@dataclass(frozen=True)
class Parent:
    """The aggregator one level up, to which this one is a worker: its member there, and where it is."""

    mac: int
    port: int  # of this aggregator, that leads there
    shard: int  # that this aggregator is, of the parent's job of the same number
    workers: int  # of that job

    def __post_init__(self) -> None:
        Member(self.mac, self.port)
        if not 1 <= self.workers <= MAX_WORKERS:
            raise ValueError(f"an aggregator's job has 1 to {MAX_WORKERS} workers, not {self.workers}")
        if not 0 <= self.shard < self.workers:
            raise ValueError(f"shard must be 0 to {self.workers - 1}, not {self.shard}")

    @property
    def everyone(self) -> int:
        """Bitmap of all shards of the parent's job."""
        return (1 << self.workers) - 1


@dataclass(frozen=True)
class Job:
    """A group of workers that an aggregator adds up: at most 32, or 31 if it has a parent. A tree adds up more."""

    number: int  # job number in packets, 0 to 255
    members: tuple[Member, ...]  # the workers by shard index
    group_mac: int  # destination of answers to all workers; it has the group bit
    ports: int  # bitmap of those that an answer to all leaves through; a switch behind one copies it to its workers
    key: int | None = field(default=None, repr=False)  # of its packets, of version 2; not into a log. None: version 1
    parent: Parent | None = None  # adds up what this aggregator has added up; None: this one is the only, or the top

    def __post_init__(self) -> None:
        if not 0 <= self.number < JOB_NUMBERS:
            raise ValueError(f"a job's number must be 0 to {JOB_NUMBERS - 1}, not {self.number}")
        if not 1 <= len(self.members) <= MOST_WORKERS:
            raise ValueError(f"a job has 1 to {MOST_WORKERS} workers, not {len(self.members)}")
        if self.parent is not None and len(self.members) >= MAX_WORKERS:
            raise ValueError(f"a job with a parent has at most {MAX_WORKERS - 1} workers")
        if not 0 <= self.group_mac < 1 << 48 or not self.group_mac >> GROUP_BIT & 1:
            raise ValueError(f"{self.group_mac:#014x} is no address of a group")
        if not 0 <= self.ports < 1 << MAX_PORTS:
            raise ValueError(f"a bitmap of ports has {MAX_PORTS} bits, {self.ports:#x} does not fit")
        if self.key is not None and not 0 <= self.key < 1 << KEY_BITS:
            raise ValueError(f"a job's key has {KEY_BITS} bits")

    def promote(self, shard: int) -> "Job":
        """The job once the stand-in of a shard has become its worker; a ValueError if there is none."""
        member = self.members[shard].stand_in
        if member is None:
            raise ValueError(f"job {self.number}: nobody stands in for shard {shard}")
        return replace(self, members=(*self.members[:shard], member, *self.members[shard + 1 :]))

    @property
    def everyone(self) -> int:
        """Bitmap of all shards."""
        return (1 << len(self.members)) - 1

    @property
    def whole(self) -> int:
        """Bitmap of all shards, and of the parent, which has the next bit."""
        return self.everyone if self.parent is None else self.everyone << 1 | 1
