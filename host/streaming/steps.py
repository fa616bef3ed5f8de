"""Steps of a preparation: read the data twice, sort them into buckets, pack the buckets into images."""

import dataclasses
import errno
import os
import shutil
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.host.data import Scaling
from p4sgd.host.data.encoding import EncodingFit
from p4sgd.host.data.formats.source import TableSource
from p4sgd.host.data.scaling import CENTRED, needs_sums
from p4sgd.host.data.statistics import Extremes, Statistics, is_sparse, order_statistics, quantile_rows
from p4sgd.host.errors import UserError
from p4sgd.host.files import new_file
from p4sgd.host.image.entries import Values
from p4sgd.host.image.file import ImageWriter, image_file
from p4sgd.host.image.image import Shard
from p4sgd.host.image.packing import quantized_values
from p4sgd.host.losses.loss import FloatArray
from p4sgd.host.precondition import Moments, Whitening
from p4sgd.host.streaming import OPTIONS
from p4sgd.host.streaming import plan as plans
from p4sgd.host.streaming.buckets import Buckets, stored_values, sync_folder
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
from p4sgd.host.streaming.pack import Packing, bucket_images
from p4sgd.host.streaming.plan import BucketPlan, first_pass, plan_buckets
from p4sgd.host.streaming.state import Attempt, FirstPass, Step, check_unchanged
from p4sgd.host.training.dealing.columns import deal_columns, skipping_problem
from p4sgd.host.training.dealing.shares import deal_units
from p4sgd.host.training.preparation import check_centred, grid_planes, missing_error, suits_sparse_workers
from p4sgd.hw.spec.config import WorkerConfig

__all__ = ["ROWS", "SOURCE_LABELS", "SOURCE_WEIGHTS", "Steps"]


SOURCE_LABELS = "source_labels.npy"
"""Name of the file with all labels, in the order of the data."""

SOURCE_WEIGHTS = "source_weights.npy"
"""The same for weights of samples, if they have any."""

ROWS = "rows"
"""Name of the folder of buckets."""

_KEPT_BYTES = 1 << 28
"""Approximate size of the rows that are added to buckets before the state is saved again."""


class Steps:
    """The steps of an attempt to prepare data.

    Parameters
    ----------
    attempt
        What was asked for, and what earlier attempts have done.
    """

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._source, self._options = attempt.source, attempt.options
        self._work, self._state, self._on_progress = attempt.work, attempt.state, attempt.on_progress

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
            config = self._attempt.config or self._suitable(widest)
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
                    self._attempt.memory,
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
                config = self._attempt.config or self._suitable(found)
                shards = self._deal(found, config)
            scaling = self._scaling(found, plan, buckets)
            shards = self._deal_columns(plan, buckets, scaling, shards)
            Packing(self._attempt, found, plan, buckets, scaling, shards).run()
            self._finish(found, plan, scaling, config)

    def _suitable(self, found: FirstPass) -> WorkerConfig:
        suits = suits_sparse_workers(found.stored, found.samples, found.space.count, self._options)
        return WorkerConfig.sparse_worker() if found.sparse and suits else WorkerConfig.u280()

    def _deal(self, found: FirstPass, config: WorkerConfig) -> Sequence[Shard]:
        return deal_units(found.space.count, self._options, [config] * self._options.workers)

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
            for features in plan.first_samples(buckets, count):
                part = quantized_values(features, scaling, options.stored, bias=options.bias)
                parts.append(dataclasses.replace(part, rows=part.rows + first))
                first += features.shape[0]
            return Values.join(parts)

        return deal_columns(shards, scaling, options, samples=plan.train_labels.size, values=values).shards

    # -- the steps -----------------------------------------------------------------------------------------------------

    def _read_labels(self) -> tuple[FirstPass, FloatArray, FloatArray | None]:
        if self._state.first_pass is None:
            found, labels, weights = first_pass(self._source, self._on_progress)
            check_unchanged(self._attempt.request, self._source)
            with new_file(self._work / SOURCE_LABELS) as file:
                np.save(file, labels)
            if weights is not None:
                with new_file(self._work / SOURCE_WEIGHTS) as file:
                    np.save(file, weights)
            self._state.first_pass = found
            self._attempt.save()
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
        check_unchanged(self._attempt.request, self._source)
        if first != found.samples:
            raise UserError(f"{self._source.name}: has changed while it was read: start again")
        self._save_buckets(buckets)

    def _save_buckets(self, buckets: Buckets) -> None:
        buckets.sync()
        sync_folder(self._work / ROWS)
        self._state.sizes = sorted(buckets.sizes.items())
        self._attempt.save()

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
            self._attempt.save()
        encoding = state.encoding
        buckets.encode = lambda rows: encoding.apply(rows, table)
        return dataclasses.replace(
            found,
            space=dataclasses.replace(encoding.space, label_column=found.space.label_column),
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
                    self._attempt.save()
                    done = min((bucket + 1) * plan.rows, samples)
                    self._on_progress(Step.SCALE, done, samples)
            if options.scaling in CENTRED or not statistics.keeps_zeros:
                parts = plan.first_samples(buckets, quantile_rows(samples, found.space.count))
                dense = [part if isinstance(part, np.ndarray) else part.toarray() for part in parts]
                statistics.order = order_statistics(np.concatenate(dense))
            state.scaling = Scaling.choose(statistics, options.scaling, grid_planes(options))
            self._attempt.save()
        if options.precondition == "none":
            return state.scaling
        check_centred(state.scaling, self._source.name)
        if state.moments is None:
            state.moments = Moments.empty(found.space.count)
        for bucket in range(state.correlated, plan.train_buckets):
            state.moments.add(buckets.load(bucket, plan.samples_of(bucket)), state.scaling)
            state.correlated = bucket + 1
            self._attempt.save()
            self._on_progress(Step.CORRELATE, state.moments.samples, samples)
        return Whitening.fit(state.moments, state.scaling, options.damping, options.stored)

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

    def _check_room(self, found: FirstPass, widest: FirstPass, plan: BucketPlan, shards: Sequence[Shard]) -> None:
        """Refuse to begin if the disk is too small for the images and the buckets."""
        value = np.dtype(found.dtype).itemsize
        rows = found.stored * (value + 4 * found.sparse) + 24 * found.samples
        features = widest.stored * (value + 4 * widest.sparse) + 24 * found.samples
        held_out = features * plan.validation_labels.size // found.samples
        unknown = np.zeros(widest.space.count)
        stored = np.zeros(widest.space.count, np.int64)
        stored[0] = widest.stored  # of which columns does not matter to the sum
        scaling = Scaling(self._options.scaling, unknown, unknown, signed=True)
        images = bucket_images(self._attempt, plan, scaling, shards, stored)
        needed = rows + held_out
        if self._options.skip_zeros != "always":  # if zeros are skipped, nobody knows how much smaller they are
            needed += sum(map(ImageWriter.file_bytes, images))
        free = shutil.disk_usage(self._work).free
        if needed > free:
            raise UserError(
                f"{self._work}: preparing the data takes {needed / 1e6:,.1f} MB on the disk, {free / 1e6:,.1f} MB are "
                f"free: free some space or choose another folder"
            ) from OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # as when it is full: labels need not be read again
