"""Whether boards pass over lines of zeros: what it takes, what it gains, and which units they then have.

With directories (:mod:`p4sgd.hw.spec.image`) the time of a board depends on what is not 0 in its columns. Most of that
is in the first, hot units. So dense workers get theirs in turn: all engines have about as many lines.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from p4sgd.host.data import Dataset, Scaling
from p4sgd.host.data.quantization import quantize
from p4sgd.host.data.scaling import HeatArray
from p4sgd.host.errors import UserError
from p4sgd.host.image import Image, Shard, prepare_images
from p4sgd.host.image.entries import directories_of
from p4sgd.host.image.packing import zeros_error
from p4sgd.host.precondition import Whitening
from p4sgd.host.training.heat import Split, WorkerShare, heat_order, microseconds
from p4sgd.host.training.options import TrainingOptions
from p4sgd.hw.spec.config import BANKS, CLOCK_NS
from p4sgd.hw.spec.image import BANK_BITS
from p4sgd.hw.spec.timing import (
    BOARDS_NETWORK,
    UPDATE_SPACING,
    backward_cycles,
    chaining_cycles,
    forward_cycles,
    mini_batch_cycles,
)

__all__ = ["Skipping", "deal_in_turn", "restate", "skip_zeros"]

_SAMPLED = 512
"""Samples, the first ones in random order, whose lines are counted."""

_ENOUGH = 0.9
"""Zeros are skipped for so much of the time or less: the prediction is not exact, and packing takes longer."""


class Skipping(NamedTuple):
    """The workers, and whether they pass over zeros."""

    shards: list[Shard]
    split: Split | None
    """How columns are divided between dense and sparse workers, with the times that are predicted now."""
    remarks: tuple[str, ...] = ()


def skip_zeros(
    shards: Sequence[Shard],
    data: Dataset | None,
    scaling: Scaling | Whitening,
    options: TrainingOptions,
    split: Split | None = None,
    *,
    samples: int = 0,
) -> Skipping:
    """Have dense workers pass over zeros, if the options say so or if that should be faster.

    Parameters
    ----------
    shards, split
        The workers and the split, as `p4sgd.host.training.heat.deal_by_heat` gives them.
    data
        The training samples, in random order; ``None`` if there are only images of them, with all lines. These stay
        what they are unless zeros are to be skipped ``always``.
    scaling
        Their scaling.
    options
        Options of the training run.
    samples
        Number of training samples, if there is no ``data``.

    Raises
    ------
    UserError
        If zeros are to be skipped and cannot be.
    """
    heat = scaling.heat if isinstance(scaling, Scaling) else None
    always, unchanged = options.skip_zeros == "always", Skipping(list(shards), split)
    if options.skip_zeros == "never" or (not always and (heat is None or data is None)):
        return unchanged
    problem = _problem(shards, scaling, options, prepared=data is None)
    if problem is not None:
        if always:
            raise problem
        return unchanged
    dealt = deal_in_turn(shards, heat)
    if data is None:  # so no time can be predicted
        return Skipping(dealt, restate(split, dealt, heat, samples), ("dense workers pass over zeros",))
    times = _predict(dealt, data, scaling, options)
    before, after = max(_sample_ns(shards[worker], options) for worker in times), max(times.values())
    if after > _ENOUGH * before and not always:
        return unchanged
    told = (
        f"dense workers pass over zeros: predicted {microseconds(after)} instead of {microseconds(before)} µs a sample "
        f"on boards"
    )
    return Skipping(dealt, restate(split, dealt, heat, data.samples, times), (told,))


def deal_in_turn(shards: Sequence[Shard], heat: HeatArray | None) -> list[Shard]:
    """Deal the units of dense workers to them in turn, to each as many as it has, and have them pass over zeros.

    Parameters
    ----------
    shards
        The workers.
    heat
        Samples that have a feature, if the data are sparse: then units are in its order.
    """
    dense, dealt = [shard for shard in shards if not shard.config.sparse], list(shards)
    units = np.sort(np.concatenate([shard.units for shard in dense]))
    sizes = [shard.units.size for shard in dense]
    turns = np.concatenate([(np.arange(size) + 0.5) / size for size in sizes])
    owners = np.repeat(np.arange(len(dense)), sizes)[np.argsort(turns, kind="stable")]
    order = None if heat is None else heat_order(heat, shards[0].total)
    for number, shard in enumerate(dense):
        own = dataclasses.replace(shard, units=units[owners == number], directory=True)
        dealt[shard.worker] = own.in_order(order)
    return dealt


def restate(
    split: Split | None,
    shards: Sequence[Shard],
    heat: HeatArray | None,
    samples: int,
    times: Mapping[int, float] | None = None,
) -> Split | None:
    """A split whose dense workers have other columns, as many as before.

    Parameters
    ----------
    split
        The split, if there is one.
    shards
        The workers.
    heat, samples
        Samples that have a feature, and all samples.
    times
        Predicted time of each dense worker for a sample, in ns, if it passes over zeros; ``None`` for those that it
        takes to read all lines.
    """
    if split is None or heat is None:
        return split
    workers, total = list(split.workers), _nonzeros(heat, split.total, samples)
    for shard in shards:
        known = workers[shard.worker]
        if not known.sparse:
            part = _nonzeros(shard.take(heat), shard.features, samples) / total
            sample_ns = known.sample_ns if times is None else times[shard.worker]
            workers[shard.worker] = WorkerShare(False, shard.features, part, sample_ns)
    return dataclasses.replace(split, workers=tuple(workers), skips_zeros=times is not None)


def _nonzeros(heat: npt.NDArray[np.signedinteger], features: int, samples: int) -> int:
    """How many values of so many features are not 0: the bias, of which there is no heat, is in all samples."""
    return int(heat.sum()) + samples * (features - heat.size)


def _problem(
    shards: Sequence[Shard], scaling: Scaling | Whitening, options: TrainingOptions, *, prepared: bool
) -> UserError | None:
    """Why zeros cannot be skipped."""
    remedy = "leave --skip-zeros always out"
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
    if isinstance(scaling, Whitening):
        return zeros_error(None, sparse=False)
    if quantize(scaling.zero, options.stored, scaling.signed).any():
        return zeros_error(scaling.kind, sparse=False)
    return None


def _sample_ns(shard: Shard, options: TrainingOptions) -> float:
    """Predicted time of a board that reads all lines for a sample, in ns."""
    chunks, stale = shard.layout(BANKS, options.stored).chunks, bool(options.staleness)
    cycles = mini_batch_cycles(shard.config, options.batch, chunks, options.precision, BOARDS_NETWORK, stale=stale)
    return cycles * CLOCK_NS / options.batch


def _predict(
    shards: Sequence[Shard], data: Dataset, scaling: Scaling | Whitening, options: TrainingOptions
) -> dict[int, float]:
    """Predicted time of each worker that passes over zeros for a sample, in ns, by the lines of some samples."""
    sample = data.take(np.arange(min(data.samples, _SAMPLED)))
    known = dataclasses.replace(scaling, heat=None) if isinstance(scaling, Scaling) else scaling
    images = prepare_images(sample, np.zeros(sample.samples, np.int64), known, shards, stored=options.stored)
    own = {
        image.shard.worker: _cycles(image, options) * CLOCK_NS / options.batch
        for image in images
        if image.shard.directory
    }
    return {worker: each for part in data.communicator.all_gather(own) for worker, each in part.items()}


def _cycles(image: Image, options: TrainingOptions) -> float:
    """Predicted cycles of a mini-batch of a board with such an image.

    As `mini_batch_cycles`, with the lines that there are. A directory takes a cycle more. At the end of a mini-batch
    every chunk is updated, so those that are absent from its last micro-batch take a cycle each.
    """
    layout, config = image.layout, image.layout.config
    assert image.starts is not None
    entries = directories_of(image).entries()
    engines, chunks = config.engines, layout.chunks
    places = (entries.keys >> BANK_BITS).astype(np.int64) // config.lanes
    each = np.repeat(np.arange(layout.micro_batches), np.diff(entries.starts))
    micro_batches, places = np.divmod(np.unique(each * engines * chunks + places), engines * chunks)
    own = places // layout.unit_chunks % engines * layout.micro_batches + micro_batches
    listed = np.bincount(own, minlength=engines * layout.micro_batches).reshape(engines, -1)
    lines = np.diff(image.starts) + -(-listed // layout.line_descriptors)
    busy = np.maximum(lines, UPDATE_SPACING).mean(axis=1) * (options.batch // BANKS) + chunks - listed.mean(axis=1)
    slowest = float(busy.max())
    whole = slowest + forward_cycles(config) + BOARDS_NETWORK + backward_cycles() + chaining_cycles(options.precision)
    return max(slowest, whole / 2) if options.staleness else whole
