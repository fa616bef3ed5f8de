"""Memory images of a data set: features are partitioned among the workers, quantised, and packed into lines."""

import contextlib
import dataclasses
import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from p4sgd.host.data.dataset import Dataset, Features
from p4sgd.host.data.quantization import quantize
from p4sgd.host.data.scaling import Scaling, bias_integer
from p4sgd.host.data.statistics import COMPILED_VALUES
from p4sgd.host.distributed.communicator import SINGLE_PROCESS, Communicator, raise_on_all
from p4sgd.host.errors import UserError
from p4sgd.host.files import new_file, write_error
from p4sgd.host.image.file import Image, ImageWriter, Shard, image_file, open_image
from p4sgd.host.precondition import Whitening
from p4sgd.hw.spec.config import BANKS, PRESETS, WorkerConfig
from p4sgd.hw.spec.fixed import LABEL, IntArray
from p4sgd.hw.spec.image import ImageLayout
from p4sgd.hw.spec.run import MAX_WORKERS, UNITS, most_chunks

__all__ = [
    "PackedBlocks",
    "available_memory",
    "pack_lines",
    "partition",
    "plan_images",
    "prepare_images",
    "store_images",
    "unpack_lines",
]


def partition(
    features: int,
    configs: Sequence[WorkerConfig],
    *,
    bias: bool,
    unit: int,
    precision: int = 1,
    stale: bool = False,
    shares: Sequence[float] | None = None,
    speeds: Sequence[float] | None = None,
    names: Sequence[str] | None = None,
) -> list[Shard]:
    """Deal units to workers, consecutive ones to each, by shares or so that all finish at about the same time.

    Every worker gets a unit. By shares, each further unit goes to the worker that then has the fewest units for its
    share (the method of D'Hondt). By speeds, it goes to the worker that would finish it first, if the time of a worker
    is that of its fullest engine. As all units are alike, no deal of whole units finishes earlier, or has a smaller
    maximum of units for a share. A worker that is full gets no more.

    Parameters
    ----------
    features
        Number of features of the data.
    configs
        Configuration of each worker, 1 to 32.
    bias
        Whether a bias follows the features as the last one.
    unit
        Features of a unit.
    precision, stale
        Of the run: they limit what a worker can hold, see `check_capacity`. The limit is kept if the units fit.
    shares
        Share of each worker, in proportion; ``None`` for equal ones.
    speeds
        In place of shares: units that each worker does in a second, if all its engines have as many.
    names
        What messages call the workers; ``None`` for "worker 0" and so on.

    Returns
    -------
    One shard per worker; together they have all features, in order.

    Raises
    ------
    UserError
        If a worker would get no unit, or if the workers cannot hold all units.
    """
    workers = len(configs)
    if not 1 <= workers <= MAX_WORKERS:
        raise UserError(f"workers must be 1 to {MAX_WORKERS}, not {workers}")
    total = features + bias
    named = f"{features} features{' and the bias' if bias else ''}"
    count = -(-total // unit)
    if count < workers:
        are, most = (f"{count} {noun}{'s' if count > 1 else ''}" for noun in ("unit", "worker"))
        remedies = [f"at most {most}", *_other_unit(total, unit, configs, precision, stale=stale)]
        raise UserError(f"{named} are {are} of {unit}, too few for {workers} workers: use {' or '.join(remedies)}")
    names = names or [f"worker {worker}" for worker in range(workers)]
    rooms = [_units_held(config, unit, precision, stale=stale) for config in configs]
    if sum(rooms) < count or min(rooms) == 0:  # the caller's check of capacity says what limits them
        rooms = [_units_held(config, unit) for config in configs]
    if sum(rooms) < count or min(rooms) == 0:
        remedies = _other_unit(total, unit, configs, precision, stale=stale)
        if min(rooms) == 0 and len(set(rooms)) > 1:
            raise UserError(
                f"{names[rooms.index(0)]} cannot hold a unit of {unit} features: use "
                f"{' or '.join(['a larger worker in its place', *remedies])}"
            )
        raise UserError(f"{named} {_no_room(count, unit, configs, rooms, names, remedies)}")
    if speeds is None:
        counts = _deal(count, rooms, [1] * workers, shares or [1.0] * workers)
    else:
        counts = _deal(count, rooms, [config.engines for config in configs], speeds)
    edges = np.cumsum([0, *counts])
    return [
        Shard(worker, config, np.arange(edges[worker], edges[worker + 1]), unit, total)
        for worker, config in enumerate(configs)
    ]


def _deal(count: int, rooms: Sequence[int], engines: Sequence[int], speeds: Sequence[float]) -> list[int]:
    """How many of ``count`` units each worker gets, at least one and at most its room."""
    counts = [1] * len(rooms)

    def with_one_more(worker: int) -> tuple[float, float, int]:
        """When the worker would finish; if several at the same time, the one with the fewest units is next."""
        units, each = counts[worker] + 1, engines[worker]
        return -(-units // each) * each / speeds[worker], units / speeds[worker], worker

    queue = [with_one_more(worker) for worker, room in enumerate(rooms) if room > 1]
    heapq.heapify(queue)
    for _ in range(count - len(rooms)):
        *_, worker = heapq.heappop(queue)
        counts[worker] += 1
        if counts[worker] < rooms[worker]:
            heapq.heappush(queue, with_one_more(worker))
    return counts


def _other_unit(total: int, unit: int, configs: Sequence[WorkerConfig], precision: int, *, stale: bool) -> list[str]:
    """A remedy, if there is one: the nearest unit with which all workers get units, and hold them."""
    fitting = []
    for other in UNITS:
        count, rooms = -(-total // other), [_units_held(config, other, precision, stale=stale) for config in configs]
        if len(configs) <= count <= sum(rooms) and min(rooms) > 0:
            fitting.append(other)
    return [f"--unit {min(fitting, key=lambda other: abs(other - unit))}"] if fitting else []


def _no_room(
    count: int,
    unit: int,
    configs: Sequence[WorkerConfig],
    rooms: Sequence[int],
    names: Sequence[str],
    other_unit: Sequence[str],
) -> str:
    """Why workers cannot hold so many units, and what to do, for messages."""
    workers, room = len(configs), rooms[0]
    if len(set(rooms)) > 1:
        held = ", ".join(f"{name}: {room}" for name, room in zip(names, rooms, strict=True))
        remedies = ["more or larger workers", *other_unit]
        return f"are {count} units of {unit}, more than all workers hold ({held}): use {' or '.join(remedies)}"
    largest = -(-count // workers)
    needed = -(-count // room) if room else MAX_WORKERS + 1
    remedies = [f"at least {needed} workers"] if needed <= MAX_WORKERS else []
    remedies += other_unit
    if larger := [name for name, make in PRESETS.items() if _units_held(make(), unit) >= largest]:
        remedies.append(f"a larger configuration ({', '.join(larger)})")
    return (
        f"over {workers} worker{'s' if workers > 1 else ''} are up to {largest} units of {unit} a worker, "
        f"this configuration holds {room}: use {' or '.join(remedies or ['fewer features'])}"
    )


def _units_held(config: WorkerConfig, unit: int, precision: int = 1, *, stale: bool = False) -> int:
    """Most units of a worker."""
    return config.engines * (most_chunks(config, precision, stale=stale) * config.lanes // max(unit, config.lanes))


_SWAPS = ((7, 0x00AA00AA00AA00AA), (14, 0x0000CCCC0000CCCC), (28, 0x00000000F0F0F0F0))
"""Shift and mask of the three steps of an 8×8 bit transpose in a 64-bit word (H. S. Warren, Hacker's Delight, §7–3)."""


def pack_lines(q: npt.NDArray[np.uint8], layout: ImageLayout) -> npt.NDArray[np.uint8]:
    """Lines of some micro-batches, as defined by `ImageLayout.pack_lines`.

    The 8 bits of 8 neighbouring lanes are an 8×8 bit matrix in one 64-bit word; its transpose has one byte per plane.

    Parameters
    ----------
    q
        uint8 (samples, padded features), as `ImageLayout.pad` gives them, C-contiguous, samples a multiple of 8: S-bit
        features in the low bits; the higher bits are ignored. The array is overwritten.
    layout
        Layout of the image; its number of samples does not matter.

    Returns
    -------
    uint8 (engines · ports, T, C, S, 8/ports, lanes/8), C-contiguous; T is the number of micro-batches in ``q``.
    """
    words = q.view(np.uint64)
    _transpose_bits(words)
    planes = words.view(np.uint8).reshape(-1, *_plane_shape(layout))
    most_significant_first = planes[..., layout.stored - 1 :: -1]
    lines = np.ascontiguousarray(most_significant_first.transpose(_LINE_ORDER))
    return lines.reshape(-1, planes.shape[0], layout.chunks, *lines.shape[5:])


def unpack_lines(lines: npt.NDArray[np.uint8], layout: ImageLayout) -> npt.NDArray[np.uint8]:
    """Undo `pack_lines`: the S-bit features in the low bits, 0 above them."""
    planes = np.zeros((lines.shape[1], *_plane_shape(layout)), np.uint8)
    most_significant_first = planes[..., layout.stored - 1 :: -1]
    in_line_order = lines.reshape([most_significant_first.shape[axis] for axis in _LINE_ORDER])
    most_significant_first[:] = in_line_order.transpose(np.argsort(_LINE_ORDER))
    words = planes.reshape(lines.shape[1] * BANKS, -1).view(np.uint64)
    _transpose_bits(words)
    return words.view(np.uint8)


_LINE_ORDER = (4, 1, 0, 3, 5, 7, 2, 6)
"""Axes of `_plane_shape`, after that of micro-batches, in the order in which lines have them."""


def _plane_shape(layout: ImageLayout) -> tuple[int, ...]:
    """Bytes of a micro-batch before they are put in order: port, bank of the port, unit of the engine, engine, chunk of
    the unit, group of 8 lanes, bit of the feature."""
    config = layout.config
    units = layout.chunks // layout.unit_chunks
    return (config.ports, BANKS // config.ports, units, config.engines, layout.unit_chunks, config.lanes // 8, 8)


def _transpose_bits(words: npt.NDArray[np.uint64]) -> None:
    """Transpose 64-bit words as 8×8 bits, in place."""
    swapped = np.empty_like(words)
    for shift, mask in _SWAPS:
        np.right_shift(words, np.uint64(shift), out=swapped)
        swapped ^= words
        swapped &= np.uint64(mask)
        words ^= swapped
        swapped <<= np.uint64(shift)
        words ^= swapped


_BLOCK_VALUES = 1 << 17
"""Features that are scaled and packed at once, so few that temporaries of 1 MB stay in the processor's cache."""


def prepare_images(
    data: Dataset,
    labels: IntArray,
    scaling: Scaling | Whitening,
    shards: Sequence[Shard],
    *,
    stored: int = 8,
    batch: int = BANKS,
    directory: Path | None = None,
) -> list[Image]:
    """Scale, quantise and pack a data set.

    Beyond the images this takes the memory of one block of samples, whatever the size of the data; of sparse samples
    only stored values are scaled and quantised. If several ranks share the data set, each quantises its own samples,
    sends every other rank the columns of that rank's worker, and packs what it receives.

    Parameters
    ----------
    data
        The samples.
    labels
        `LABEL` integers, (samples,).
    scaling
        Scaling of the features.
    shards
        The workers, as `partition` gives them. If they have a bias, it is always `bias_integer`.
    stored
        Planes (S), 1 to 8.
    batch
        Samples of a mini-batch, a multiple of 8. The last one is filled with zero samples, whose bias is zero too, so
        that they change no weight.
    directory
        Folder for one file per worker (`image_file`), of which the images are maps. ``None`` keeps them in memory.

    Returns
    -------
    The images of the workers of this process.

    Raises
    ------
    UserError
        If the batch is no multiple of 8, if the features do not suit the workers, if the images do not fit into memory,
        or if a file cannot be written. No incomplete file is left behind.
    """
    if labels.shape != (data.samples,) or scaling.scale.shape != (data.feature_count,):
        raise ValueError(f"labels {labels.shape} and scaling {scaling.scale.shape} must fit {data.features.shape}")
    planned = plan_images(labels, scaling, shards, stored=stored, batch=batch)
    own = planned[data.communicator.rank :: data.communicator.size]
    blocks = PackedBlocks(data, planned, scaling, planned[0].layout.samples)
    fewer = "" if stored == 1 else f", or store fewer than {stored} planes with --precision or --planes"
    remedy = f"keep the images in files with --images DIR or by p4sgd data prepare{fewer}"
    return store_images(own, blocks, directory, name=data.name, remedy=remedy, communicator=data.communicator)


def plan_images(
    labels: IntArray,
    scaling: Scaling | Whitening,
    shards: Sequence[Shard],
    *,
    stored: int = 8,
    batch: int = BANKS,
) -> list[Image]:
    """The images of all workers as `prepare_images` makes them, but without lines.

    Parameters
    ----------
    labels, scaling, shards, stored, batch
        See `prepare_images`.

    Raises
    ------
    UserError
        If the batch is no multiple of 8, or if there are more planes than the hardware has.
    """
    if batch < BANKS or batch % BANKS:
        raise UserError(f"batch must be a multiple of {BANKS}, not {batch}")
    if not 1 <= stored <= 8:
        raise UserError(f"stored planes must be 1 to 8, not {stored}")
    if LABEL.overflows(labels):
        raise ValueError(f"labels must fit {LABEL}")
    padded_samples = -(-labels.size // batch) * batch
    padded_labels = np.zeros(padded_samples, np.int32)
    padded_labels[: labels.size] = labels
    # The bias is not a feature of the data and is not scaled.
    bias = shards[0].total > scaling.scale.size
    offset, scale = (np.append(each, np.zeros(int(bias))) for each in (scaling.offset, scaling.scale))
    return [
        Image(
            layout=shard.layout(padded_samples, stored),
            signed=scaling.signed,
            shard=shard,
            workers=len(shards),
            samples=labels.size,
            bias=bias,
            labels=padded_labels,
            offset=offset[shard.columns],
            scale=scale[shard.columns],
            port_lines=(),
        )
        for shard in shards
    ]


LineBlocks: TypeAlias = Iterable[list[npt.NDArray[np.uint8]]]
"""For some micro-batches after others the lines of each worker: uint8 (engines · ports, T, C, S, 8/ports, lanes/8)."""


def store_images(
    images: Sequence[Image],
    blocks: LineBlocks,
    directory: Path | None,
    *,
    name: str,
    remedy: str,
    communicator: Communicator = SINGLE_PROCESS,
) -> list[Image]:
    """Give images their lines.

    Parameters
    ----------
    images
        Images without lines, of the workers of this process.
    blocks
        The lines.
    directory
        See `prepare_images`.
    name
        Name of the data, for messages.
    remedy
        What helps if the images do not fit into memory, for messages.
    communicator
        The processes that do this together.

    Raises
    ------
    UserError
        See `prepare_images`.
    """
    if directory is not None:
        return _in_files(images, blocks, directory)
    raise_on_all(communicator, partial(_check_room, images, name, remedy))
    return _in_memory(images, blocks)


def _check_room(own: Sequence[Image], name: str, remedy: str) -> None:
    """Check that images fit into memory.

    They store all features of all samples, including zeros, so that those of a small sparse file may be large.

    Raises
    ------
    UserError
        If they are larger than the available memory.
    """
    needed = sum(image.layout.config.labels_memory * image.layout.lines_bytes for image in own)
    available = available_memory()
    if available is not None and needed > available:
        features = own[0].shard.total - own[0].bias
        raise UserError(
            f"{name}: the memory images of {own[0].samples:,} samples of {features:,} features take "
            f"{needed / 1e9:,.1f} GB, zeros included, and {available / 1e9:,.1f} GB of memory are available: "
            f"{remedy}"
        )


def available_memory() -> int | None:
    """Memory that can still be allocated, including swap, in bytes; ``None`` where the system does not report it."""
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        free = sum(int(fields[name].split()[0]) << 10 for name in ("MemAvailable", "SwapFree"))
    except (OSError, KeyError, ValueError):
        return None
    group = Path("/sys/fs/cgroup")  # a container may be allowed less than the machine has
    try:
        limit = int((group / "memory.max").read_text())
        used = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return min(free, limit - int(used["anon"]))  # file caches can be evicted
    except (OSError, KeyError, ValueError):  # no limit, or no control groups
        return free


def _in_memory(own: Sequence[Image], blocks: LineBlocks) -> list[Image]:
    lines = [np.empty((image.layout.config.labels_memory, *image.layout.lines_shape), np.uint8) for image in own]
    done = 0
    for block in blocks:
        for part, target in zip(block, lines, strict=True):
            target[:, done : done + part.shape[1]] = part
        done += block[0].shape[1]
    return [dataclasses.replace(image, port_lines=tuple(each)) for image, each in zip(own, lines, strict=True)]


def _in_files(own: Sequence[Image], blocks: LineBlocks, directory: Path) -> list[Image]:
    try:
        directory.mkdir(exist_ok=True)
    except OSError as error:
        raise write_error(directory, error) from error
    paths = [image_file(directory, image.shard.worker) for image in own]
    with contextlib.ExitStack() as files:
        writers = [
            ImageWriter(files.enter_context(new_file(path, ImageWriter.file_bytes(image))), image)
            for path, image in zip(paths, own, strict=True)
        ]
        for block in blocks:
            for part, writer in zip(block, writers, strict=True):
                writer.append_lines(part)
        for writer in writers:
            writer.finish()
    return [open_image(path, verify=False) for path in paths]


@dataclass(frozen=True, eq=False)
class PackedBlocks:
    """Scaled, quantised and packed samples of a data set, block by block.

    Iterating gives, for each block, the lines of each worker of this process: uint8 (engines · ports, T, C, S, 8/ports,
    lanes/8). The micro-batches (T) of all blocks have ``padded_samples`` samples.

    Parameters
    ----------
    data
        The samples.
    images
        Images of all workers, from `plan_images`.
    scaling
        Scaling of the features.
    padded_samples
        Number of samples including the zero samples at the end; a multiple of 8.
    """

    data: Dataset
    images: Sequence[Image]
    scaling: Scaling | Whitening
    padded_samples: int

    def __iter__(self) -> Iterator[list[npt.NDArray[np.uint8]]]:
        features, ranks = self.data.feature_count, self.data.communicator
        step = max(1, _BLOCK_VALUES // (BANKS * (features + 1))) * BANKS * ranks.size
        # A quantised sample without stored features.
        blank = np.zeros(features + int(self.images[0].bias), np.uint8)
        blank[:features] = self._quantize(self.scaling.zero)
        blank[features:] = bias_integer(self._stored, self.scaling.signed) & 0xFF
        for first in range(0, self.padded_samples, step):
            which = slice(first, first + step)
            held = self.data.local_features(which)
            block = np.empty((held.shape[0], blank.size), np.uint8)
            block[:] = blank
            self._fill(block, held)
            parts = [block[:, image.shard.columns] for image in self.images]
            dealt, samples = self.data.redistribute(parts, which), min(step, self.padded_samples - first)
            own = self.images[ranks.rank :: ranks.size]
            yield [_pack(part, samples, image.layout) for part, image in zip(dealt, own, strict=True)]

    @property
    def _stored(self) -> int:
        return self.images[0].layout.stored

    def _fill(self, block: npt.NDArray[np.uint8], features: Features) -> None:
        """Quantise the features of some samples in the first columns of a block, which has zeros' integers."""
        scaling, count = self.scaling, features.shape[1]
        if (
            isinstance(features, np.ndarray)
            and isinstance(scaling, Scaling)
            and self.data.samples * count >= COMPILED_VALUES
        ):
            from p4sgd.host.data.dense_kernel import quantize_scaled

            quantize_scaled(features, scaling.offset, scaling.scale, self._stored, scaling.signed, block)
        elif isinstance(features, np.ndarray) or isinstance(scaling, Whitening):
            block[:, :count] = self._quantize(scaling.apply(features))
        elif block.size:
            samples = np.repeat(np.arange(block.shape[0]), np.diff(features.indptr))
            block[samples, features.indices] = self._quantize(scaling.apply_stored(features))

    def _quantize(self, a: npt.NDArray[np.float64]) -> npt.NDArray[np.uint8]:
        """Quantise to 8-bit two's complement, of which packing uses the low S bits."""
        return quantize(a, self._stored, self.scaling.signed).astype(np.uint8)


def _pack(part: npt.NDArray[np.uint8], samples: int, layout: ImageLayout) -> npt.NDArray[np.uint8]:
    """Lines of a worker's features in a block, filled with zeros up to ``samples`` samples."""
    q = layout.pad(part)
    if part.shape[0] < samples:
        q = np.concatenate((q, np.zeros((samples - part.shape[0], layout.padded_features), np.uint8)))
    return pack_lines(q, layout)
