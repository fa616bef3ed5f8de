"""The workers of a run from epoch to epoch: their images, their session, and taking over from workers that are lost."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.host.data import Scaling
from p4sgd.host.devices import Device, has_network
from p4sgd.host.devices.device import name_workers, names_of
from p4sgd.host.devices.session import Session
from p4sgd.host.distributed.communicator import SINGLE_PROCESS, Communicator, broadcast
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.host.losses import Loss
from p4sgd.host.training.checkpoint import State
from p4sgd.host.training.dealing.columns import choose_hot, deal_columns
from p4sgd.host.training.dealing.units import deal_to_device, deal_units
from p4sgd.host.training.events import Events, Note, Remarks
from p4sgd.host.training.options import TrainingOptions
from p4sgd.host.training.prepared import Placement, Prepared
from p4sgd.hw.spec.registers import ModelSource
from p4sgd.sim.sparse.data_parallel import SampleRanks

_CHANGE = 0.25
"""Part by which a worker's pace, beside the mean of all, must change to be another one."""


class Workers:
    """The workers of a run: `deal_units` comes first, then `begin` for each row, and before each epoch `take_in` and
    `open`; `adopt` where workers are lost. ``prepared`` is the training set as it is dealt to the workers now, and
    ``source`` tells where the weights of the next epoch come from, ``None`` before the row is on the device."""

    def __init__(
        self,
        device: Device,
        options: TrainingOptions,
        ranks: Communicator,
        sample_ranks: SampleRanks | None,
        events: Events,
    ) -> None:
        self.device = device
        self.options = options
        self.sample_ranks = sample_ranks
        self._ranks = ranks
        self._owners = ranks if sample_ranks is None else SINGLE_PROCESS  # the ranks that have a worker each
        self._events = events
        self._session: Session | None = None
        self.source: ModelSource | None = None
        self._paces: npt.NDArray[np.float64] | None = None  # of workers in the first epoch with these shares
        self._changed = 0  # epochs, one after the other, in which they were others
        self.prepared: Prepared
        self._loss: Loss
        self._state: State
        self._remarks: Remarks

    def deal_units(self, features: int, samples: int) -> tuple[Placement, dict[str, bool]]:
        """Deal the features to the workers that are there: their units, and remarks, with whether they warn that
        workers are missing. Raises as `deal_to_device`, and `P4sgdError` if there are more workers than the options
        say."""
        device, options, warnings = self.device, self.options, list[str]()
        there = len(device.workers) * self._owners.size
        if there > options.workers or (self._ranks.size > 1 and there < options.workers):
            raise P4sgdError(f"the options are for {options.workers} workers, the device has {there}")
        if there < options.workers:  # there must be units for the late ones
            configs = [worker.config for worker in device.workers]
            late = [max(configs, key=lambda config: config.features)] * (options.workers - there)
            deal_units(features, options, [*configs, *late])
            warnings.append(f"training begins with {there} workers; those that are late: {name_workers(device.absent)}")
        while True:
            try:
                shards, remark = deal_to_device(device, features, samples, options, self._owners)
                break
            except P4sgdError as error:  # of the run that measures speeds
                self._drop(error)
                warnings.append(self._fewer("training begins with", there, [error]))
        placement = Placement(shards, network=has_network(device), sample_ranks=self.sample_ranks)
        return placement, ({remark: False} if remark else {}) | dict.fromkeys(warnings, True)

    def begin(self, prepared: Prepared, loss: Loss, state: State, remarks: Remarks) -> None:
        self.prepared, self._loss, self._state, self._remarks = prepared, loss, state, remarks
        self.source = None
        self._show_dealt(first=self._session is None)
        ranks = self.sample_ranks
        if ranks is None or self._session is not None:
            return
        # Dense data have no heat: every sample may have every feature.
        heat = prepared.heat() if prepared.heat else np.full(prepared.space.count, prepared.samples)
        ranks.hot, remark = choose_hot(heat, prepared.shards[0].total, prepared.samples, self.options, ranks.size)
        if ranks.size == 1:
            remark = "--parallel data is for several processes: start N of them with mpiexec -n N, or leave it out"
        remarks.add(remark and Note(remark))

    def open(self) -> Session:
        """The session with everything on the device."""
        prepared, session = self.prepared, self._session
        if self.source is not None and session is not None:
            return session
        if session is None:
            merge = self.options.merge
            count = int(merge) if merge != "auto" and has_network(self.device) else None
            session = Session(self.device, communicator=self._owners, merge=count, stand_ins=self.options.stand_ins)
            session.upload(prepared.images)
        else:  # another row had it
            session.load_labels(prepared.images[0].labels, prepared.images[0].importances)
        self._session = session
        session.load_table(broadcast(self._ranks, self._loss.table()))
        weights = self._state.weights
        if weights is not None:
            session.write_weights(prepared.split(weights.values))
        self.source = ModelSource.ZERO if weights is None else ModelSource.MEMORY
        return session

    def adopt(self, error: P4sgdError) -> None:
        """Deal the units of lost workers to the others, which go on from the last epoch; raises the error if this is
        not wanted or not possible."""
        before, errors = len(self.device.workers), [error]
        while True:
            self._drop(errors[-1])
            remark = self._fewer(f"epoch {self._state.epoch + 1} is trained by", before, errors)
            try:
                return self._deal_anew(remark, warns=True)
            except (P4sgdError, UserError, RuntimeError) as second:
                if not isinstance(second, P4sgdError) or not second.lost_workers:
                    error.add_note(f"the other workers could not go on: {second}")
                    raise error from second
                errors.append(second)

    def take_in(self) -> None:
        """Deal units anew if stand-ins have taken the places of lost workers, and to workers that have come, too."""
        if lost := self.device.replaced:
            before, error = len(self.device.workers), P4sgdError("; ".join(map(str, lost.values())), lost_workers=lost)
            self._drop(error)
            self._deal_anew(self._fewer(f"epoch {self._state.epoch + 1} is trained by", before, [error]), warns=True)
        elif self._changed >= max(2, self._state.epoch // 2):  # seldom, if speeds come and go
            self._deal_anew(Note(f"epoch {self._state.epoch + 1}: speeds of workers have changed"), warns=False)
        came = self.device.take_in(partial(self._remarks.add, warns=True))
        if not came:
            return
        epoch, workers = self._state.epoch + 1, len(self.device.workers)
        names = names_of(self.device, workers)
        new = name_workers(names[shard] for shard in sorted(came))
        try:
            remark = f"epoch {epoch} is trained by {workers} workers, {len(came)} of them new: {new}"
            self._deal_anew(Note(remark), warns=False)
        except UserError as error:
            self.device.drop(came)
            self._deal_anew(f"epoch {epoch}: {new} has come and cannot take part: {error}", warns=True)

    def look_at(self, counters: Sequence[dict[str, int]]) -> None:
        """Note what workers have counted in an epoch, for `take_in`: whether speeds are those of the first one."""
        cycles = np.array([counted["CYCLES_BUSY"] + counted["CYCLES_MEMORY"] for counted in counters], np.float64)
        if self.options.shares != "auto" or self._ranks.size > 1 or not cycles.size or not cycles.all():
            return
        paces = cycles / cycles.mean()
        self._paces = paces if self._paces is None else self._paces
        self._changed = self._changed + 1 if (abs(paces / self._paces - 1) > _CHANGE).any() else 0

    def release(self) -> None:
        """Let go of the images: no run follows."""
        if self._session is not None:
            self._session.close()
        self.prepared = dataclasses.replace(self.prepared, images=())

    def to_json(self) -> dict[str, Any]:
        """How the workers share columns and exchange sums, for the result."""
        dealt, session = self.prepared.dealt, self._session
        times = None if session is None else session.message_times
        about: dict[str, Any] = {
            "workers": [name.number for name in names_of(self.device, len(dealt.shards))],
            "split": None if dealt.split is None else dealt.split.to_json(),
            "skips_zeros": any(shard.directory for shard in dealt.shards),
        }
        if session is not None and has_network(self.device):
            about["packets"] = {"version": session.version, "micro_batches": session.micro_batches}
        return about | {"message_times": None if times is None else times.to_json()}

    def _drop(self, error: P4sgdError) -> None:
        """Go on without the workers whose loss an error reports, or raise it."""
        lost = error.lost_workers
        none_left = len(lost) == len(self.device.workers)
        if self.options.on_loss != "adopt" or not lost or none_left or self._ranks.size > 1:
            raise error
        try:
            self.device.drop(lost)
        except (P4sgdError, RuntimeError) as second:  # some devices cannot
            error.add_note(f"the other workers could not go on: {second}")
            raise error from second

    def _fewer(self, what: str, before: int, errors: list[P4sgdError]) -> str:
        left = len(self.device.workers)
        return f"{what} {left} worker{'s' if left > 1 else ''} instead of {before}: {'; '.join(map(str, errors))}"

    def _deal_anew(self, remark: str, *, warns: bool) -> None:
        """Deal all features to the workers that the device has now, from the images there are, and say so."""
        from p4sgd.host.image.repartition import first_values, repartition_images

        prepared, fitted = self.prepared, self.prepared.scaling
        shards, measured = deal_to_device(
            self.device, prepared.space.count, prepared.samples, self.options, self._owners
        )
        if prepared.heat is not None:
            assert isinstance(fitted, Scaling)
            fitted = dataclasses.replace(fitted, heat=prepared.heat())
        dealt = deal_columns(
            shards,
            fitted,
            self.options,
            samples=prepared.samples,
            values=partial(first_values, prepared.images),
            network=has_network(self.device),
            may_read_zeros=True,  # that those are left which cannot skip them is no mistake of the user
        )
        images = repartition_images(prepared.images, dealt.shards, name=prepared.name)
        self._session = self.source = None
        self.prepared = dataclasses.replace(prepared, images=images, dealt=dealt)
        self._paces, self._changed = None, 0
        self._remarks.add(remark, own=True, warns=warns)
        self._remarks.add(measured)
        self._show_dealt(first=True)
        self.open()

    def _show_dealt(self, *, first: bool) -> None:
        """Remark on how columns are dealt; ``first`` tells what each worker has, if there are dense and sparse ones."""
        dealt = self.prepared.dealt
        for remark in filter(None, (dealt.remark, dealt.split)):
            self._remarks.add(Note(remark), passing=True)  # a resumed run deals the columns again
        if dealt.split is not None and first:
            self._events.split(dealt.split, names_of(self.device, len(dealt.shards)))
