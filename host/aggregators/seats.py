"""Which shard a worker is to its own aggregator, where there are two levels of them."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Seat:
    """A worker's shard of the job that its aggregator serves, and how many that has.

    ``rack`` is the number of its rack, and ``uplink`` the shard that the rack's aggregator is to the top one; both are
    None behind the top aggregator.
    """

    rack: int | None
    shard: int
    workers: int
    uplink: int | None


def seats_of(racks: Iterable[int | None]) -> list[Seat]:
    """The seats of workers, given the rack of each, or None behind the top aggregator.

    Its shards are first the racks that have workers, in order, then the workers behind it.
    """
    behind = list(racks)
    uplinks = {rack: shard for shard, rack in enumerate(sorted({rack for rack in behind if rack is not None}))}
    taken = Counter[int | None]({None: len(uplinks)})
    sizes = Counter(behind) + taken
    seats = []
    for rack in behind:
        seats.append(Seat(rack, taken[rack], sizes[rack], None if rack is None else uplinks[rack]))
        taken[rack] += 1
    return seats
