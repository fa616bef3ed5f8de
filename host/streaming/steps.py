"""Steps of a preparation: read the data twice, sort them into buckets, pack the buckets into images."""

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.host.data import Dataset, Scaling
from p4sgd.host.data.dataset import Features
from p4sgd.host.data.encoding import EncodingFit
from p4sgd.host.data.formats.source import TableSource
from p4sgd.host.data.read import Source
from p4sgd.host.data.scaling import CENTRED, needs_sums
from p4sgd.host.data.statistics import Extremes, HeatArray, Statistics, is_sparse, order_statistics, quantile_rows
from p4sgd.host.errors import UserError
from p4sgd.host.files import new_file, reserve
from p4sgd.host.image.entries import Values
from p4sgd.host.image.file import EntryBlock, Image, ImageWriter, Shard, image_file
from p4sgd.host.image.packing import PackedBlocks, plan_images, quantized_values
from p4sgd.host.image.store import append_blocks, count_lines
from p4sgd.host.losses.loss import FloatArray
from p4sgd.host.precondition import Moments, Whitening
from p4sgd.host.streaming import OPTIONS
from p4sgd.host.streaming import plan as plans
from p4sgd.host.streaming.buckets import Buckets, stored_values, write_held_out
from p4sgd.host.streaming.manifest import (
    HEAT,
    LABELS,
    MANIFEST,
    SUMS,
    VALIDATION,
    VALIDATION_LABELS,
    VALIDATION_SPARSE,
    VALIDATION_WEIGHTS,
    WEIGHTS,
    WHITENING,
    Manifest,
    SourceFacts,
    hash_files,
)
from p4sgd.host.streaming.plan import BucketPlan, first_pass, plan_buckets
from p4sgd.host.streaming.state import FirstPass, OnProgress, State, Step, check_unchanged
from p4sgd.host.training.hardware_features import feature_sums, mean_square, sampled, square_norms
from p4sgd.host.training.options import TrainingOptions
from p4sgd.host.training.preparation import check_centred, grid_planes, missing_error, suits_sparse_workers
from p4sgd.host.training.shares import deal
from p4sgd.host.training.skipping import deal_columns, skipping_problem
from p4sgd.host.training.weights import hardware_labels
from p4sgd.hw.spec.config import WorkerConfig

__all__ = ["COUNTED", "ROWS", "SOURCE_LABELS", "SOURCE_WEIGHTS", "Steps", "sync_folder"]


SOURCE_LABELS = "source_labels.npy"
"""Name of the file with all labels, in the order of the data."""

SOURCE_WEIGHTS = "source_weights.npy"
"""The same for weights of samples, if they have any."""

COUNTED = "lines{}.npy"
"""Name of the file with the lines of each engine of a worker before each micro-batch, if there are directories."""

ROWS = "rows"
"""Name of the folder of buckets."""

_KEPT_BYTES = 1 << 28
"""Approximate size of the rows that are added to buckets before the state is saved again."""


class Steps:
    """One attempt to prepare data, in a locked unfinished folder.

    Parameters
    ----------
    source, options, config, memory, on_progress
        See `p4sgd.host.streaming.make.make_folder`.
    work
        The folder.
    request
        Result of `p4sgd.host.streaming.state.describe_request`.
    state
        What earlier attempts have done.
    """

    def __init__(
        self,
        source: Source,
        options: TrainingOptions,
        config: WorkerConfig | None,
        work: Path,
        memory: int,
        request: dict[str, Any],
        state: State,
        on_progress: OnProgress,
    ) -> None:
        self._source = source
        self._options = options
        self._config = config
        self._work = work
        self._memory = memory
        self._request = request
        self._on_progress = on_progress
        self._state = state

    def run(self) -> None:
        """Carry out the remaining steps.

        Raises
        ------
        UserError
            As `p4sgd.host.streaming.make.make_folder`.
        OSError
            If the folder cannot be written.
        """
        if not (self._work / MANIFEST).exists():
            if self._options.missing != "error" and not isinstance(self._source, TableSource):
                raise missing_error(self._source.name, self._options)
            found, labels, weights = self._read_labels()
            widest = found.widest(self._options.missing)
            config = self._config or self._suitable(widest)
            shards = self._deal(widest, config)
            problem = skipping_problem(shards, None, self._options, prepared=False)
            if problem is not None and self._options.skip_zeros == "always":
                raise problem
            plan = plan_buckets(
                found,
                labels,
                self._options,
                plans.bucket_rows(
                    widest,
                    self._memory,
                    whitened=self._options.precondition != "none",
                    sparse_workers=config.sparse,
                ),
                self._source.name,
                weights,
            )
            del labels, weights
            plans.check_density(found, plan.train_labels.size, self._options, self._source.name)
            columns, dtype = found.space.count, np.dtype(found.dtype)
            buckets = Buckets(self._work / ROWS, columns, plan.rows, dtype, sparse=found.sparse)
            buckets.sizes = dict(self._state.sizes)
            if self._state.placed < found.samples:
                self._sort(found, widest, plan, buckets, shards)
            if found.table is not None:
                found = self._encode(found, plan, buckets)
                config = self._config or self._suitable(found)
                shards = self._deal(found, config)
            scaling = self._scaling(found, plan, buckets)
            shards = self._deal_columns(plan, buckets, scaling, shards)
            self._pack(found, plan, buckets, scaling, shards)
            self._finish(found, plan, scaling, config)

    def _suitable(self, found: FirstPass) -> WorkerConfig:
        suits = suits_sparse_workers(found.stored, found.samples, found.space.count, self._options)
        return WorkerConfig.sparse_worker() if found.sparse and suits else WorkerConfig.u280()

    def _deal(self, found: FirstPass, config: WorkerConfig) -> Sequence[Shard]:
        return deal(found.space.count, self._options, [config] * self._options.workers)

    def _deal_columns(
        self, plan: BucketPlan, buckets: Buckets, scaling: Scaling | Whitening, shards: Sequence[Shard]
    ) -> Sequence[Shard]:
        """Deal the columns to workers, which may pass over zeros, as an earlier attempt has if it has begun to pack."""
        known, options = self._state.skips_zeros, self._options
        if known is not None:
            options = dataclasses.replace(options, skip_zeros="always" if known else "never")

        def values(count: int) -> Values:
            if known is not None:  # buckets may be gone, and what is predicted does not matter
                return Values(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint8))
            assert isinstance(scaling, Scaling)  # whitened ones have no zeros
            parts, first = [], 0
            for features in _first_samples(plan, buckets, count):
                part = quantized_values(features, scaling, options.stored, bias=options.bias)
                parts.append(dataclasses.replace(part, rows=part.rows + first))
                first += features.shape[0]
            return Values.join(parts)

        return deal_columns(shards, scaling, options, samples=plan.train_labels.size, values=values).shards

    # -- the steps -----------------------------------------------------------------------------------------------------

    def _read_labels(self) -> tuple[FirstPass, FloatArray, FloatArray | None]:
        if self._state.first_pass is None:
            found, labels, weights = first_pass(self._source, self._on_progress)
            check_unchanged(self._request, self._source)
            with new_file(self._work / SOURCE_LABELS) as file:
                np.save(file, labels)
            if weights is not None:
                with new_file(self._work / SOURCE_WEIGHTS) as file:
                    np.save(file, weights)
            self._state.first_pass = found
            self._save()
            return found, labels, weights
        weighted = (self._work / SOURCE_WEIGHTS).exists()
        labels, weights = (
            np.load(self._work / SOURCE_LABELS),
            np.load(self._work / SOURCE_WEIGHTS) if weighted else None,
        )
        return self._state.first_pass, labels, weights

    def _sort(
        self, found: FirstPass, widest: FirstPass, plan: BucketPlan, buckets: Buckets, shards: Sequence[Shard]
    ) -> None:
        """Read all samples again, and append each to its bucket."""
        state = self._state
        if state.extremes is None:
            state.extremes = Extremes(found.space.count)
            self._check_room(found, widest, plan, shards)
        buckets.restore(state.sizes)
        self._source.table = found.table
        first, since = 0, 0
        edge = plan.train_buckets * plan.rows
        for block in self._source.blocks(found.space):
            skipped = min(max(state.placed - first, 0), block.samples)
            first += block.samples
            self._on_progress(Step.SORT, self._source.position, self._source.size)
            if skipped == block.samples:
                continue
            if first > found.samples:
                break
            features = block.features[skipped:]
            destinations = plan.destinations[first - features.shape[0] : first]
            buckets.add(features, destinations)
            if found.table is None:
                held_out = destinations >= edge
                state.extremes.add(features[~held_out])
                state.held_out += stored_values(features[held_out])
            state.placed = first
            since += stored_values(features) * 8
            if since > _KEPT_BYTES:
                self._save_buckets(buckets)
                since = 0
        check_unchanged(self._request, self._source)
        if first != found.samples:
            raise UserError(f"{self._source.name}: has changed while it was read: start again")
        self._save_buckets(buckets)

    def _save_buckets(self, buckets: Buckets) -> None:
        buckets.sync()
        sync_folder(self._work / ROWS)
        self._state.sizes = sorted(buckets.sizes.items())
        self._save()

    def _encode(self, found: FirstPass, plan: BucketPlan, buckets: Buckets) -> FirstPass:
        """Have the buckets give features in place of the columns of a table; returns the findings about these.

        It takes one more reading of the training samples, which say what features there are, and one of all samples.
        """
        state, table = self._state, found.table
        assert table is not None
        if state.encoding is None:
            fit = EncodingFit(table, self._options.missing)
            for bucket in range(plan.train_buckets):
                fit.add(buckets.load(bucket, plan.samples_of(bucket)))
            encoding = fit.finish()
            extremes, stored, held_out, done = Extremes(encoding.count), 0, 0, 0
            for bucket in range(plan.buckets):
                features = encoding.apply(buckets.load(bucket, plan.samples_of(bucket)), table)
                stored += stored_values(features)
                if bucket < plan.train_buckets:
                    extremes.add(features)
                else:
                    held_out += stored_values(features)
                done += features.shape[0]
                self._on_progress(Step.ENCODE, done, found.samples)
            state.encoding, state.extremes, state.stored, state.held_out = encoding, extremes, stored, held_out
            self._save()
        encoding = state.encoding
        buckets.encode = lambda rows: encoding.apply(rows, table)
        return dataclasses.replace(
            found,
            space=encoding.space,
            stored=state.stored,
            sparse=encoding.sparse,
            remarks=(*found.remarks, *encoding.remarks(plan.train_labels.size)),
        )

    def _scaling(self, found: FirstPass, plan: BucketPlan, buckets: Buckets) -> Scaling | Whitening:
        """Scaling of the features; it may take one or two more readings of the buckets."""
        state, options, samples = self._state, self._options, plan.train_labels.size
        if state.scaling is None:
            assert state.extremes is not None
            low, high = state.extremes.range()
            centrable = not is_sparse(found.stored - state.held_out, samples * low.size)
            whitened = options.precondition != "none"
            statistics = Statistics.of_range(
                low, high, state.extremes.nonzero, samples, centrable=centrable, whitened=whitened
            )
            if needs_sums(statistics, options.scaling):
                if state.column_sums is not None:
                    statistics.sums = state.column_sums
                for bucket in range(state.summed, plan.train_buckets):
                    statistics.add(buckets.load(bucket, plan.samples_of(bucket)))
                    state.column_sums, state.summed = statistics.sums, bucket + 1
                    self._save()
                    done = min((bucket + 1) * plan.rows, samples)
                    self._on_progress(Step.SCALE, done, samples)
            if options.scaling in CENTRED or not statistics.keeps_zeros:
                parts = _first_samples(plan, buckets, quantile_rows(samples, found.space.count))
                dense = [part if isinstance(part, np.ndarray) else part.toarray() for part in parts]
                statistics.order = order_statistics(np.concatenate(dense))
            state.scaling = Scaling.choose(statistics, options.scaling, grid_planes(options))
            self._save()
        if options.precondition == "none":
            return state.scaling
        check_centred(state.scaling, self._source.name)
        if state.moments is None:
            state.moments = Moments.empty(found.space.count)
        for bucket in range(state.correlated, plan.train_buckets):
            state.moments.add(buckets.load(bucket, plan.samples_of(bucket)), state.scaling)
            state.correlated = bucket + 1
            self._save()
            self._on_progress(Step.CORRELATE, state.moments.samples, samples)
        return Whitening.fit(state.moments, state.scaling, options.damping, options.stored)

    def _pack(
        self,
        found: FirstPass,
        plan: BucketPlan,
        buckets: Buckets,
        scaling: Scaling | Whitening,
        shards: Sequence[Shard],
    ) -> None:
        """Put the samples of each bucket in order and append them to the images or to the held-out samples."""
        state, options = self._state, self._options
        if state.mean_square is None:
            count = sampled(plan.train_labels.size, found.space.count)
            parts = _first_samples(plan, buckets, count)
            norms = np.concatenate([square_norms(part, scaling) for part in parts])
            state.mean_square = mean_square(norms, bias=options.bias, weights=plan.train_weights)
            state.sums = np.zeros(found.space.count, np.int64)
            self._save()
        assert state.extremes is not None
        images = self._images(plan, scaling, shards, state.extremes.nonzero)
        if any(image.shard.directory for image in images):
            images = self._count_lines(images, plan, buckets, scaling)
        if state.skips_zeros is None:
            state.skips_zeros = any(image.shard.directory for image in images)
            self._save()
        done = sum(map(plan.samples_of, range(state.packed)))
        with contextlib.ExitStack() as files:
            writers = self._open_images(images, files)
            for bucket in range(state.packed, plan.buckets):
                if bucket < plan.train_buckets:
                    self._pack_bucket(bucket, plan, buckets, scaling, images, writers)
                else:
                    self._hold_out_bucket(bucket, plan, buckets, found)
                for writer in writers:
                    writer.sync()
                state.packed = bucket + 1
                state.written = [writer.written for writer in writers]
                self._save()
                buckets.drop(bucket)
                done += plan.samples_of(bucket)
                self._on_progress(Step.PACK, done, found.samples)
            for writer in writers:
                writer.finish()
                writer.sync()

    def _count_lines(
        self, images: list[Image], plan: BucketPlan, buckets: Buckets, scaling: Scaling | Whitening
    ) -> list[Image]:
        """Count lines with directories, unless an earlier attempt has: it takes one more reading of the buckets."""
        paths = [self._work / COUNTED.format(image.shard.worker) for image in images]
        if self._state.skips_zeros is None:

            def blocks() -> Iterator[list[npt.NDArray[np.uint8] | EntryBlock]]:
                done = 0
                for bucket in range(plan.train_buckets):
                    yield from self._blocks(bucket, plan, buckets, scaling, images)
                    done += plan.samples_of(bucket)
                    self._on_progress(Step.COUNT, done, plan.train_labels.size)

            for path, image in zip(paths, count_lines(images, blocks()), strict=True):
                assert image.starts is not None
                with new_file(path) as file:
                    np.save(file, image.starts)
        return [dataclasses.replace(image, starts=np.load(path)) for path, image in zip(paths, images, strict=True)]

    def _blocks(
        self, bucket: int, plan: BucketPlan, buckets: Buckets, scaling: Scaling | Whitening, images: list[Image]
    ) -> PackedBlocks:
        """The samples of a bucket as images have them, with those that fill the last mini-batch."""
        samples = plan.samples_of(bucket)
        data = Dataset(buckets.load(bucket, samples), np.zeros(samples), self._source.name)
        if bucket == plan.train_buckets - 1:
            samples = images[0].layout.samples - bucket * plan.rows
        return PackedBlocks(data, images, scaling, samples)

    def _pack_bucket(
        self,
        bucket: int,
        plan: BucketPlan,
        buckets: Buckets,
        scaling: Scaling | Whitening,
        images: list[Image],
        writers: list[ImageWriter],
    ) -> None:
        blocks = self._blocks(bucket, plan, buckets, scaling, images)
        assert self._state.sums is not None
        self._state.sums += feature_sums(blocks.data.features, scaling)
        append_blocks(writers, images, blocks)

    def _hold_out_bucket(self, bucket: int, plan: BucketPlan, buckets: Buckets, found: FirstPass) -> None:
        features = buckets.load(bucket, plan.samples_of(bucket))
        shape = (plan.validation_labels.size, found.space.count)
        first, state = (bucket - plan.train_buckets) * plan.rows, self._state
        write_held_out(self._work, features, shape, first=first, stored=state.held_out, written=state.validation)
        state.validation += stored_values(features)

    def _finish(self, found: FirstPass, plan: BucketPlan, scaling: Scaling | Whitening, config: WorkerConfig) -> None:
        """Write labels, sums and, last of all, the manifest with the checksums."""
        state, options, work = self._state, self._options, self._work
        assert state.sums is not None
        assert state.mean_square is not None
        arrays: dict[str, npt.NDArray[Any]] = {LABELS: plan.train_labels, SUMS: state.sums}
        if isinstance(scaling, Whitening):
            arrays |= dict(zip(WHITENING, (scaling.matrix, scaling.exponent, scaling.centre), strict=True))
        if isinstance(scaling, Scaling) and scaling.heat is not None:
            arrays[HEAT] = scaling.heat.astype(np.int64)
        if plan.validation_labels.size:
            arrays[VALIDATION_LABELS] = plan.validation_labels
        for name, weights in ((WEIGHTS, plan.train_weights), (VALIDATION_WEIGHTS, plan.validation_weights)):
            if weights is not None:
                arrays[name] = weights
        for name, array in arrays.items():
            with new_file(work / f"{name}.npy") as file:
                np.save(file, array)
        names = [f"{name}.npy" for name in arrays]
        names += [image_file(work, worker).name for worker in range(options.workers)]
        if plan.validation_labels.size:
            names += [f"{name}.npy" for name in (VALIDATION_SPARSE if found.sparse else (VALIDATION,))]
        source = self._source
        Manifest(
            source=SourceFacts(source.path.name, source.size, found.sha256, found.samples),
            options={name: getattr(options, name) for name in OPTIONS},
            config=config,
            samples=plan.train_labels.size,
            validation_samples=plan.validation_labels.size,
            space=found.space,
            sparse=found.sparse,
            scaling=scaling.kind,
            reason=scaling.reason,
            remarks=(*found.remarks, *scaling.remarks(found.space.names)),
            signed=scaling.signed,
            labels=plan.coding,
            mean_square=state.mean_square,
            files=hash_files(work, names, self._on_progress),
        ).save(work)
        sync_folder(work)

    # -- details -------------------------------------------------------------------------------------------------------

    def _save(self) -> None:
        self._state.save(self._work)

    def _check_room(self, found: FirstPass, widest: FirstPass, plan: BucketPlan, shards: Sequence[Shard]) -> None:
        """Refuse to begin if the disk is too small for the images and the buckets."""
        value = np.dtype(found.dtype).itemsize
        rows = found.stored * (value + 4 * found.sparse) + 24 * found.samples
        features = widest.stored * (value + 4 * widest.sparse) + 24 * found.samples
        held_out = features * plan.validation_labels.size // found.samples
        unknown = np.zeros(widest.space.count)
        stored = np.zeros(widest.space.count, np.int64)
        stored[0] = widest.stored  # of which columns does not matter to the sum
        images = self._images(plan, Scaling(self._options.scaling, unknown, unknown, signed=True), shards, stored)
        needed = rows + held_out
        if self._options.skip_zeros != "always":  # if zeros are skipped, nobody knows how much smaller they are
            needed += sum(map(ImageWriter.file_bytes, images))
        free = shutil.disk_usage(self._work).free
        if needed > free:
            raise UserError(
                f"{self._work}: preparing the data takes {needed / 1e6:,.1f} MB on the disk, {free / 1e6:,.1f} MB are "
                f"free: free some space or choose another folder"
            )

    def _images(
        self, plan: BucketPlan, scaling: Scaling | Whitening, shards: Sequence[Shard], counts: HeatArray
    ) -> list[Image]:
        options, coding = self._options, plan.coding.rows[0]
        labels, name = plan.coding.of_row(plan.train_labels, 0), self._source.name
        loss = options.loss_for(coding.scale, name)
        integers, importances = hardware_labels(loss, coding, labels, plan.train_weights, name)
        return plan_images(
            integers,
            scaling,
            shards,
            stored=options.stored,
            batch=options.batch,
            counts=counts,
            importances=importances,
        )

    def _open_images(self, images: list[Image], files: contextlib.ExitStack) -> list[ImageWriter]:
        writers = []
        for index, image in enumerate(images):
            written = self._state.written[index] if self._state.written else None
            path = image_file(self._work, image.shard.worker)
            file = files.enter_context(path.open("w+b" if written is None else "r+b"))
            if written is None:
                reserve(file, ImageWriter.file_bytes(image))
            writers.append(ImageWriter(file, image, written))
        sync_folder(self._work)
        return writers


def _first_samples(plan: BucketPlan, buckets: Buckets, count: int) -> Iterator[Features]:
    """The first ``count`` training samples, bucket by bucket."""
    for bucket in range(-(-count // plan.rows)):
        yield buckets.load(bucket, plan.samples_of(bucket))[: count - bucket * plan.rows]


def sync_folder(folder: Path) -> None:
    """Sync the entries of a folder to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
