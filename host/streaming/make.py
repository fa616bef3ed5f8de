"""Preparation of a data set in a folder, in bounded memory: read it twice, sort it into buckets, pack the buckets.

All work is done in a folder beside the final one, which is renamed when it is complete. An interrupted preparation
leaves nothing, or a folder that the next one empties.
"""

import contextlib
import dataclasses
import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.host.data import FeatureSpace, Scaling
from p4sgd.host.data.dataset import LabelledSamples
from p4sgd.host.data.encoding import TableEncoding, fit_encoding
from p4sgd.host.data.formats.source import Scan, Source, scan
from p4sgd.host.data.labels import LabelCoding
from p4sgd.host.data.matrix import each_block
from p4sgd.host.data.order import Order
from p4sgd.host.data.sample_numbers import counting
from p4sgd.host.data.scaling import CENTRED, centring_error
from p4sgd.host.data.statistics import HeatArray, Statistics, is_sparse
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.host.files import new_file, parse_json, write_error
from p4sgd.host.image import Shard
from p4sgd.host.image.file import image_file
from p4sgd.host.precondition import Whitening
from p4sgd.host.streaming import OnProgress, Step
from p4sgd.host.streaming.buckets import Buckets, SortedRows, write_held_out
from p4sgd.host.streaming.manifest import MANIFEST, Array, Manifest, SourceFacts, hash_files, load_manifest
from p4sgd.host.training.dealing.columns import skipping_problem
from p4sgd.host.training.dealing.units import deal_units
from p4sgd.host.training.options import Fact, TrainingOptions, options_with
from p4sgd.host.training.preparation import (
    fit_scaling,
    missing_error,
    prepare_rows,
    split_targets,
    suits_sparse_workers,
    whitening_error,
)
from p4sgd.host.training.prepared import Placement, Prepared
from p4sgd.host.training.start import Start
from p4sgd.hw.spec.config import BANKS, WorkerConfig

_REQUEST = "job.json"  # data and options that a folder is prepared from
_ROWS = "rows"  # the folder of buckets

# Memory in bytes, and disk: bounds that were measured.
_PROGRAM_BYTES = 320 << 20  # of the program, its libraries, and blocks or samples whose lines are predicted
_SAMPLE_BYTES = 120  # of a sample without its features: label, weight, destination, and computing these
_FEATURE_BYTES = {False: 500, True: 150}  # of a feature's statistics, and unless all workers are sparse 8 samples
_WHITENED_BYTES = 2600  # of a feature's moments, and its row of the matrix as integers and as float64
_LEAST_BUCKET = 8 << 20  # of a bucket: smaller ones would be too many files
_COPIES = {False: 1.25, True: 4.0}  # to put a bucket in order, relative to its file, by whether it is sparse


def unfinished_folder(folder: Path) -> Path:
    """The folder in which another one is prepared, before it is renamed."""
    return folder.parent / f"{folder.name}.unfinished"  # "." and "/" have no name


def make_folder(
    source: Source,
    options: TrainingOptions,
    config: WorkerConfig | None,
    folder: Path,
    *,
    memory: int = 1 << 30,
    on_progress: OnProgress = lambda step, done, total: None,
) -> Manifest:
    """Prepare a data set for training, in bounded memory; images are those of `prepare_images`, byte for byte.

    Of the options those matter that are `Fact.PREPARED`; without a configuration the workers are those that suit the
    data, sparse or u280. ``memory`` is an approximate limit for that of the process, in bytes.

    Raises `UserError` if data, options and configuration do not suit each other, if the file cannot be read or the
    folder cannot be written, or if it is there and was not made by the same call; and `P4sgdError` if another process
    is preparing this folder.
    """
    reading = {name: value for name, value in vars(source.options).items() if name != "like"}
    chosen = {name: getattr(options, name) for name in options_with(Fact.PREPARED)}
    workers = None if config is None else dataclasses.asdict(config)
    request = json.loads(json.dumps({"file": _file(source), "reading": reading, "options": chosen, "config": workers}))
    work, remedy = unfinished_folder(folder), "choose another name or delete it"
    try:
        if not folder.exists():
            with _work_folder(work, request):
                if not folder.exists():  # no other process was faster
                    _Preparation(source, options, config, work, memory, on_progress).run()
                    if _file(source) != request["file"]:
                        raise _changed(source)
                    os.rename(work, folder)
                    _sync(folder.parent)
        if not (folder / MANIFEST).exists() or not (folder / _REQUEST).exists():
            raise UserError(f"{folder}: is there already: {remedy}")
        before, other = None, ""
        with contextlib.suppress(KeyError, TypeError, ValueError):  # it is damaged
            before = parse_json((folder / _REQUEST).read_bytes())
            pairs = {name.replace("_", "-"): (before["options"][name], now) for name, now in request["options"].items()}
            other = ", ".join(f"with {name} {was}, not {now}" for name, (was, now) in pairs.items() if was != now)
        if before != request:
            other = other or "from other data or with other options"
            raise UserError(f"{folder}: is there already, made {other}: {remedy}")
        return load_manifest(folder, remedy=remedy)[0]
    except OSError as error:
        raise write_error(work, error) from error


def _file(source: Source) -> list[str | int]:
    """What identifies a file, unless data are built in: path, size and modification time."""
    if not source.path.exists():
        return [source.name]
    status = source.path.stat()
    return [str(source.path.resolve()), status.st_size, status.st_mtime_ns]


def _changed(source: Source) -> UserError:
    return UserError(f"{source.name}: has changed while it was read: start again when no program writes to it")


@contextlib.contextmanager
def _work_folder(work: Path, request: dict[str, Any]) -> Iterator[None]:
    """Make an empty folder and lock it against other processes; whatever is left of it at the end is deleted."""
    if work.exists() and not (work / _REQUEST).exists() and any(work.iterdir()):
        raise UserError(f"{work}: is there already and is no unfinished preparation: delete it or choose another name")
    work.mkdir(exist_ok=True)
    handle = os.open(work, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise P4sgdError(f"{work}: another p4sgd is at work here: wait for it, or end it") from None
    try:
        for path in work.iterdir():  # of an attempt that was killed
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        (work / _REQUEST).write_text(json.dumps(request, indent=1))
        yield
    finally:
        shutil.rmtree(work, ignore_errors=True)
        os.close(handle)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@dataclasses.dataclass(frozen=True, eq=False)
class _Preparation:
    source: Source
    options: TrainingOptions
    config: WorkerConfig | None
    work: Path
    memory: int
    on_progress: OnProgress

    def run(self) -> None:
        source, options = self.source, self.options
        if source.options.target_columns:
            remedy = "train from the file, or prepare it for each"
            raise UserError(f"{source.name}: several label columns cannot be prepared: {remedy}")
        if options.missing != "error" and not source.fills_gaps:
            raise missing_error(source.name, options)
        sha256 = ""
        if source.path.exists():
            name = source.path.name
            sha256 = hash_files(source.path.parent, [name], self.on_progress, Step.IDENTIFY)[name].sha256
        found = scan(source, lambda: self.on_progress(Step.READ, source.position, source.size))
        facts = SourceFacts(source.path.name, source.size, sha256, found.count)
        counted = counting(found.samples.sample_weights, found.count, source.name)
        targets, rest, held_out = split_targets(LabelledSamples.of(found.samples, counted), options, Start())
        rest, held_out = counted[rest], counted[held_out]
        if targets.weigh_row is not None:
            raise UserError(
                f"{source.name}: classes are balanced for each of {len(targets.coding.rows)} by itself, prepared data "
                f"have one weight a sample: train from the file, or choose one class with --positive LABEL"
            )
        most = widest(found, options.missing)
        config, shards = self._deal(most)
        problem = skipping_problem(shards, None, options)
        if problem is not None and options.skip_zeros == "always":
            raise problem
        whitened = options.precondition != "none"
        rows = bucket_rows(most, self.memory, whitened=whitened, sparse_workers=config.sparse)
        # Only samples to train on count, and how many values they store is not known before they are sorted.
        if found.sparse and is_sparse(found.stored, rest.size * found.space.count):
            if whitened:
                raise whitening_error(source.name)
            if options.scaling in CENTRED:
                raise centring_error(options.scaling, found.stored / (found.count * found.space.count))
        self._check_room(found, most, shards, held_out.size)
        buckets = Buckets(self.work / _ROWS, found.space.count, rows, found.dtype, sparse=found.sparse)
        extremes, stored = self._sort(found, buckets, rest, held_out)
        if extremes is None:
            found, extremes, stored = self._encode(found, buckets, rest.size, held_out.size)
            config, shards = self._deal(found)
        columns = found.space.count
        train = SortedRows(buckets, source.name, rest.size, columns, on_read=self._shown(Step.SCALE, rest.size))
        scaling, _ = fit_scaling(train, extremes, targets, options)
        del extremes  # there may be millions of columns
        train = dataclasses.replace(train, on_read=self._shown(Step.PACK, rest.size))
        remarks = (*found.remarks, *targets.remarks, *scaling.remarks(found.space.names))
        place = Placement(shards, self.work)
        prepared = prepare_rows(train, found.space, scaling, targets, options, place)
        prepared = dataclasses.replace(prepared, remarks=remarks)
        if held_out.size:
            test = SortedRows(buckets, source.name, held_out.size, columns, -(-rest.size // rows))
            shape = held_out.size, columns
            write_held_out(self.work, test.feature_blocks(), shape, stored)
        shutil.rmtree(self.work / _ROWS)
        heat = scaling.heat if isinstance(scaling, Scaling) else None
        others = LabelledSamples.of(found.samples, held_out)
        self._finish(prepared, facts, config, heat, others, sparse=found.sparse)

    def _shown(self, step: Step, total: int) -> Any:
        return lambda done: self.on_progress(step, done, total)

    def _deal(self, found: Scan) -> tuple[WorkerConfig, list[Shard]]:
        config = self.config
        if config is None:
            suits = suits_sparse_workers(found.stored, found.count, found.space.count, self.options)
            config = WorkerConfig.sparse_worker() if found.sparse and suits else WorkerConfig.u280()
        return config, deal_units(found.space.count, self.options, [config] * self.options.workers)

    def _check_room(self, found: Scan, most: Scan, shards: Sequence[Shard], held_out: int) -> None:
        """Refuse to begin if the disk is too small for the images and the buckets."""
        options, samples = self.options, -(-most.count // self.options.batch) * self.options.batch
        needed = row_bytes(found, overhead=24) + row_bytes(most, overhead=24) * held_out // found.count
        if options.skip_zeros != "always":  # if zeros are skipped, nobody knows how much smaller images are
            for shard in shards:
                lines = shard.config.labels_memory * shard.layout(samples, options.stored).lines_bytes
                needed += 5 * most.stored // len(shards) if shard.config.sparse else lines
        free = shutil.disk_usage(self.work).free
        if needed > free:
            raise UserError(
                f"{self.work}: preparing the data takes {needed / 1e6:,.1f} MB on the disk, {free / 1e6:,.1f} MB are "
                f"free: free some space or choose another folder"
            ) from OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _sort(self, found: Scan, buckets: Buckets, rest: Order, held_out: Order) -> tuple[Statistics | None, int]:
        """Read all samples again, and append each that counts to its bucket; held-out samples begin with one of their
        own. Returns the ranges of the training samples, unless they are still columns of a table, and the number of
        stored values of those held out."""
        edge, stored = -(-rest.size // buckets.rows) * buckets.rows, 0
        destinations = np.full(found.count, -1, np.intp)
        destinations[rest] = np.arange(rest.size)
        destinations[held_out] = edge + np.arange(held_out.size)
        extremes = None if found.table is not None else Statistics(found.space.count, rest.size)
        first = 0
        with self.source.explained():
            for features, *_ in self.source.blocks():
                where = destinations[first : first + features.shape[0]]
                first += features.shape[0]
                self.on_progress(Step.SORT, self.source.position, self.source.size)
                if first > found.count:
                    break
                if (where < 0).any():
                    features, where = features[where >= 0], where[where >= 0]
                if not where.size:
                    continue
                buckets.add(features, where)
                stored += features[where >= edge].size
                if extremes is not None:
                    extremes.add(features[where < edge])
        if first != found.count:
            raise _changed(self.source)
        return extremes, stored

    def _encode(self, found: Scan, buckets: Buckets, train: int, held_out: int) -> tuple[Scan, Statistics, int]:
        """Have the buckets give features in place of the columns of a table, by one more reading of the training
        samples; findings about these by one of all samples, and what `_sort` returns."""
        table, columns, name = found.table, found.space.count, self.source.name
        assert table is not None
        blocks = SortedRows(buckets, name, train, columns).feature_blocks()
        encoding = fit_encoding(table, blocks, self.options.missing)
        buckets.encode = lambda rows: encoding.apply(rows, table)
        extremes = Statistics(encoding.count, train)
        rows = SortedRows(buckets, name, train, encoding.count, on_read=self._shown(Step.ENCODE, found.count))
        each_block(extremes.add, rows.feature_blocks())
        rows = SortedRows(buckets, name, held_out, encoding.count, -(-train // buckets.rows))
        stored = sum(block.size for block in rows.feature_blocks())
        found = dataclasses.replace(
            found,
            space=dataclasses.replace(encoding.space, reading=found.space.reading, offset=found.space.offset),
            stored=stored + extremes.stored,
            sparse=encoding.sparse,
            remarks=(*found.remarks, *encoding.remarks(train)),
        )
        return found, extremes, stored

    def _finish(
        self,
        prepared: Prepared,
        facts: SourceFacts,
        config: WorkerConfig,
        heat: HeatArray | None,
        held_out: LabelledSamples,
        *,
        sparse: bool,
    ) -> None:
        options, work, targets, scaling = self.options, self.work, prepared.targets, prepared.scaling
        assert prepared.sums is not None
        assert isinstance(targets.coding, LabelCoding)
        arrays: dict[str, npt.NDArray[Any] | None] = {
            Array.LABELS: targets.labels,
            Array.SUMS: prepared.sums(slice(None)),
            Array.HEAT: None if heat is None else heat.astype(np.int64),
            Array.OFFSETS: targets.offsets,
            Array.VALIDATION_LABELS: held_out.labels if held_out.labels.size else None,
            Array.VALIDATION_OFFSETS: held_out.offsets if held_out.labels.size else None,
            Array.WEIGHTS: targets.weights,
            Array.VALIDATION_WEIGHTS: targets.validation_weights,
        }
        if isinstance(scaling, Whitening):
            arrays |= dict(zip(Array.WHITENING, (scaling.matrix, scaling.exponent, scaling.centre), strict=True))
        names = []
        for name, array in arrays.items():
            if array is not None:
                names.append(f"{name}.npy")
                with new_file(work / names[-1]) as file:
                    np.save(file, array)
        names += [image_file(work, worker).name for worker in range(options.workers)]
        if held_out.labels.size:
            names += [f"{name}.npy" for name in (Array.VALIDATION_SPARSE if sparse else (Array.VALIDATION,))]
        Manifest(
            source=facts,
            options={name: getattr(options, name) for name in options_with(Fact.PREPARED)},
            config=config,
            samples=prepared.samples,
            validation_samples=held_out.labels.size,
            space=prepared.space,
            sparse=sparse,
            scaling=scaling.kind,
            reason=scaling.reason,
            remarks=prepared.remarks,
            signed=scaling.signed,
            common=scaling.common if isinstance(scaling, Scaling) else 0.0,
            labels=targets.coding,
            mean_square=prepared.mean_square,
            files=hash_files(work, names, self.on_progress),
        ).save(work)
        _sync(work)


def row_bytes(found: Scan, *, overhead: int) -> int:
    """Bytes of all samples in files, with so many beside the values of each."""
    return found.stored * (found.dtype.itemsize + 4 * found.sparse) + overhead * found.count


def widest(found: Scan, missing: str) -> Scan:
    """The same with the most features, and stored values, that the columns of a table may become."""
    if found.table is None:
        return found
    most = TableEncoding.widest(found.table, missing)
    sparse = is_sparse(most.stored, most.count // 2)
    stored = found.count * (most.stored if sparse else most.count)
    return dataclasses.replace(found, space=FeatureSpace(most.count), stored=stored, sparse=sparse, table=None)


def bucket_rows(found: Scan, memory: int, *, whitened: bool = False, sparse_workers: bool = False) -> int:
    """Samples per bucket for a memory peak of about ``memory`` bytes, a multiple of 8; `UserError` if it is too little.
    With ``sparse_workers`` no sample is ever filled up with zeros."""
    sample = row_bytes(found, overhead=16) / found.count
    feature = _FEATURE_BYTES[found.sparse and sparse_workers] + (_WHITENED_BYTES if whitened else 0)
    fixed = _PROGRAM_BYTES + _SAMPLE_BYTES * found.count + feature * found.space.count
    copies = _COPIES[found.sparse]
    least = max(_LEAST_BUCKET, BANKS * sample) * copies
    if memory < fixed + least:
        raise UserError(
            f"{found.count:,} samples of {found.space.count:,} features cannot be prepared in {memory:,} bytes of "
            f"memory: allow at least {-(-int(fixed + least) // (1 << 20))}M"
        )
    return int((memory - fixed) / copies / sample) // BANKS * BANKS
