"""Folders of prepared data as training data."""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy  # which imports scipy.sparse at its first use

from p4sgd.host.data import Dataset, Scaling
from p4sgd.host.data.identity import DataIdentity
from p4sgd.host.data.statistics import HeatArray, heat_type
from p4sgd.host.distributed.communicator import SINGLE_PROCESS, Communicator, broadcast, check_same, raise_on_all
from p4sgd.host.errors import UserError
from p4sgd.host.image.contents import Values
from p4sgd.host.image.file import image_file, open_image
from p4sgd.host.image.image import Image, Shard, join_scaling
from p4sgd.host.image.repartition import first_values, own_samples, repartition_images, suits
from p4sgd.host.losses import get_loss
from p4sgd.host.losses.loss import FloatArray
from p4sgd.host.precondition import Whitening
from p4sgd.host.streaming import OnProgress
from p4sgd.host.streaming.manifest import MANIFEST, Array, check_files, load_manifest, open_array
from p4sgd.host.training.class_weights import spell_class_weight
from p4sgd.host.training.dealing.columns import deal_columns, skipping_problem
from p4sgd.host.training.dealing.split import Dealt
from p4sgd.host.training.hardware_features import hardware_values
from p4sgd.host.training.options import Fact, TrainingOptions, options_with
from p4sgd.host.training.prepared import Placement, Prepared, PreparedData, Targets
from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.run import FeatureFormat


def is_prepared(source: str | Path) -> bool:
    """Whether a path is a finished folder of prepared data."""
    return (Path(source) / MANIFEST).is_file()


class PreparedFolder(PreparedData):
    """A folder of prepared data, which all processes that train on it together must see; `verify` checks its files.

    ``may_read_zeros``: ``skip_zeros="always"`` is not what the user asks of this run. Raises `UserError` if the folder
    is unfinished, of another version, or not the same for all processes.
    """

    def __init__(
        self, path: Path, communicator: Communicator = SINGLE_PROCESS, *, may_read_zeros: bool = False
    ) -> None:
        manifest, sha256 = load_manifest(path)
        check_same(communicator, {"DATA": f"a folder with checksum {sha256:.12}"})  # under whatever names
        self.name = str(path)
        self.manifest = manifest
        self.communicator = communicator
        self.samples = manifest.samples
        self.weighted = f"{Array.WEIGHTS}.npy" in manifest.files
        self.space = manifest.space
        self.identity = DataIdentity(self.name, manifest.samples, manifest.space.count, sha256)
        self._path = path
        self._may_read_zeros = may_read_zeros
        self._files = [image_file(path, worker) for worker in range(manifest.options["workers"])]

    @cached_property
    def _images(self) -> list[Image]:
        """The images, opened once; of a damaged folder every access raises `UserError`."""
        return [open_image(file, verify=False) for file in self._files]

    def verify(self, on_progress: OnProgress = lambda step, done, total: None, *, others: bool = False) -> None:
        """Compare every file with its checksum, each image on the rank of its worker, or with ``others`` the images of
        other ranks, whose copies may differ; `UserError` on all ranks if one is damaged."""
        rank, size = self.communicator.rank, self.communicator.size
        of_others = {file.name for worker, file in enumerate(self._files) if worker % size != rank}
        files = {name: facts for name, facts in self.manifest.files.items() if (name in of_others) == others}
        raise_on_all(self.communicator, partial(check_files, self._path, files, on_progress))

    def options(self, asked: Mapping[str, Any], given: set[str]) -> dict[str, Any]:
        """Options of a training run on this folder, from fields of `TrainingOptions` and the names of those that were
        chosen; `UserError` if one of these is not what the data were prepared with."""
        prepared = TrainingOptions(**self.manifest.options)
        ours = {**self.manifest.options, "planes": prepared.stored, "unit": prepared.unit_of(self.space.count)}
        free = given & set(options_with(Fact.CHANGEABLE))
        for name in sorted((given & ours.keys()) - free):
            before, after = ours[name], asked[name]
            if before != after and str(before) != str(after):
                chose = f" (which chose {self.manifest.scaling})" if (name, before) == ("scaling", "auto") else ""
                if name == "class_weight":
                    before, after = (each and spell_class_weight(each) for each in (before, after))
                raise UserError(
                    f"{self.name}: was prepared with {name.replace('_', '-')} {before}{chose}, not {after}: "
                    f"choose that or prepare the data again"
                )
        return {**asked, **{name: value for name, value in ours.items() if name not in free}}

    def check(self, options: TrainingOptions, shards: Sequence[Shard] = ()) -> None:
        """Refuse options of a training run that cannot use the folder, with these workers if they are known."""
        wanted = shards and options.skip_zeros == "always" and not self._may_read_zeros
        if wanted and (problem := skipping_problem(shards, None, options)) is not None:
            raise problem
        prepared_for, loss = get_loss(self.manifest.options["loss"]), get_loss(options.loss)
        stored = {"planes": options.stored, "unit": options.unit_of(self.space.count)}
        self.options({**options.to_json(), **stored}, set(self.manifest.options))
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

    def load(self, options: TrainingOptions, placement: Placement) -> Prepared:
        """Arrays and images are mapped, or for other workers made anew by `repartition_images`. `UserError` if the
        options do not suit the folder, or if a file cannot be read."""
        self.check(options)
        manifest, ranks = self.manifest, placement.sample_ranks
        dealt = self._deal_columns(placement.shards, options, network=placement.network)
        if ranks is not None or not suits(self._images, dealt.shards):
            self.verify(others=True)  # which this rank reads, too
        images = partial(repartition_images, self._images, dealt.shards, name=self.name)
        if ranks is None:
            own = images(communicator=self.communicator)
        else:  # each rank takes its samples from the image of the worker
            own = [own_samples(image, options.batch // BANKS, ranks) for image in images()]
        scaling, heat = self._scaling, self._heat
        weights = self._some(Array.WEIGHTS), self._some(Array.VALIDATION_WEIGHTS)
        targets = Targets(manifest.labels, self._array(Array.LABELS), *weights, offsets=self._some(Array.OFFSETS))
        return Prepared(
            name=self.name,
            space=self.space,
            validation=self._validation() if manifest.validation_samples else None,
            targets=targets,
            features=FeatureFormat(options.stored, options.precision, manifest.signed),
            scaling=scaling.without_heat() if isinstance(scaling, Scaling) else scaling,
            map=hardware_values(scaling, options),
            images=own,
            dealt=dealt,
            mean_square=manifest.mean_square,
            deviance=broadcast(self.communicator, targets.of_row(0).deviance(options, self.name)),
            # Mapped anew, because pages of a map that have been read count as this process's.
            sums=lambda columns: self._array(Array.SUMS)[columns],
            remarks=manifest.remarks,
            communicator=self.communicator,
            heat=None if heat is None else lambda: self._array(Array.HEAT),
            nonzeros=0 if heat is None else int(heat.sum()),
        )

    def _deal_columns(self, shards: Sequence[Shard], options: TrainingOptions, *, network: bool) -> Dealt:
        dealt = deal_columns(
            shards,
            self._scaling,
            options,
            samples=self.samples,
            values=self._first_values,
            network=network,
            may_read_zeros=self._may_read_zeros,
        )
        # A worker with the columns of an image shares its array: they may be millions.
        known = {image.shard.worker: image.shard.placed for image in self._images}
        for place, shard in enumerate(dealt.shards):
            placed = known.get(shard.worker)
            if placed is not None and shard.placed is not None and np.array_equal(placed, shard.placed):
                dealt.shards[place] = dataclasses.replace(shard, placed=placed)
        return dealt

    def _first_values(self, samples: int) -> Values:
        try:
            # From other ranks' images, not verified here: they decide about time alone, but ranks must agree.
            return broadcast(self.communicator, first_values(self._images, samples))
        except (ValueError, IndexError) as error:
            check_files(self._path, self.manifest.files, lambda step, done, total: None)  # says which file
            raise UserError(f"{self.name}: an image is damaged ({error}): prepare the data again") from error

    @property
    def _heat(self) -> HeatArray | None:
        """See `p4sgd.host.data.Scaling`. Read anew, because few steps of training need it."""
        heat = self._some(Array.HEAT)
        return None if heat is None else heat.astype(heat_type(self.samples))

    @property
    def _scaling(self) -> Scaling | Whitening:
        manifest = self.manifest
        offset, scale = join_scaling(self._images)
        if manifest.options["precondition"] == "none":
            about = manifest.scaling, offset, scale, manifest.signed, manifest.reason
            return Scaling(*about, heat=self._heat, common=manifest.common)
        matrix, exponent, centre = map(self._array, Array.WHITENING)
        grid = Scaling(manifest.scaling, offset, scale, signed=True, reason=manifest.reason)
        return Whitening(grid, centre, matrix, exponent, manifest.signed)

    def _validation(self) -> Dataset:
        manifest, space = self.manifest, self.space
        if manifest.sparse:
            parts = tuple(map(self._array, Array.VALIDATION_SPARSE))
            features = scipy.sparse.csr_array(parts, shape=(manifest.validation_samples, space.count))
        else:
            features = self._array(Array.VALIDATION)
        name, labels = f"held-out samples of {self.name}", self._array(Array.VALIDATION_LABELS)
        offsets = self._some(Array.VALIDATION_OFFSETS)
        return Dataset(features, labels, name, manifest.labels.names, space=space, offsets=offsets)

    def _some(self, name: str) -> FloatArray | None:
        return self._array(name) if f"{name}.npy" in self.manifest.files else None

    def _array(self, name: str) -> Any:
        return open_array(self._path, name)
