"""What a switch makes of a frame of the protocol; it counts every frame under one outcome."""

from collections.abc import Mapping
from enum import IntEnum

from p4sgd.hw.spec.drop import Drop

__all__ = ["OUTCOME_BITS", "Outcome", "counters_by_place", "counters_of"]

OUTCOME_BITS = 5
"""Bits of an outcome."""


class Outcome(IntEnum):
    """What became of a frame that was not dropped. Why one is dropped are the numbers of `Drop`, which are below."""

    ADDED = 16
    """PARTIAL was added, and others are still to come."""
    FULL_TO_ALL = 17
    """PARTIAL was added as the last, and all were told the sums."""
    FULL_TO_ONE = 18
    """PARTIAL was a repeated one, and its worker was told the sums again."""
    ACKNOWLEDGED = 19
    """ACK was new, and others are still to come."""
    CLEAR_TO_ALL = 20
    """ACK was new and the last, and all were told that the slot is free."""
    CLEAR_TO_ONE = 21
    """ACK was a late one, and its worker was told again that the slot is free."""
    ECHOED = 22
    """PROBE was answered."""


_COUNTED = {
    "PARTIALS": (Outcome.ADDED, Outcome.FULL_TO_ALL),
    "ACKS": (Outcome.ACKNOWLEDGED, Outcome.CLEAR_TO_ALL),
    "FULLS_TO_ALL": (Outcome.FULL_TO_ALL,),
    "FULLS_TO_ONE": (Outcome.FULL_TO_ONE,),
    "CLEARS_TO_ALL": (Outcome.CLEAR_TO_ALL,),
    "CLEARS_TO_ONE": (Outcome.CLEAR_TO_ONE,),
    "ECHOES": (Outcome.ECHOED,),
}
"""Outcomes that a counter of an aggregator is the sum of."""


def counters_of(outcomes: Mapping[int, int]) -> dict[str, int]:
    """Counters by the names of :func:`p4sgd.hw.spec.aggregator.counters` from the number of frames of each outcome.

    Parameters
    ----------
    outcomes
        Frames by `Outcome` or `Drop`.

    Returns
    -------
    FRAMES, what was done with them, and why the others were dropped. No DROPPED_ETHERTYPE: frames of other protocols
    are none of this one's to drop.
    """
    counted = {name: sum(outcomes.get(outcome, 0) for outcome in parts) for name, parts in _COUNTED.items()}
    dropped = {f"DROPPED_{drop.name}": outcomes.get(drop, 0) for drop in Drop if drop is not Drop.ETHERTYPE}
    return {"FRAMES": sum(outcomes.values()), **counted, **dropped}


def counters_by_place(frames: Mapping[int, int], jobs: int) -> dict[str, int]:
    """Counters of a switch that counts the frames of each job apart.

    Parameters
    ----------
    frames
        Frames by outcome, and `OUTCOME_BITS` above it 0, or 1 and the place of the job that they are of.
    jobs
        Places.

    Returns
    -------
    What `counters_of` gives, and JOB<place>_ACCEPTED and JOB<place>_DROPPED.
    """
    outcomes: dict[int, int] = {}
    by_place = {f"JOB{place}_{end}": 0 for place in range(jobs) for end in ("ACCEPTED", "DROPPED")}
    for index, count in frames.items():
        owner, outcome = divmod(index, 1 << OUTCOME_BITS)
        outcomes[outcome] = outcomes.get(outcome, 0) + count
        if owner:
            by_place[f"JOB{owner - 1}_{'ACCEPTED' if outcome in set(Outcome) else 'DROPPED'}"] += count
    return counters_of(outcomes) | by_place
