"""Makes features of memory images, and weights to train on them: dense or sparse, whichever is faster."""

import weakref
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import EngineWeights, IntArray
from p4sgd.hw.spec.image import entry_words, split_words
from p4sgd.hw.spec.run import FeatureFormat, RunSettings
from p4sgd.sim.dense import DenseFeatures, DenseModel
from p4sgd.sim.lines import Lines, offset
from p4sgd.sim.model import Features, Model, Targets
from p4sgd.sim.sparse.data_parallel import DataParallelModel, SampleRanks
from p4sgd.sim.sparse.entries import Directories, Entries, sort_words
from p4sgd.sim.sparse.model import SparseFeatures, SparseModel

Source: TypeAlias = Lines | Directories | Entries
"""Features of a worker as its memory has them."""

_SPARSE, _LEAST = 0.05, 1 << 12
"""Entries are faster than a byte for every feature if at most this fraction of the values is not 0, and a worker has at
least so many features."""

_SAMPLED = 1 << 22  # about as many values show whether data are sparse; and as many are decoded at a time

_shared: weakref.WeakValueDictionary[tuple[object, ...], Features] = weakref.WeakValueDictionary()


def shared_features(sources: Sequence[Source]) -> Features:
    """The features of workers whose sources are of one kind; ValueError as `Entries.check` and `Directories.entries`.

    As long as somebody has those of the same sources, it is the same object: so lines are decoded, and entries checked
    and merged, only once. Lines of which most features are 0 become entries, and so do all lines with directories.
    """
    # While an object lives, so do its sources, and no other arrays have their addresses.
    identity = tuple(each.identity for each in sources)
    found = _shared.get(identity)
    if found is None:
        lines = [each for each in sources if isinstance(each, Lines)]
        if lines and not _are_sparse(lines):
            found = DenseFeatures(lines)
        else:
            found = SparseFeatures([_entries(each) for each in sources])
        _shared[identity] = found
        found.origin = sources
    return found


def new_model(
    features: Features,
    weights: Sequence[EngineWeights],
    settings: RunSettings,
    targets: Targets,
    limits: IntArray,
    exempt: Sequence[int | None],
    ranks: SampleRanks | None = None,
) -> Model:
    """A model to train from initial ``weights`` of each worker; ``settings``, ``targets`` and ``limits`` as in `Model`.

    ``exempt`` is for each worker the index of its weight without penalties, that of the bias, or None. ``ranks`` are
    processes that have other samples of the worker, a single sparse one.
    """
    given = weights, settings, targets, limits, exempt
    if isinstance(features, SparseFeatures):
        return SparseModel(features, *given) if ranks is None else DataParallelModel(features, *given, ranks)
    assert isinstance(features, DenseFeatures)
    return DenseModel(features, *given)


def _are_sparse(lines: Sequence[Lines]) -> bool:
    """Whether few of the features are not 0, in micro-batches from all over the data, and a worker has many."""
    if max(each.size for each in lines) < _LEAST:
        return False
    seen = nonzero = 0
    for each in lines:
        micro_batches = each.micro_batches
        wanted = max(1, _SAMPLED // (len(lines) * BANKS * each.size))
        for micro_batch in np.unique(np.linspace(0, micro_batches - 1, min(wanted, micro_batches)).astype(int)):
            decoded = each.decode(int(micro_batch), 1)
            nonzero += int(np.count_nonzero(decoded != offset(each.form)))
            seen += decoded.size
    return nonzero <= _SPARSE * seen


def _entries(source: Source) -> Entries:
    """The features that are not 0; of lines, of as many bits as are read."""
    if isinstance(source, Directories):
        return source.entries()
    if isinstance(source, Entries):
        source.check()
        return source
    form, micro_batches = source.form, source.micro_batches
    zero, unit = offset(form), max(source.unit, source.lanes)
    step = max(1, _SAMPLED // (BANKS * source.size))
    parts = []
    for first in range(0, micro_batches, step):
        count = min(step, micro_batches - first)
        decoded = source.decode(first, count)
        engine, row, place = np.nonzero(decoded != zero)
        columns = (place // unit * source.engines + engine) * unit + place % unit
        values = decoded[engine, row, place] ^ np.uint8(zero)  # inverts the sign bit
        parts.append(split_words(sort_words(entry_words(row, columns, values)), count))
    counts, keys, values = (np.concatenate(each) for each in zip(*parts, strict=True))
    return Entries(
        starts=np.append(0, np.cumsum(counts)),
        keys=keys,
        values=values,
        form=FeatureFormat(form.precision, form.precision, form.signed),
        unit=unit,
        shape=(source.engines, source.size // source.engines),
    )
