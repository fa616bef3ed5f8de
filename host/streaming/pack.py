"""Packing of buckets: their samples in order, as the workers' images or as arrays of those that are held out."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from p4sgd.host.data import Dataset, Scaling
from p4sgd.host.data.statistics import HeatArray
from p4sgd.host.files import new_file, reserve
from p4sgd.host.image.file import ImageWriter, image_file
from p4sgd.host.image.image import EntryBlock, Image, Shard
from p4sgd.host.image.packing import PackedBlocks, plan_images
from p4sgd.host.image.store import append_blocks, count_lines
from p4sgd.host.precondition import Whitening
from p4sgd.host.streaming.buckets import Buckets, stored_values, sync_folder, write_held_out
from p4sgd.host.streaming.plan import BucketPlan
from p4sgd.host.streaming.state import Attempt, FirstPass, Step
from p4sgd.host.training.class_weights import hardware_labels
from p4sgd.host.training.hardware_features import feature_sums, mean_square, sampled, square_norms

__all__ = ["COUNTED", "Packing", "bucket_images"]

COUNTED = "lines{}.npy"
"""Name of the file with the lines of each engine of a worker before each micro-batch, if there are directories."""


def bucket_images(
    attempt: Attempt, plan: BucketPlan, scaling: Scaling | Whitening, shards: Sequence[Shard], counts: HeatArray
) -> list[Image]:
    """The workers' images without their lines or entries; ``counts`` is how many values of each column are not 0."""
    options, coding = attempt.options, plan.coding.rows[0]
    labels, name = plan.coding.of_row(plan.train_labels, 0), attempt.source.name
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


class Packing:
    """Puts the samples of each bucket in order and appends them to the images or to the held-out samples.

    Parameters
    ----------
    attempt
        The attempt, whose state tells which buckets are packed already.
    found
        Findings about the features.
    plan, buckets
        The buckets.
    scaling
        Scaling of the features.
    shards
        The workers, with their columns.
    """

    def __init__(
        self,
        attempt: Attempt,
        found: FirstPass,
        plan: BucketPlan,
        buckets: Buckets,
        scaling: Scaling | Whitening,
        shards: Sequence[Shard],
    ) -> None:
        assert attempt.state.extremes is not None
        self._attempt = attempt
        self._found = found
        self._plan = plan
        self._buckets = buckets
        self._scaling = scaling
        self._images = bucket_images(attempt, plan, scaling, shards, attempt.state.extremes.nonzero)

    def run(self) -> None:
        """Pack all buckets that are left.

        Raises
        ------
        UserError
            If rows of a bucket are lost.
        OSError
            If the folder cannot be written.
        """
        attempt, plan, scaling = self._attempt, self._plan, self._scaling
        state = attempt.state
        if state.mean_square is None:
            count = sampled(plan.train_labels.size, self._found.space.count)
            parts = plan.first_samples(self._buckets, count)
            norms = np.concatenate([square_norms(part, scaling) for part in parts])
            state.mean_square = mean_square(norms, bias=attempt.options.bias, weights=plan.train_weights)
            state.sums = np.zeros(self._found.space.count, np.int64)
            attempt.save()
        skips_zeros = any(image.shard.directory for image in self._images)
        if skips_zeros:
            self._images = self._count_lines()
        if state.skips_zeros is None:
            state.skips_zeros = skips_zeros
            attempt.save()
        done = sum(map(plan.samples_of, range(state.packed)))
        with contextlib.ExitStack() as files:
            writers = self._open_images(files)
            for bucket in range(state.packed, plan.buckets):
                if bucket < plan.train_buckets:
                    self._pack_bucket(bucket, writers)
                else:
                    self._hold_out_bucket(bucket)
                for writer in writers:
                    writer.sync()
                state.packed = bucket + 1
                state.written = [writer.written for writer in writers]
                attempt.save()
                self._buckets.drop(bucket)
                done += plan.samples_of(bucket)
                attempt.on_progress(Step.PACK, done, self._found.samples)
            for writer in writers:
                writer.finish()
                writer.sync()

    def _count_lines(self) -> list[Image]:
        """Count lines with directories, unless an earlier attempt has: it takes one more reading of the buckets."""
        attempt, plan, images = self._attempt, self._plan, self._images
        paths = [attempt.work / COUNTED.format(image.shard.worker) for image in images]
        if attempt.state.skips_zeros is None:

            def blocks() -> Iterator[list[npt.NDArray[np.uint8] | EntryBlock]]:
                done = 0
                for bucket in range(plan.train_buckets):
                    yield from self._blocks(bucket)
                    done += plan.samples_of(bucket)
                    attempt.on_progress(Step.COUNT, done, plan.train_labels.size)

            for path, image in zip(paths, count_lines(images, blocks()), strict=True):
                assert image.starts is not None
                with new_file(path) as file:
                    np.save(file, image.starts)
        return [dataclasses.replace(image, starts=np.load(path)) for path, image in zip(paths, images, strict=True)]

    def _blocks(self, bucket: int) -> PackedBlocks:
        """The samples of a bucket as images have them, with those that fill the last mini-batch."""
        plan, samples = self._plan, self._plan.samples_of(bucket)
        data = Dataset(self._buckets.load(bucket, samples), np.zeros(samples), self._attempt.source.name)
        if bucket == plan.train_buckets - 1:
            samples = self._images[0].layout.samples - bucket * plan.rows
        return PackedBlocks(data, self._images, self._scaling, samples)

    def _pack_bucket(self, bucket: int, writers: list[ImageWriter]) -> None:
        blocks, sums = self._blocks(bucket), self._attempt.state.sums
        assert sums is not None
        sums += feature_sums(blocks.data.features, self._scaling)
        append_blocks(writers, self._images, blocks)

    def _hold_out_bucket(self, bucket: int) -> None:
        plan, state = self._plan, self._attempt.state
        features = self._buckets.load(bucket, plan.samples_of(bucket))
        shape = (plan.validation_labels.size, self._found.space.count)
        first, written = (bucket - plan.train_buckets) * plan.rows, state.validation
        write_held_out(self._attempt.work, features, shape, first=first, stored=state.held_out, written=written)
        state.validation += stored_values(features)

    def _open_images(self, files: contextlib.ExitStack) -> list[ImageWriter]:
        attempt, writers = self._attempt, []
        for index, image in enumerate(self._images):
            written = attempt.state.written[index] if attempt.state.written else None
            path = image_file(attempt.work, image.shard.worker)
            file = files.enter_context(path.open("w+b" if written is None else "r+b"))
            if written is None:
                reserve(file, ImageWriter.file_bytes(image))
            writers.append(ImageWriter(file, image, written))
        sync_folder(attempt.work)
        return writers
