"""Decides whether boards skip lines of zeros (``--skip-zeros``), and so which sparse columns each worker gets.

With directories (:mod:`p4sgd.hw.spec.image`) the time of a board depends on the nonzeros in its columns. So columns are
dealt twice, by `heat.py`, and zeros are skipped if that is enough faster.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

from p4sgd.host.data import Dataset, Scaling
from p4sgd.host.data.quantization import quantize
from p4sgd.host.errors import UserError
from p4sgd.host.image import Shard
from p4sgd.host.image.entries import Values
from p4sgd.host.image.packing import quantized_values, zeros_error
from p4sgd.host.precondition import Whitening
from p4sgd.host.training.dealing.board_times import ListedLines, all_lines_ns
from p4sgd.host.training.dealing.heat import Split, deal_by_heat, deal_in_turn, heat_order, microseconds
from p4sgd.host.training.options import TrainingOptions
from p4sgd.hw.spec.config import BANKS

__all__ = ["SAMPLED", "Dealt", "deal_columns", "sample_values", "skipping_problem"]

SAMPLED = 512
"""Samples, the first ones in random order, whose lines are counted."""

_SAMPLED_VALUES = 1 << 20
"""Fewer if they have more values, each of which takes up to 60 bytes."""

_ENOUGH = 0.9
"""Zeros are skipped for so much of the time or less: predictions are up to 4 % off, and packing takes longer."""


class Dealt(NamedTuple):
    """The workers with their columns, and whether they pass over zeros."""

    shards: list[Shard]
    split: Split | None
    """How columns are divided between dense and sparse workers, if there are both."""
    remark: str | None = None


def deal_columns(
    shards: Sequence[Shard],
    scaling: Scaling | Whitening,
    options: TrainingOptions,
    *,
    samples: int,
    values: Callable[[int], Values],
    network: bool = False,
    prepared: bool = False,
    may_read_zeros: bool = False,
) -> Dealt:
    """Deal sparse columns by heat; and have dense workers pass over zeros, if the options say so or if that should be
    faster.

    Parameters
    ----------
    shards
        The workers, with units by their shares.
    scaling
        Scaling of the training samples.
    options
        Options of the training run.
    samples
        Number of training samples.
    values
        Gives what is not 0 in the first of the samples, which are in random order, for a number of them: whole
        micro-batches, as images have them, or all samples.
    network
        See `deal_by_heat`.
    prepared
        Whether the data are prepared, for messages.
    may_read_zeros
        Whether ``skip_zeros="always"`` is nothing that the user asks of these workers: then they read zeros if they
        cannot skip them, instead of being refused.

    Raises
    ------
    UserError
        If the workers cannot hold the columns, or if zeros are to be skipped and cannot be.
    """
    problem = skipping_problem(shards, scaling, options, prepared=prepared)
    if problem is not None and options.skip_zeros == "always":
        if not may_read_zeros:
            raise problem
        options = dataclasses.replace(options, skip_zeros="never")
    heat, always = scaling.heat if isinstance(scaling, Scaling) else None, options.skip_zeros == "always"
    total, unit = shards[0].total, shards[0].unit
    before, order = Dealt(list(shards), None), None
    if heat is not None:
        order = heat_order(heat, total)
        before = Dealt(*deal_by_heat(shards, heat, samples, options, network=network, order=order))
    if options.skip_zeros == "never" or problem is not None or (heat is None and not always):
        return before
    width = total if heat is None else int(heat.sum()) // samples + 1
    sampled = min(samples, SAMPLED, max(1, _SAMPLED_VALUES // width // BANKS) * BANKS)
    lines = ListedLines(values(sampled), order, unit, total, options)
    if heat is None:
        after = Dealt(deal_in_turn(shards), None)
    else:
        after = Dealt(*deal_by_heat(shards, heat, samples, options, network=network, lines=lines, order=order))
    if before.split is not None and after.split is not None:
        where, times = "with sparse workers", (before.split.sample_ns, after.split.sample_ns)
    else:
        dense = [shard.worker for shard in shards if not shard.config.sparse]
        all_lines = max(all_lines_ns(before.shards[worker], options) for worker in dense)
        where, times = "on boards", (all_lines, lines.sample_ns([after.shards[worker] for worker in dense]))
    if times[1] > _ENOUGH * times[0] and not always:
        return before
    now, instead = microseconds(times[1]), microseconds(times[0])
    told = f"dense workers pass over zeros: predicted {now} µs a sample {where}, {instead} µs if they read all lines"
    return after._replace(remark=told)


def sample_values(data: Dataset, scaling: Scaling | Whitening, options: TrainingOptions) -> Callable[[int], Values]:
    """What is not 0 in the first training samples, for `deal_columns`, from all samples in the order of training."""

    def values(count: int) -> Values:
        which = slice(0, count)
        assert isinstance(scaling, Scaling)  # see `skipping_problem`
        own = quantized_values(data.local_features(which), scaling, options.stored, bias=options.bias)
        own = dataclasses.replace(own, rows=data.places(which)[own.rows])
        return Values.join(data.communicator.all_gather(own))

    return values


def skipping_problem(
    shards: Sequence[Shard], scaling: Scaling | Whitening | None, options: TrainingOptions, *, prepared: bool
) -> UserError | None:
    """Why zeros cannot be skipped, if they cannot; ``scaling`` is None if it is not yet known."""
    remedy = "choose --skip-zeros never" if prepared else "leave --skip-zeros always out"
    if all(shard.config.sparse for shard in shards):
        return UserError(
            f"all workers are sparse, which keep no zeros that could be skipped: {remedy}, or choose dense ones, such "
            f"as --config u280"
        )
    if options.precision != options.stored:
        fewer = f"prepare the data again with --precision {options.precision}" if prepared else "leave --planes out"
        return UserError(
            f"if zeros are skipped, all {options.stored} stored planes are read, not {options.precision}: {fewer}, or "
            f"{remedy}"
        )
    if isinstance(scaling, Whitening) or options.precondition != "none":
        return zeros_error(None, sparse=False)
    if scaling is not None and quantize(scaling.zero, options.stored, scaling.signed).any():
        return zeros_error(scaling.kind, sparse=False)
    return None
