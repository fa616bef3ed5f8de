"""Folders of prepared data as training data."""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy  # which imports scipy.sparse at its first use

from p4sgd.host.data import Dataset, FeatureSpace, Scaling
from p4sgd.host.data.identity import DataIdentity
from p4sgd.host.data.statistics import HeatArray, heat_type
from p4sgd.host.distributed.communicator import SINGLE_PROCESS, Communicator, check_same
from p4sgd.host.errors import UserError
from p4sgd.host.image.entries import Values, own_samples
from p4sgd.host.image.file import image_file, open_image
from p4sgd.host.image.image import Image, Shard, join_scaling
from p4sgd.host.image.repartition import first_values, repartition_images, same_lines
from p4sgd.host.losses import get_loss
from p4sgd.host.losses.loss import FloatArray
from p4sgd.host.precondition import Whitening
from p4sgd.host.streaming import OnProgress
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
    check_files,
    load_manifest,
)
from p4sgd.host.training.class_weights import spell_class_weight
from p4sgd.host.training.dealing.columns import Dealt, deal_columns
from p4sgd.host.training.hardware_features import hardware_means, hardware_values
from p4sgd.host.training.options import TrainingOptions
from p4sgd.host.training.prepared import Heat, Placement, Prepared, Targets
from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import IntArray
from p4sgd.hw.spec.run import FeatureFormat

TRAINING_MAY_CHANGE = ("loss", "precision", "workers", "skip_zeros")
"""Options that training may change: another loss for the same task, fewer bits than are stored, other workers, and
whether these pass over zeros."""


def is_prepared(source: str | Path) -> bool:
    """Whether a path is a finished folder of prepared data."""
    return (Path(source) / MANIFEST).is_file()


class PreparedFolder:
    """A folder of prepared data, its manifest, and the processes that train on it together; see `open_prepared`."""

    def __init__(
        self, path: Path, manifest: Manifest, sha256: str, communicator: Communicator, *, may_read_zeros: bool
    ) -> None:
        self._path = path
        self.manifest = manifest
        self.communicator = communicator
        self._sha256 = sha256
        self._may_read_zeros = may_read_zeros
        self._dealt: tuple[list[Shard], TrainingOptions, bool, Dealt] | None = None

    @property
    def name(self) -> str:
        """Path of the folder."""
        return str(self._path)

    @property
    def samples(self) -> int:
        """Number of samples, without the held-out ones."""
        return self.manifest.samples

    @property
    def space(self) -> FeatureSpace:
        """The features of the samples."""
        return self.manifest.space

    @property
    def identity(self) -> DataIdentity:
        """Identity of the data; the checksum is that of the manifest."""
        return DataIdentity(self.name, self.manifest.samples, self.space.count, self._sha256)

    @property
    def weighted(self) -> bool:
        """Whether its samples have weights."""
        return self._weights(WEIGHTS) is not None

    @property
    def _workers(self) -> int:
        return int(self.manifest.options["workers"])

    @cached_property
    def _images(self) -> list[Image]:
        """The images, opened once; of a damaged folder every access raises `UserError`."""
        return [open_image(image_file(self._path, worker), verify=False) for worker in range(self._workers)]

    @property
    def _heat(self) -> HeatArray | None:
        """See `p4sgd.host.data.Scaling`. Read anew, because few steps of training need it."""
        if f"{HEAT}.npy" not in self.manifest.files:
            return None
        heat: HeatArray = self._array(HEAT).astype(heat_type(self.manifest.samples))
        return heat

    def _sums(self, columns: slice) -> IntArray:
        """See `hardware_means`. Mapped anew, because pages of a map that have been read count as this process's."""
        sums: IntArray = self._array(SUMS)[columns]
        return sums

    def _suits(self, shards: Sequence[Shard]) -> bool:
        """Whether the images are for these workers. If not, every process makes those of its workers of all images."""
        ours = [image.shard for image in self._images]
        return len(ours) == len(shards) and all(map(same_lines, ours, shards))

    def verify(self, shards: Sequence[Shard] | None = None, *, on_progress: OnProgress | None = None) -> None:
        """Read every file that this process needs, and compare it with its checksum; `UserError` if one is damaged.

        The workers of the training run decide which images are read; ``None`` reads all.
        """
        images = [image_file(self._path, worker).name for worker in range(self._workers)]
        try:
            suits = shards is not None and self._suits(shards)
        except UserError:  # damaged: the checksums say where
            suits = False
        needed = images[self.communicator.rank :: self.communicator.size] if suits else images
        others = set(images) - set(needed)
        files = {name: facts for name, facts in self.manifest.files.items() if name not in others}
        check_files(self._path, files, on_progress or (lambda step, done, total: None))

    def options(self, asked: Mapping[str, Any], given: set[str]) -> dict[str, Any]:
        """Options of a training run on this folder, from fields of `TrainingOptions` and the names of those that were
        chosen.

        Raises `UserError` if a chosen option is not the one that the data were prepared with.
        """
        ours = {**self.manifest.options, "planes": self.manifest.stored, "unit": self.manifest.unit}
        for name in sorted(given & set(ours)):
            if name not in TRAINING_MAY_CHANGE and asked[name] != ours[name] and str(asked[name]) != str(ours[name]):
                chose = f" (which chose {self.manifest.scaling})" if (name, ours[name]) == ("scaling", "auto") else ""
                before, after = ours[name], asked[name]
                if name == "class_weight":
                    before, after = (each and spell_class_weight(each) for each in (before, after))
                raise UserError(
                    f"{self.name}: was prepared with {name.replace('_', '-')} {before}{chose}, not {after}: "
                    f"choose that or prepare the data again"
                )
        return {
            **asked,
            **{name: value for name, value in ours.items() if name not in given or name not in TRAINING_MAY_CHANGE},
        }

    def load(self, options: TrainingOptions, placement: Placement) -> Prepared:
        """The data as training needs them; arrays and images are mapped, not loaded.

        For other workers than those it was prepared for, `repartition_images` makes new images of its images. Raises
        `UserError` if the options do not suit the folder, or if a file cannot be read.
        """
        self.check(options)
        manifest, images = self.manifest, self._images
        dealt = self.deal_columns(placement.shards, options, network=placement.network)
        if placement.sample_ranks is None:
            own = repartition_images(
                images, dealt.shards, name=self.name, communicator=self.communicator, directory=placement.directory
            )
        else:  # each rank takes its samples from the image of the worker
            (image,) = repartition_images(images, dealt.shards, name=self.name)
            own = [own_samples(image, options.batch // BANKS, placement.sample_ranks)]
        scaling, heat = self._scaling, self._heat
        fitted = scaling.without_heat() if isinstance(scaling, Scaling) else scaling
        weights = self._weights(WEIGHTS), self._weights(VALIDATION_WEIGHTS)
        return Prepared(
            name=self.name,
            space=self.space,
            train=None,
            validation=self._validation() if manifest.validation_samples else None,
            targets=Targets(manifest.labels, self._array(LABELS), *weights),
            features=FeatureFormat(options.stored, options.precision, manifest.signed),
            scaling=fitted,
            map=hardware_values(scaling, options),
            images=own,
            dealt=dealt,
            mean_square=manifest.mean_square,
            means=partial(hardware_means, self._sums, manifest.samples, fitted, options),
            remarks=manifest.remarks,
            communicator=self.communicator,
            heat=None if heat is None else Heat(int(heat.sum()), lambda: self._array(HEAT)),
        )

    def check(self, options: TrainingOptions) -> None:
        """Refuse options of a training run that cannot use the folder."""
        manifest = self.manifest
        stored = {"planes": options.stored, "unit": options.unit_of(self.space.count)}
        self.options({**options.to_json(), **stored}, set(manifest.options))
        prepared_for, loss = get_loss(manifest.options["loss"]), get_loss(options.loss)
        if loss.task is not prepared_for.task:
            raise UserError(
                f"{self.name}: was prepared for a {prepared_for.task.value}, the loss {options.loss} is for a "
                f"{loss.task.value}: choose another loss or prepare the data again"
            )
        if (loss.weighs or prepared_for.weighs) and loss.name != prepared_for.name:
            raise UserError(
                f"{self.name}: was prepared for the loss {prepared_for.name}, labels are others for {loss.name}: "
                f"choose that loss or prepare the data again"
            )

    def deal_columns(self, shards: Sequence[Shard], options: TrainingOptions, *, network: bool) -> Dealt:
        """Deal the columns to workers: see `p4sgd.host.training.dealing.columns.deal_columns`.

        A run asks several times, mostly for the same workers, and it takes seconds for millions of columns: the last
        answer is kept.
        """
        if self._dealt is not None:
            before, *how, dealt = self._dealt
            if how == [options, network] and len(before) == len(shards) and all(map(_same_units, before, shards)):
                return dealt
        dealt = deal_columns(
            shards,
            self._scaling,
            options,
            samples=self.manifest.samples,
            values=self._first_values,
            network=network,
            may_read_zeros=self._may_read_zeros,
        )
        # A worker with the columns of an image shares its array: they may be millions.
        known = {image.shard.worker: image.shard for image in self._images}
        dealt = dealt._replace(shards=[_share_columns(shard, known.get(shard.worker)) for shard in dealt.shards])
        self._dealt = list(shards), options, network, dealt
        return dealt

    def _first_values(self, samples: int) -> Values:
        try:
            return first_values(self._images, samples)
        except (ValueError, IndexError) as error:
            self.verify()  # says which file
            raise UserError(f"{self.name}: an image is damaged ({error}): prepare the data again") from error

    def check_images(self, shards: Sequence[Shard], directory: Path | None) -> None:
        """Refuse a folder for new images if none are needed for these workers."""
        if directory is not None and self._suits(shards):
            raise UserError(
                f"{self.name}: was prepared for these workers and has its images already: leave --images out"
            )

    @property
    def _scaling(self) -> Scaling | Whitening:
        """Scaling of all features, joined from the images, with their whitening."""
        manifest = self.manifest
        offset, scale = join_scaling(self._images)
        if manifest.options["precondition"] == "none":
            return Scaling(manifest.scaling, offset, scale, manifest.signed, manifest.reason, heat=self._heat)
        matrix, exponent, centre = map(self._array, WHITENING)
        grid = Scaling(manifest.scaling, offset, scale, signed=True, reason=manifest.reason)
        return Whitening(grid, centre, matrix, exponent, manifest.signed)

    def _validation(self) -> Dataset:
        manifest = self.manifest
        if manifest.sparse:
            data, indices, pointers = map(self._array, VALIDATION_SPARSE)
            shape = (manifest.validation_samples, self.space.count)
            features = scipy.sparse.csr_array((data, indices, pointers), shape=shape)
        else:
            features = self._array(VALIDATION)
        return Dataset(
            features,
            self._array(VALIDATION_LABELS),
            f"held-out samples of {self.name}",
            manifest.labels.names,
            feature_names=self.space.names,
            zero_based=self.space.zero_based,
            hash_bits=self.space.hash_bits,
            encoding=self.space.encoding,
        )

    def _weights(self, name: str) -> FloatArray | None:
        return self._array(name) if f"{name}.npy" in self.manifest.files else None

    def _array(self, name: str) -> Any:
        try:
            return self.manifest.array(self._path, name)
        except (OSError, ValueError) as error:
            raise UserError(f"{self._path / name}.npy: cannot read: {error}: prepare the data again") from error


def _share_columns(shard: Shard, other: Shard | None) -> Shard:
    """A worker, with the other's array of columns if it is equal."""
    if other is None or other.placed is None or shard.placed is None or not np.array_equal(other.placed, shard.placed):
        return shard
    return dataclasses.replace(shard, placed=other.placed)


def _same_units(ours: Shard, theirs: Shard) -> bool:
    """Whether two workers are alike and have the same units before columns are dealt."""
    return ours.config == theirs.config and ours.unit == theirs.unit and np.array_equal(ours.units, theirs.units)


def open_prepared(
    path: Path, communicator: Communicator = SINGLE_PROCESS, *, may_read_zeros: bool = False
) -> PreparedFolder:
    """Open a folder of prepared data, which all ranks must see; `PreparedFolder.verify` checks its files.

    ``may_read_zeros`` tells that ``skip_zeros="always"`` is how the folder was prepared, and nothing that the user asks
    of this run. Raises `UserError` if it is unfinished, of another version, or not the same folder for all processes.
    """
    manifest, sha256 = load_manifest(path)
    check_same(communicator, {"DATA": f"a folder with checksum {sha256:.12}"})  # under whatever names
    return PreparedFolder(path, manifest, sha256, communicator, may_read_zeros=may_read_zeros)
