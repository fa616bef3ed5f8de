"""The factor stage: every block of columns of a data set is whitened, by all ranks together.

    moments of own samples ──▶ sums over the ranks ──▶ factors ──▶ broadcasts
     block after block          of finished blocks      of own blocks, then of those of all ranks

A block has an owner, which gets the sum of its moments, whitens it and sends the result, or all ranks get the sum and
whiten it. Sums and broadcasts travel while the ranks compute. What is added up and sent are integers, so the result has
the same bits for every plan.

The plan is made from times that are measured first: `p4sgd.host.precondition.placement` chooses the owners,
`p4sgd.host.distributed.merging` which blocks of an owner are added up in one message. It assumes that all sums are
there before the first block is whitened, which may make it predict too long a time.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from p4sgd.host.data.dataset import Dataset, Features
from p4sgd.host.data.scaling import Scaling
from p4sgd.host.distributed.communicator import Started, broadcast
from p4sgd.host.distributed.merging import CostTable, Message, plan_messages
from p4sgd.host.precondition.moments import BLOCK, GRID_FRACTION, Moments, block_slices
from p4sgd.host.precondition.placement import Placement, PlacementProblem
from p4sgd.host.precondition.whitening import WhitenedBlock, Whitening, check_samples, whiten_block
from p4sgd.hw.spec.fixed import MAX_PRECISION, IntArray

__all__ = ["Costs", "Plan", "StageTimes", "make_plan", "measure", "whiten"]

_PLANNED_BLOCKS = 32
"""Least number of blocks for which a plan is made. To whiten so many takes some 30 ms, to measure costs some 10 ms."""

_PLANNED_ROWS = 1024
"""Samples whose moments are measured."""

_REPEATS = 3
"""How often something is done in a row when its time is measured."""

_SUMMED_COLUMNS = (BLOCK, 8 * BLOCK)
"""Sizes of the messages whose time is measured."""

_MOST_ITEMS = 256
"""Most items of a plan of messages, which takes the square of their number of steps. With more blocks an item is
several of them."""


@dataclass(frozen=True)
class Costs:
    """Times of this stage in seconds, by the number of columns.

    Attributes
    ----------
    moments
        To compute the moments of a rank's samples.
    whiten
        To whiten a block.
    send
        To broadcast a whitened block.
    add
        To add up moments over the ranks.
    """

    moments: Callable[[int], float]
    whiten: Callable[[int], float]
    send: Callable[[int], float]
    add: Callable[[int], float]


@dataclass(frozen=True)
class Plan:
    """Who whitens which block, and which messages there are.

    Attributes
    ----------
    placement
        Owners of the blocks, and the order in which these send them.
    messages
        Numbers of the blocks that are added up together and have the same owner, in the order of the messages, which is
        the order in which moments are computed.
    predicted_s
        Predicted time until all ranks have all blocks, in seconds.
    lower_bound_s
        Time that is not possible to beat once the moments of all blocks are computed first, in seconds.
    """

    placement: Placement
    messages: tuple[tuple[int, ...], ...]
    predicted_s: float
    lower_bound_s: float


@dataclass(frozen=True)
class StageTimes:
    """How long this stage took beside its plan, times in seconds.

    Attributes
    ----------
    blocks
        Number of blocks.
    sent
        How many of them an owner has whitened and sent.
    messages
        Number of messages in which moments were added up.
    planning_s
        Time to measure costs and make the plan.
    predicted_s, lower_bound_s
        See `Plan`.
    measured_s
        Time that the stage took according to the plan, on the slowest rank.
    """

    blocks: int
    sent: int
    messages: int
    planning_s: float
    predicted_s: float
    lower_bound_s: float
    measured_s: float

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"{self.blocks} blocks whitened in {self.measured_s * 1e3:.1f} ms, {self.predicted_s * 1e3:.1f} ms "
            f"predicted, at least {self.lower_bound_s * 1e3:.1f} ms; {self.sent} sent by an owner; sums in "
            f"{self.messages} message{'s' if self.messages > 1 else ''}; planned in {self.planning_s * 1e3:.1f} ms"
        )


class _Merge(Protocol):
    """A rule that merges messages, such as `plan_messages`."""

    def __call__(
        self, ready: Sequence[float], sizes: Sequence[int], cost: Callable[[int], float]
    ) -> Sequence[Message]: ...


def whiten(
    data: Dataset, scaling: Scaling, damping: float, planes: int, plan: Plan | None = None
) -> tuple[Whitening, StageTimes | None]:
    """Whiten every block of columns of a data set. All ranks call this and get the same.

    Parameters
    ----------
    data
        The training samples, of which every rank has some.
    scaling, damping, planes
        See `Whitening.fit`.
    plan
        The plan, the same on all ranks; by default it is made if there are many ranks and blocks, and otherwise all
        ranks whiten all blocks.

    Returns
    -------
    The whitening, and the times if there was a plan.

    Raises
    ------
    UserError
        If there are too many samples for exact sums.
    """
    check_samples(data.samples)
    ranks = data.communicator
    blocks = list(block_slices(data.feature_count))
    sizes = [_width(columns) for columns in blocks]
    begin = time.perf_counter()
    if plan is None and ranks.size > 1 and len(blocks) >= _PLANNED_BLOCKS:
        plan = make_plan(measure(data, scaling), sizes, ranks.size)
    planned = time.perf_counter()
    together = Placement((None,) * len(blocks), (), 0.0)
    placement, messages = (plan.placement, plan.messages) if plan else (together, (tuple(range(len(blocks))),))
    sums = _Sums(data, scaling, placement, messages)

    def whitened(block: int) -> WhitenedBlock:
        return whiten_block(sums.moments(block), scaling, slice(0, sizes[block]), damping, planes)

    done: dict[int, WhitenedBlock] = {}
    under_way: list[tuple[int, Started[npt.NDArray[np.float64]]]] = []
    for block in placement.sends:
        owner = placement.owners[block]
        assert owner is not None
        values = np.empty(WhitenedBlock.packed_size(sizes[block]))
        if owner == ranks.rank:
            done[block] = whitened(block)
            values = done[block].pack()
        under_way.append((block, ranks.start_broadcast(values, owner)))
    for block, owner in enumerate(placement.owners):
        if owner is None:
            done[block] = whitened(block)
            if under_way:
                under_way[-1][1].done()
    for block, started in under_way:
        received = started.wait()
        if block not in done:
            done[block] = WhitenedBlock.unpack(received, sizes[block])
    sums.finish()
    whitening = Whitening.join([done[block] for block in range(len(blocks))], scaling, damping, planes)
    if plan is None:
        return whitening, None
    return whitening, StageTimes(
        blocks=len(blocks),
        sent=len(placement.sends),
        messages=len(messages),
        planning_s=planned - begin,
        predicted_s=plan.predicted_s,
        lower_bound_s=plan.lower_bound_s,
        measured_s=max(ranks.all_gather(time.perf_counter() - planned)),
    )


class _Sums:
    """The moments of blocks over all ranks. Making it computes those of this rank's samples and starts the sums."""

    def __init__(
        self, data: Dataset, scaling: Scaling, placement: Placement, messages: Sequence[Sequence[int]]
    ) -> None:
        ranks, features = data.communicator, _by_columns(data.features)
        self._samples = data.samples
        self._columns = list(block_slices(data.feature_count))
        self._messages = messages
        self._message_of = {block: number for number, message in enumerate(messages) for block in message}
        self._started: dict[int, Started[IntArray | None]] = {}
        self._values: dict[int, IntArray] = {}
        low, high = np.zeros((2, data.feature_count), np.int64)
        for number, message in enumerate(messages):
            packed = []
            for block in message:
                columns = self._columns[block]
                own = _moments(features, scaling, columns)
                low[columns], high[columns] = own.low, own.high
                packed.append(own.pack())
                if number:
                    self._started[number - 1].done()
            self._started[number] = ranks.start_sum(np.concatenate(packed), placement.owners[message[0]])
        extremes = ranks.all_min(np.concatenate((low, -high)).astype(np.float64)).astype(np.int64)
        self._low, self._high = extremes[: low.size], -extremes[low.size :]

    def moments(self, block: int) -> Moments:
        """The moments of a block, on a rank that gets them; to be called once."""
        if block not in self._values:
            self._wait(self._message_of[block])
        columns = self._columns[block]
        return Moments.unpack(self._values.pop(block), self._samples, self._low[columns], self._high[columns])

    def finish(self) -> None:
        """Wait for the sums of other ranks."""
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
    """The moments of some columns of what `_by_columns` gives."""
    part = features[:, columns]
    moments = Moments.empty(part.shape[1])
    scaling = Scaling(scaling.kind, scaling.offset[columns], scaling.scale[columns], signed=scaling.signed)
    moments.add(part if isinstance(part, np.ndarray) else part.tocsr(), scaling)
    return moments


def make_plan(
    costs: Costs,
    sizes: Sequence[int],
    ranks: int,
    *,
    place: Callable[[PlacementProblem], Placement] = PlacementProblem.best,
    merge: _Merge = plan_messages,
) -> Plan:
    """Plan this stage. Ranks that shall agree must give the same costs.

    Parameters
    ----------
    costs
        What it costs.
    sizes
        Columns of each block.
    ranks
        Number of ranks.
    place, merge
        What chooses the owners and the messages; `PlacementProblem` and `p4sgd.host.distributed.merging` have others to
        compare.
    """
    problem = PlacementProblem(sizes, costs.whiten, costs.send, ranks)
    placement = place(problem)
    order = [*placement.sends, *(block for block, owner in enumerate(placement.owners) if owner is None)]
    messages: list[tuple[int, ...]] = []
    computed = channel = 0.0
    for owner in (*range(ranks), None):
        # Messages have a single owner. What all ranks get is added up last, because they whiten it last.
        own = [block for block in order if placement.owners[block] == owner]
        step = max(1, -(-len(own) // _MOST_ITEMS))
        items = [own[first : first + step] for first in range(0, len(own), step)]
        columns = [sum(sizes[block] for block in item) for item in items]
        ready = list(accumulate(map(costs.moments, columns), initial=computed))[1:]
        merged = merge([each - channel for each in ready], columns, costs.add)
        for message in merged:
            messages.append(tuple(block for item in message.items for block in items[item]))
        if merged:
            computed, channel = ready[-1], channel + merged[-1].end
    return Plan(placement, tuple(messages), channel + placement.makespan, computed + problem.lower_bound())


def measure(data: Dataset, scaling: Scaling) -> Costs:
    """Measure what this stage costs for a data set of at least a whole block; all ranks get the times of rank 0.

    Ranks compute at the same time, as they will, and the slowest one counts. A message's time is its part of several
    that travel at once.
    """
    ranks, columns = data.communicator, slice(0, BLOCK)
    rows = _by_columns(data.features[:_PLANNED_ROWS])
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

    def sum_s(size: int) -> float:
        values = np.zeros(size // BLOCK * Moments.packed_size(BLOCK), np.int64)
        return message_s(lambda: ranks.start_sum(values, owner=0))

    def whiten_usual(count: int) -> None:
        for _ in range(count):
            whiten_block(usual, scaling, columns, 0.0, MAX_PRECISION)

    def add_rows(count: int) -> None:
        for _ in range(count):
            _moments(rows, scaling, columns).pack()

    moments_s = seconds(add_rows) * data.features.shape[0] / max(1, rows.shape[0])
    whiten_s = seconds(whiten_usual)
    sent = WhitenedBlock.packed_size(BLOCK)
    send_s = message_s(lambda: ranks.start_broadcast(np.zeros(sent), owner=1))  # rank 0 receives
    costs = Costs(
        moments=CostTable((0, BLOCK), (0.0, moments_s)),
        whiten=CostTable((0, BLOCK), (0.0, whiten_s)),
        send=CostTable((BLOCK,), (send_s,)),
        add=CostTable(_SUMMED_COLUMNS, [sum_s(size) for size in _SUMMED_COLUMNS]),
    )
    return broadcast(ranks, costs)
