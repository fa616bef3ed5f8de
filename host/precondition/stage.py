"""The factor stage: every block of columns of a data set is whitened, by all ranks together.

    moments of own samples ──▶ sums over the ranks ──▶ factors ──▶ broadcasts
     block after block          of finished blocks      of own blocks, then of those of all ranks

A block has an owner, which gets the sum of its moments, whitens it and sends the result, or all ranks get the sum and
whiten it. Sums and broadcasts travel while the ranks compute. What is added up and sent are integers, so the result has
the same bits for every plan (`p4sgd.host.distributed.planner.plan_factors`).
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.host.data.matrix import Features
from p4sgd.host.data.scaling import Scaling
from p4sgd.host.distributed.communicator import Communicator, Started, broadcast
from p4sgd.host.distributed.planner import CostTable, FactorCosts, FactorPlan, plan_factors
from p4sgd.host.precondition.whitening import (
    BLOCK,
    GRID_FRACTION,
    Moments,
    WhitenedBlock,
    Whitening,
    block_slices,
    check_samples,
    whiten_block,
)
from p4sgd.hw.spec.fixed import MAX_PRECISION, IntArray

_PLANNED_BLOCKS = 32
"""Least number of blocks for which a plan is made. To whiten so many takes some 30 ms, to measure costs some 10 ms."""

_PLANNED_ROWS, _REPEATS = 1024, 3  # samples whose moments are measured, and how often in a row


@dataclass(frozen=True)
class StageTimes:
    """Times of this stage beside its plan (`FactorPlan`), in seconds, ``measured_s`` that of the slowest rank; numbers
    of blocks, of those that an owner has sent, and of messages with sums."""

    blocks: int
    sent: int
    messages: int
    planning_s: float
    predicted_s: float
    lower_bound_s: float
    measured_s: float

    def __str__(self) -> str:
        return (
            f"{self.blocks} blocks whitened in {self.measured_s * 1e3:.1f} ms, {self.predicted_s * 1e3:.1f} ms "
            f"predicted, at least {self.lower_bound_s * 1e3:.1f} ms; {self.sent} sent by an owner; sums in "
            f"{self.messages} message{'s' if self.messages > 1 else ''}; planned in {self.planning_s * 1e3:.1f} ms"
        )


def whiten(
    own: Features,
    samples: int,
    scaling: Scaling,
    damping: float,
    planes: int,
    ranks: Communicator,
    plan: FactorPlan | None = None,
) -> tuple[Whitening, StageTimes | None]:
    """`Whitening.fit` to ``samples`` samples in all, of which each rank calls this with its ``own`` features. All get
    the same whitening, and the times if there was a plan, the same on all ranks; by default it is made if there are
    several and many blocks, and otherwise all ranks whiten all blocks."""
    check_samples(samples)
    sizes = [_width(columns) for columns in block_slices(own.shape[1])]
    count, begin = len(sizes), time.perf_counter()
    if plan is None and ranks.size > 1 and count >= _PLANNED_BLOCKS:
        plan = plan_factors(count, ranks.size, measure(own, scaling, ranks))
    planned = time.perf_counter()
    owned, messages = (plan.owned, plan.messages) if plan else (0, (tuple(range(count)),))
    sums = _Sums(own, samples, scaling, ranks, owned, messages)

    def whitened(block: int) -> WhitenedBlock:
        return whiten_block(sums.moments(block), scaling, slice(0, sizes[block]), damping, planes)

    done: dict[int, WhitenedBlock] = {}
    under_way: list[Started[npt.NDArray[np.float64]]] = []
    for block in range(owned):
        values, owner = np.empty(WhitenedBlock.packed_size(sizes[block])), block % ranks.size
        if owner == ranks.rank:
            done[block] = whitened(block)
            values = done[block].pack()
        under_way.append(ranks.start_broadcast(values, owner))
    for block in range(owned, count):
        done[block] = whitened(block)
        if under_way:
            under_way[-1].done()
    for block, started in enumerate(under_way):
        received = started.wait()
        if block not in done:
            done[block] = WhitenedBlock.unpack(received, sizes[block])
    sums.finish()
    whitening = Whitening.join([done[block] for block in range(count)], scaling, damping, planes)
    if plan is None:
        return whitening, None
    return whitening, StageTimes(
        blocks=count,
        sent=owned,
        messages=len(messages),
        planning_s=planned - begin,
        predicted_s=plan.predicted_s,
        lower_bound_s=plan.lower_bound_s,
        measured_s=max(ranks.all_gather(time.perf_counter() - planned)),
    )


class _Sums:
    """The moments of blocks over all ranks. Making it computes those of this rank's samples and starts the sums."""

    def __init__(
        self,
        own: Features,
        samples: int,
        scaling: Scaling,
        ranks: Communicator,
        owned: int,
        messages: Sequence[Sequence[int]],
    ) -> None:
        features = _by_columns(own)
        self._samples = samples
        self._columns = list(block_slices(own.shape[1]))
        self._messages = messages
        self._message_of = {block: number for number, message in enumerate(messages) for block in message}
        self._started: dict[int, Started[IntArray | None]] = {}
        self._values: dict[int, IntArray] = {}
        low, high = np.zeros((2, own.shape[1]), np.int64)
        for number, message in enumerate(messages):
            packed = []
            for block in message:
                columns = self._columns[block]
                part = _moments(features, scaling, columns)
                low[columns], high[columns] = part.low, part.high
                packed.append(part.pack())
                if number:
                    self._started[number - 1].done()
            owner = message[0] % ranks.size if message[0] < owned else None
            self._started[number] = ranks.start_sum(np.concatenate(packed), owner)
        lows, highs = zip(*ranks.all_gather((low, high)), strict=True)
        self._low, self._high = np.min(lows, axis=0), np.max(highs, axis=0)

    def moments(self, block: int) -> Moments:
        """The moments of a block, on a rank that gets them; to be called once."""
        if block not in self._values:
            self._wait(self._message_of[block])
        columns = self._columns[block]
        return Moments.unpack(self._values.pop(block), self._samples, self._low[columns], self._high[columns])

    def finish(self) -> None:
        for number in list(self._started):
            self._wait(number)

    def _wait(self, number: int) -> None:
        total, message = self._started.pop(number).wait(), self._messages[number]
        if total is not None:
            ends = accumulate(Moments.packed_size(_width(self._columns[block])) for block in message)
            self._values |= zip(message, np.split(total, list(ends)[:-1]), strict=True)


def _width(columns: slice) -> int:
    return int(columns.stop - columns.start)


def _by_columns(features: Features) -> Any:
    """The features in a form of which columns can be taken at little cost."""
    return features if isinstance(features, np.ndarray) else features.tocsc()


def _moments(features: Any, scaling: Scaling, columns: slice) -> Moments:
    part = features[:, columns]
    moments = Moments.empty(part.shape[1])
    scaling = Scaling(scaling.kind, scaling.offset[columns], scaling.scale[columns], signed=scaling.signed)
    moments.add(part if isinstance(part, np.ndarray) else part.tocsr(), scaling)
    return moments


def measure(own: Features, scaling: Scaling, ranks: Communicator) -> FactorCosts:
    """Measure what a block costs, with this rank's ``own`` features of at least a whole one; all ranks get the times
    of rank 0.

    Ranks compute at the same time, as they will. A message's time is its part of several that travel at once.
    """
    columns, rows = slice(0, BLOCK), _by_columns(own[:_PLANNED_ROWS])
    edge = 1 << GRID_FRACTION
    usual = Moments.empty(BLOCK)  # of a deviation with which no column is left out
    usual.samples, usual.low[:], usual.high[:] = 2 * BLOCK, -edge, edge
    np.fill_diagonal(usual.products, usual.samples * (edge // 4) ** 2)

    def seconds(several: Callable[[int], object]) -> float:
        several(1)  # the first is slower
        ranks.all_gather(None)
        begin = time.perf_counter()
        several(_REPEATS)
        ranks.all_gather(None)
        return (time.perf_counter() - begin) / _REPEATS

    def message_s(start: Callable[[], Started[Any]]) -> float:
        return seconds(lambda count: [each.wait() for each in [start() for _ in range(count)]])

    def sum_s(blocks: int) -> float:
        values = np.zeros(blocks * Moments.packed_size(BLOCK), np.int64)
        return message_s(lambda: ranks.start_sum(values, owner=0))

    compute_s = seconds(lambda count: [_moments(rows, scaling, columns).pack() for _ in range(count)])
    costs = FactorCosts(
        compute=compute_s * own.shape[0] / max(1, rows.shape[0]),
        invert=seconds(lambda count: [whiten_block(usual, scaling, columns, 0.0, MAX_PRECISION) for _ in range(count)]),
        # Rank 0 receives.
        send=message_s(lambda: ranks.start_broadcast(np.zeros(WhitenedBlock.packed_size(BLOCK)), owner=1)),
        add=CostTable((1, 8), [sum_s(1), sum_s(8)]),
    )
    return broadcast(ranks, costs)
