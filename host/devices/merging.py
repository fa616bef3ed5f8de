"""Which version of the packet a job uses, and how many micro-batches travel in one."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from p4sgd.host.distributed.merging import CostTable, Passes
from p4sgd.host.distributed.overlap import MessageTimes
from p4sgd.hw.spec.packet import KEYED_VERSION, VERSION

__all__ = ["MergeLimit", "MiniBatchTime", "cut_evenly", "find_merge_limit", "plan_packets"]

_MINI_BATCHES = 8
"""Most mini-batches of a run that is measured."""

_RUN_S = 0.02
"""It has no more than take so long, but one at least."""

_ROUNDS = 7
"""How often each run is measured."""

_ENOUGH_S = 0.3
"""No round begins after so many seconds of measured runs."""

_LONGEST_S = 2.0
"""Nor after so many with what is around the runs: requests to workers that are far away take long."""

_GAIN = 0.1
"""Part of the time that a plan must save beside the fewest packets: what was measured may be wrong by as much."""


@dataclass(frozen=True)
class MergeLimit:
    """What all members of a job understand.

    Parameters
    ----------
    most
        Most micro-batches in a packet of version 2; 0 if some speak version 1 only.
    why
        Who allows no more, and of what kind it is.
    """

    most: int
    why: str

    @property
    def version(self) -> int:
        """Highest version of the packet that all speak."""
        return KEYED_VERSION if self.most else VERSION


def find_merge_limit(workers: Sequence[int], aggregator: int | None, names: Sequence[object]) -> MergeLimit:
    """The limit of a job.

    Parameters
    ----------
    workers
        The register MERGE_MOST of each worker, by shard.
    aggregator
        The same of the aggregator; None if it cannot be asked.
    names
        Names of the workers, by shard.
    """
    members = [(aggregator or 0, "the aggregator")]
    members += [(most, str(name)) for most, name in zip(workers, names, strict=True)]
    most, name = min(members, key=lambda member: member[0])
    if most:
        return MergeLimit(most, f"{name} takes no frames that are longer")
    who = [name for each, name in members if not each]
    speak = "speaks" if len(who) == 1 else "speak"
    return MergeLimit(0, f"{', '.join(who)} {speak} version {VERSION} only, like boards and P4 switches")


def cut_evenly(micro_batches: int, most: int) -> int:
    """Micro-batches in each packet of a mini-batch: as few packets as ``most`` allows, and those about equally long."""
    packets = -(-micro_batches // most)
    return -(-micro_batches // packets)


class MiniBatchTime(NamedTuple):
    """What a mini-batch takes, in seconds."""

    total: float
    packets: float
    """The part of it in which the worker that computes longest waits for packets."""
    around: float = 0.0
    """What its run took besides, to be set up, started and read: for all mini-batches."""


def plan_packets(
    measure: Callable[[int, int], MiniBatchTime | None], count: int, most: int, merge: int | None
) -> MessageTimes | None:
    """Measure packets of several lengths in short runs, and choose the length with which a mini-batch is done first.

    A worker sends the packets of a mini-batch when it has computed all forward passes, and computes the backward passes
    when it has all sums. What a mini-batch in packets of n micro-batches takes besides is the time of these packets. Of
    n that were not measured the time is interpolated, and `Passes.uniform` plans.

    Parameters
    ----------
    measure
        Runs some mini-batches, given their number and the micro-batches in a packet, and returns what one takes: the
        same on all ranks. None if the workers do not measure time.
    count
        Micro-batches of a mini-batch, at least 2.
    most
        Most of them in a packet.
    merge
        So many in a packet, and no plan; None to plan.

    Returns
    -------
    The plan, with what it predicts; None if nothing could be measured.
    """
    begin = time.perf_counter()
    most = min(most, count)
    sizes = sorted({1, merge or most, *(1 << power for power in range(most.bit_length()) if merge is None)})
    cold = measure(1, sizes[-1])
    if cold is None:
        return None
    mini_batches = max(1, min(_MINI_BATCHES, math.ceil(_RUN_S / max(cold.total, 1e-9))))
    found: list[list[MiniBatchTime]] = []  # by round and size
    measured = around = 0.0
    while len(found) < _ROUNDS and measured < _ENOUGH_S and measured + around < _LONGEST_S:
        found.append([taken for size in sizes if (taken := measure(mini_batches, size)) is not None])
        measured += mini_batches * sum(each.total for each in found[-1])
        around += sum(each.around for each in found[-1])
    # Other programs can only add to a time, so the shortest ones tell what packets cost.
    computing = min(each.total - each.packets for taken in found for each in taken)
    shortest = np.min([[each.total for each in taken] for taken in found], axis=0).tolist()
    costs: list[float] = []
    for size, total in zip(sizes, shortest, strict=True):
        whole, rest = divmod(count, size)
        known, part = 0.0, 0.0  # the last packet's time, of which a part is this size's if it lies above the one before
        if costs and rest:
            before = sizes[len(costs) - 1]
            part = max(0.0, (rest - before) / (size - before))
            known = (1 - part) * CostTable(sizes[: len(costs)], costs)(min(rest, before))
        costs.append(max(0.0, total - computing - known) / (whole + part))
    costs = list(accumulate(reversed(costs), min))[::-1]  # a packet takes no longer than a longer one
    # All times together tell how much other programs add.
    disturbed = sum(each.total for taken in found for each in taken) / (len(found) * sum(shortest) or 1.0)
    # Both passes as one before the packets: nothing is computed while they travel.
    passes = Passes((computing, *[0.0] * (count - 1)), (0.0,) * count, (1,) * count, CostTable(sizes, costs))

    def cut(length: int) -> list[int]:
        return [length] * (count // length) + [count % length] * (count % length > 0)

    lengths, fewest = cut(merge or passes.uniform(most)), cut(cut_evenly(count, most))
    if merge is None and passes.end(lengths) > (1 - _GAIN) * passes.end(fewest):
        lengths = fewest
    return MessageTimes(
        messages=tuple(lengths),
        predicted_s=disturbed * passes.end(lengths),
        one_message_s=disturbed * passes.end([count]) if count in sizes else None,
        measured_s=None,
        planning_s=time.perf_counter() - begin,
    )
