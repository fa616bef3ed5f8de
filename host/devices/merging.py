"""How many micro-batches travel in a packet of version 2: as many as all members take, or as measured times say."""

import math
import time
from collections.abc import Callable, Sequence

from p4sgd.host.distributed.overlap import MessageTimes
from p4sgd.host.distributed.planner import cut
from p4sgd.hw.spec.packet import VERSION

_MINI_BATCHES, _RUN_S = 8, 0.02
"""Most mini-batches of a run that is measured, and most seconds, but one mini-batch at least."""

_ROUNDS, _ENOUGH_S, _LONGEST_S = 7, 0.3, 2.0
"""How often each run is measured. No round begins after so many seconds of measured runs, nor after so many with what
is around the runs: requests to workers that are far away take long."""

_GAIN = 0.1
"""Part of the time that a plan must save beside the fewest packets: what was measured may be wrong by as much."""


def why_no_more(workers: Sequence[int], aggregator: int, names: Sequence[object]) -> str:
    """Why packets are no longer, given the register MERGE_MOST of each worker, by shard, and the aggregator's."""
    members = [(aggregator, "the aggregator"), *zip(workers, map(str, names), strict=True)]
    most, name = min(members, key=lambda member: member[0])
    if most:
        return f"{name} takes no frames that are longer"
    who = [name for each, name in members if not each]
    speak = "speaks" if len(who) == 1 else "speak"
    return f"{', '.join(who)} {speak} version {VERSION} only, like boards and P4 switches"


def plan_packets(
    measure: Callable[[int, int], tuple[float, float] | None], count: int, fewest: int, most: int
) -> MessageTimes | None:
    """Measure packets of several lengths in short runs, and choose the length with which a mini-batch takes least.

    ``measure`` runs some mini-batches, given their number and the micro-batches in a packet; it returns the seconds
    that one takes and those of the whole run with all around it, the same on all ranks; None if the workers do not
    measure time. A mini-batch has ``count`` micro-batches, at least 2, and ``fewest`` in each of the fewest packets.
    Other lengths, of up to ``most``, are tried, too; with 0 there is no choice, and only the time is measured.

    Returns the plan, with what it predicts; None if nothing could be measured.
    """
    begin = time.perf_counter()
    lengths = sorted({fewest, *(1 << power for power in range(most.bit_length()))})
    cold = measure(1, fewest)
    if cold is None:
        return None
    mini_batches = max(1, min(_MINI_BATCHES, math.ceil(_RUN_S / max(cold[0], 1e-9))))
    if mini_batches > 1:
        measure(mini_batches, fewest)  # emulated workers decode features of further samples
    rounds: list[list[float]] = []  # by round and length
    measured = passed = 0.0
    while len(rounds) < _ROUNDS and measured < _ENOUGH_S and passed < _LONGEST_S:
        runs = [taken for length in lengths if (taken := measure(mini_batches, length)) is not None]
        rounds.append([each for each, _ in runs])
        measured += mini_batches * sum(rounds[-1])
        passed += sum(run for _, run in runs)
    # Other programs can only add to a time: the shortest ones tell what packets cost, all together how much that is.
    shortest = dict(zip(lengths, map(min, zip(*rounds, strict=True)), strict=True))
    disturbed = sum(map(sum, rounds)) / (len(rounds) * sum(shortest.values()) or 1.0)
    best = min(lengths, key=shortest.__getitem__)
    if shortest[best] > (1 - _GAIN) * shortest[fewest]:
        best = fewest
    return MessageTimes(
        messages=tuple(cut(count, best)),
        predicted_s=disturbed * shortest[best],
        one_message_s=disturbed * shortest[count] if count in shortest else None,
        measured_s=None,
        planning_s=time.perf_counter() - begin,
    )
