"""Makes memory images of a data set: scales and quantises features and packs them into lines or, if sparse, entries."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.host.data.dataset import Dataset, TrainingRows
from p4sgd.host.data.matrix import Features, each_block, to_dense
from p4sgd.host.data.order import Order
from p4sgd.host.data.quantization import quantize
from p4sgd.host.data.scaling import Scaling, bias_integer
from p4sgd.host.data.statistics import HeatArray, Statistics, compiles, scaled
from p4sgd.host.errors import UserError, on_command_line, option
from p4sgd.host.image.contents import Values, entry_places, own_words, pack_lines
from p4sgd.host.image.file import store_images
from p4sgd.host.image.image import EntryBlock, Image, Shard
from p4sgd.host.precondition import Whitening
from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import LABEL, IntArray
from p4sgd.hw.spec.image import split_words
from p4sgd.sim.sparse.data_parallel import SampleRanks

_BLOCK_VALUES = 1 << 17
"""Features that are scaled and packed at once, so few that temporaries of 1 MB stay in the processor's cache."""


def prepare_images(
    data: TrainingRows,
    labels: IntArray,
    scaling: Scaling | Whitening,
    shards: Sequence[Shard],
    *,
    stored: int = 8,
    batch: int = BANKS,
    directory: Path | None = None,
    sample_ranks: SampleRanks | None = None,
    importances: IntArray | None = None,
    parts: Callable[[], Iterable[Dataset]] | None = None,
) -> list[Image]:
    """Scale, quantise and pack a data set into images of the workers of this process.

    Beyond the images this takes the memory of one block of samples. A rank packs what is for its own workers.

    Parameters
    ----------
    labels, importances
        `LABEL` and `IMPORTANCE` integers, (samples,), the latter ``None`` if all samples weigh the same.
    scaling
        Its heat, if any, is that of these samples.
    stored, batch
        Planes (S), 1 to 8, and samples of a mini-batch, a multiple of 8. The last one is filled with zero samples,
        whose bias, otherwise always `bias_integer`, is zero too, so that they change no weight.
    directory
        Folder for one file per worker (`image_file`), of which the images are maps; ``None`` keeps them in memory.
    sample_ranks
        Ranks that divide the samples of the only worker, a sparse one; None if they have a worker each.
    parts
        Reads the samples, as ``data.parts`` by default does.

    Raises `UserError` if zeros that an image leaves out would become other numbers, if the images do not fit into
    memory, or if a file cannot be written.
    """
    samples, counts = labels.size, None
    if any(shard.lists_values for shard in shards):
        if isinstance(scaling, Whitening) or scaling.moves_zeros(stored):
            kind = None if isinstance(scaling, Whitening) else scaling.kind
            raise zeros_error(kind, sparse=any(shard.config.sparse for shard in shards))
        counts = count_values(data, scaling) if scaling.heat is None else scaling.heat
    padded = -(-samples // batch) * batch
    bias = shards[0].total > scaling.scale.size  # which is not a feature of the data
    # All workers share them: there may be many samples.
    padded_labels = pad_samples(labels, padded)
    weights = None if importances is None else pad_samples(importances, padded)
    images = [
        Image(
            layout=shard.layout(padded, stored),
            signed=scaling.signed,
            shard=shard,
            workers=len(shards),
            samples=samples,
            bias=bias,
            labels=padded_labels,
            importances=weights,
            offset=shard.take(scaling.offset),
            scale=shard.take(scaling.scale),
            port_lines=(),
        )
        for shard in shards
    ]
    if counts is not None:
        rooms = (int(image.shard.take(counts).sum()) + samples * image.has_bias for image in images)
        images = [dataclasses.replace(image, room=room) for image, room in zip(images, rooms, strict=True)]
    own = images[data.communicator.rank :: data.communicator.size]
    if sample_ranks is not None:
        assert isinstance(data, Dataset)
        assert isinstance(scaling, Scaling)
        room = _own_room(data, images[0], batch // BANKS, sample_ranks, scaling.filled.size)
        own = [dataclasses.replace(images[0], room=room)]
    blocks = _PackedBlocks(parts or data.parts, images, own, scaling, batch // BANKS, sample_ranks)
    remedy = on_command_line("keep the images in files by p4sgd data prepare", "use fewer samples")
    if stored > 1:
        remedy += f", or store fewer than {stored} planes with {option('precision')} or {option('planes')}"
    return store_images(own, blocks, directory, name=data.name, remedy=remedy, communicator=data.communicator)


def pad_samples(values: IntArray, samples: int) -> npt.NDArray[np.int32]:
    """Labels or weights of samples as images have them: int32 (samples,), 0 for those that fill the last mini-batch."""
    if LABEL.overflows(values):
        raise ValueError(f"labels must fit {LABEL}")
    padded = np.zeros(samples, np.int32)
    padded[: values.size] = values
    return padded


def count_values(data: TrainingRows, scaling: Scaling) -> HeatArray:
    """How many values of each column are not 0, or become other numbers than 0: int (features,)."""
    extremes = Statistics(data.feature_count, data.samples)
    each_block(extremes.add, data.feature_blocks())
    extremes.nonzero[scaling.filled] = data.samples
    return extremes.nonzero


def _own_room(data: Dataset, image: Image, micro_batches: int, ranks: SampleRanks, filled: int) -> int:
    features = data.features
    if isinstance(features, np.ndarray):
        counts = np.count_nonzero(features, axis=1)
    else:
        counts = np.diff(features.indptr).astype(np.int64)
    holders = ranks.holders(np.arange(data.samples) // BANKS, micro_batches)
    counts = data.in_order(counts) + filled + int(image.bias)
    return int(counts[holders == ranks.rank].sum())


def zeros_error(scaling: str | None, *, sparse: bool = True) -> UserError:
    """The error of a scaling, or of whitening (``None``), that sparse workers, or dense ones that skip zeros, cannot
    do."""
    kind, remedy = f"the scaling {scaling}", "use the scaling maxabs or none"
    if scaling is None:
        kind, remedy = "whitening", f"leave {option('precondition')} out"
    if not sparse:
        return UserError(
            f"{kind} makes zeros other numbers, so none can be skipped: {remedy}, or leave "
            f"{option('skip_zeros', 'always')} out"
        )
    return UserError(
        f"{kind} makes zeros other numbers, and sparse workers keep only what is not 0: {remedy}, or use dense "
        f"workers{on_command_line(' (neither --config sparse nor --parallel data)')}"
    )


@dataclass(frozen=True, eq=False)
class _PackedBlocks:
    """Scaled, quantised and packed samples: `p4sgd.host.image.file.Blocks` for the workers of this process."""

    parts: Callable[[], Iterable[Dataset]]  # reads the samples; parts have whole micro-batches, one after another
    images: Sequence[Image]  # of all workers
    own: Sequence[Image]
    scaling: Scaling | Whitening
    micro_batches: int  # of a mini-batch
    sample_ranks: SampleRanks | None

    def __iter__(self) -> Iterator[list[npt.NDArray[np.uint8] | EntryBlock]]:
        first, image = 0, self.images[0]
        for part in self.parts():
            last = first + part.samples == image.samples
            yield from self._blocks(part, image.layout.samples - first if last else part.samples)
            first += part.samples
            del part  # before the next one is read

    def _blocks(self, data: Dataset, padded: int) -> Iterator[list[npt.NDArray[np.uint8] | EntryBlock]]:
        """Those of a part, with the zero samples that fill it."""
        listed = [image.shard.lists_values for image in self.images]
        values, width = _BLOCK_VALUES, data.feature_count + 1
        if all(listed):  # temporaries take some 40 bytes an entry
            values, width = values // 2, 1 + sum(image.room for image in self.images) // self.images[0].layout.samples
        step = max(1, values // (BANKS * width)) * BANKS
        places = [entry_places(image) for image in self.own] if any(listed) else []
        for first in range(0, padded, step):
            which, samples = slice(first, first + step), min(step, padded - first)
            lines = iter(() if all(listed) else self._dense(data, which))
            words = iter(self._listed(data, which, places) if any(listed) else ())
            yield [
                EntryBlock(*split_words(next(words), samples // BANKS))
                if image.shard.lists_values
                else pack_lines(next(lines), image.layout, samples)
                for image in self.own
            ]

    def _dense(self, data: Dataset, which: slice) -> list[npt.NDArray[np.uint8]]:
        """Features of a block for this process's workers with lines of all, quantised: uint8 (samples, features)."""
        scaling, stored, count = self.scaling, self.images[0].layout.stored, data.feature_count
        block = np.tile(self._blank, (len(range(*which.indices(data.samples))), 1))
        if not data.sparse and isinstance(scaling, Scaling) and compiles(data.samples * count):
            from p4sgd.host.data.kernels import quantize_scaled

            rows, own = data.local_rows(which), (scaling.offset, scaling.scale, stored, scaling.signed)
            quantize_scaled(np.asarray(data.features), rows, *own, block)
        elif not data.sparse or isinstance(scaling, Whitening):
            block[:, :count] = _quantize(scaling.apply(data.local_features(which)), stored, scaling)
        elif block.size:
            assert isinstance(scaling, Scaling)
            values = _stored_values(data.features, data.local_rows(which), scaling, stored)
            block[values.rows, values.columns] = values.values
        return [block[:, image.shard.columns] for image in self.own if not image.shard.lists_values]

    def _listed(
        self, data: Dataset, which: slice, places: Sequence[npt.NDArray[np.int32]]
    ) -> list[npt.NDArray[np.uint64]]:
        """Entries of a block for the other workers of this process: `own_words` of each."""
        stored = self.images[0].layout.stored
        assert isinstance(self.scaling, Scaling)  # whitening leaves no zeros
        rows, bias = data.local_rows(which), self.images[0].bias
        parts = quantized_values(data.features, rows, self.scaling, stored, bias=bias)
        if (ranks := self.sample_ranks) is not None:
            holders = (ranks.holders((which.start + part.rows) // BANKS, self.micro_batches) for part in parts)
            parts = [part.of(own == ranks.rank) for part, own in zip(parts, holders, strict=True)]
        return [
            own_words(parts, place, stored)
            for image, place in zip(self.own, places, strict=True)
            if image.shard.lists_values
        ]

    @functools.cached_property
    def _blank(self) -> npt.NDArray[np.uint8]:
        stored, scaling = self.images[0].layout.stored, self.scaling
        bias = [bias_integer(stored, scaling.signed) & 0xFF] * self.images[0].bias
        return np.append(_quantize(scaling.zero, stored, scaling), np.array(bias, np.uint8))


def quantized_values(features: Features, rows: Order, scaling: Scaling, stored: int, *, bias: bool) -> list[Values]:
    """Some samples, quantised to so many planes, without most of their zeros, for a scaling that keeps these, in parts
    with different columns. With ``bias`` each sample has one, as the last feature of the job."""
    numbers, width = np.arange(rows.size), features.shape[1]
    if isinstance(features, np.ndarray):
        dense = _quantize(scaling.apply(features[rows]), stored, scaling)
        samples, columns = np.nonzero(dense)
        parts = [Values(samples, columns, dense[samples, columns])]
    else:
        parts = [_stored_values(features, rows, scaling, stored)]
        if (filled := scaling.filled).size:
            parts = [part.of(scaling.offset[part.columns] == 0) for part in parts]
            whole = scaled(to_dense(features[rows][:, filled]), scaling.offset[filled], scaling.scale[filled])
            samples, columns = np.repeat(numbers, filled.size), np.tile(filled, rows.size)
            parts.append(Values(samples, columns, _quantize(whole, stored, scaling).reshape(-1)))
    if bias:
        value = np.uint8(bias_integer(stored, scaling.signed) & 0xFF)
        parts.append(Values(numbers, np.full(rows.size, width), np.full(rows.size, value)))
    return parts


def _quantize(a: npt.NDArray[np.float64], stored: int, scaling: Scaling | Whitening) -> npt.NDArray[np.uint8]:
    return quantize(a, stored, scaling.signed).astype(np.uint8)


def _stored_values(features: Any, rows: Order, scaling: Scaling, stored: int) -> Values:
    from p4sgd.host.data.kernels import quantize_stored

    return Values(*quantize_stored(features, rows, scaling.offset, scaling.scale, stored, scaling.signed))
