"""Checkpoints: files with the state of a training run, from which it resumes as if it had never stopped.

A checkpoint is written after every epoch and replaces the previous one atomically. It has everything that data and
options do not determine; see `State`.
"""

import dataclasses
import importlib.metadata
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from p4sgd.host.data.identity import DataIdentity
from p4sgd.host.distributed.communicator import SINGLE_PROCESS, Communicator, raise_on_all
from p4sgd.host.errors import UserError
from p4sgd.host.files import parse_json
from p4sgd.host.image import Shard
from p4sgd.host.tensor_file import Arrays, FileKind
from p4sgd.host.training.events import EpochRecord
from p4sgd.host.training.options import Fact, TrainingOptions, options_with
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.fixed import EngineWeights, WeightArray

FORMAT_VERSION = 9
"""To be changed whenever a reader of the old version would misread a new file, or continue differently."""

_KIND = FileKind("p4sgd-checkpoint", FORMAT_VERSION, "checkpoint", "name what --checkpoint wrote")

_STALLED, _GAIN = (4, 2), 0.25
"""Training ends after so many epochs in which the loss has fallen by less than this part of the tolerance: fewer if the
rate was lowered in them, which gained nothing either. On 26 data sets of 150 to 320,000 samples, of which 3 take all 40
epochs, the objective is at most 0.2 % above that after 40."""

_ANEW = "or train anew without the checkpoint"

is_checkpoint_file = _KIND.is_of
"""Whether a file is a checkpoint of any version."""


class Weights:
    """Weights of all features in the order of the data, or a function that returns them, with the workers and the
    weights of each of which it makes them: to order millions of them takes as long as a loss, and most are not kept."""

    def __init__(
        self,
        values: WeightArray | Callable[[], WeightArray],
        dealt: tuple[Sequence[Shard], Sequence[EngineWeights]] = ((), ()),
    ) -> None:
        self._values, self._dealt = values, dealt

    @property
    def values(self) -> WeightArray:
        """int32 `WEIGHT` integers, the bias last."""
        if callable(self._values):
            self._values, self._dealt = self._values(), ((), ())
        return self._values

    def of(self, shards: Sequence[Shard]) -> Sequence[EngineWeights]:
        """Per-worker weights of these workers while not yet merged; empty afterwards."""
        return self._dealt[1] if self._dealt[0] is shards else ()


@dataclass(frozen=True, eq=False)
class Best:
    """The best model so far, with the monitored metric as score."""

    epoch: int
    score: float
    weights: Weights


@dataclass(eq=False)
class State:
    """The state of a row's training: all that the rest of it depends on, besides data, options and configuration.

    The next epoch starts from ``weights``, ``None`` before the first. ``first_rate`` is the initial learning rate, or
    the one with which training has begun again after it diverged; for the ``divisor`` see
    `p4sgd.host.training.rate.LearningRateSchedule`. There were ``idle`` epochs without progress, and ``stalled`` ones
    in which the best score has hardly fallen below ``level``.
    """

    weights: Weights | None = None
    history: list[EpochRecord] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    first_rate: float | None = None
    divisor: float = 1.0
    idle: int = 0
    stalled: int = 0
    level: float | None = None
    best: Best | None = None

    @property
    def epoch(self) -> int:
        """The last completed epoch, 0 before the first."""
        return len(self.history)

    def ends_early(self, options: TrainingOptions) -> bool:
        """Whether training ends because of too many epochs without progress, or with hardly any at lower rates, too."""
        adaptive = options.schedule == "adaptive"
        if options.patience is None:
            rates = [record.learning_rate for record in self.history[-1 - self.stalled :]]
            lowered = min(rates, default=0.0) < max(rates[:1], default=0.0)
            return adaptive and self.stalled >= _STALLED[lowered]
        allowed = 2 if adaptive else 1  # it lowers the rate first, and waits as long again
        return self.idle >= allowed * options.patience

    def count_stalled(self, tolerance: float) -> None:
        """Count an epoch as stalled if the best score is not a part of the tolerance below the level."""
        assert self.best is not None
        self.stalled += 1
        if self.level is None or self.best.score < self.level * (1 - tolerance * _GAIN):
            self.level, self.stalled = self.best.score, 0


@dataclass(frozen=True)
class Run:
    """The inputs of a run. Runs with the same inputs end with the same bits, on any device and any workers, unless
    activations are clamped, at a limit that depends on the number of workers.

    ``config`` is that of the largest worker and may change, as may some options; ``data`` and ``test`` are identities.
    """

    options: TrainingOptions
    config: WorkerConfig
    data: DataIdentity
    test: DataIdentity | None


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The content of a checkpoint file: the inputs of the run, plain data for resuming it (see `CheckpointFile`), and
    the state of every row of the model, which is empty if the row has not begun."""

    path: Path
    run: Run
    origin: Mapping[str, Any]
    states: list[State]

    def check(self, run: Run) -> None:
        """Raise a `UserError` if anything but resumable options and the configuration differs from those of a run."""
        self.check_data(run.data)
        self._check_same("test data", self.run.test, run.test)
        free = {name: getattr(run.options, name) for name in options_with(Fact.RESUMABLE)}
        if dataclasses.replace(self.run.options, **free) != run.options:
            raise UserError(f"{self.path}: the options of this checkpoint are others: use those, {_ANEW}")

    def check_data(self, data: DataIdentity, changed: Sequence[str] = ()) -> None:
        """Raise a `UserError` if training data are others; the part of `check` that can be done early. Of the same file
        the ``changed`` options with which it is read in another way are to blame."""
        blamed = changed and data.name == self.run.data.name
        remedy = f"leave {' and '.join(changed)} out" if blamed else "name the same"
        self._check_same("data", self.run.data, data, remedy)

    def _check_same(
        self, what: str, ours: DataIdentity | None, theirs: DataIdentity | None, remedy: str = "name the same"
    ) -> None:
        if ours == theirs:
            return
        if ours is None or theirs is None:
            how = f"{'none' if ours is None else ours.name}, not {'none' if theirs is None else theirs.name}"
        elif (ours.samples, ours.features) == (theirs.samples, theirs.features):
            how = f"{theirs.name} has values or labels that {ours.name} had not"
        else:
            how = (
                f"{theirs.name} has {theirs.samples:,} samples of {theirs.features:,} features, "
                f"{ours.name} had {ours.samples:,} of {ours.features:,}"
            )
        raise UserError(f"{self.path}: the {what} of this checkpoint are others: {how}: {remedy}, {_ANEW}")


def epochs_done(states: Sequence[State]) -> int:
    """Number of completed epochs of all rows."""
    return sum(state.epoch for state in states)


def has_ended(states: Sequence[State], options: TrainingOptions) -> bool:
    """Whether all rows have come to their ends."""
    return all(state.epoch == options.epochs or state.ends_early(options) for state in states)


def _last_epoch(states: Sequence[State]) -> str:
    """How far a run is, for messages: ``epoch 3``, or ``epoch 3 of row 2 of 10``."""
    row = max((row for row, state in enumerate(states) if state.epoch), default=0)
    return f"epoch {states[row].epoch}" + (f" of row {row + 1} of {len(states)}" if len(states) > 1 else "")


class CheckpointFile:
    """The file to which a run writes its state, with plain data for resuming it, its ``origin``. ``overwrite`` lets it
    replace the checkpoint of the same run that has ended. ``last`` is the last epoch of this run in the file, such as
    ``epoch 3 of row 2 of 10``; empty as long as it has none."""

    def __init__(self, path: Path, origin: Mapping[str, Any] | None = None, *, overwrite: bool = False) -> None:
        self.path = path
        self.last = ""
        self._origin = dict(origin or {})
        self._overwrite = overwrite
        self._version = importlib.metadata.version("p4sgd")
        self._epochs: list[list[bytes]] = []

    def check_replaces(self, run: Run, states: Sequence[State] = ()) -> None:
        """Raise a `UserError` if the file has more than the ``states`` of this run that it goes on from, which may be
        hours of work; with ``overwrite`` this run may have ended where it will end again."""
        if not self.path.exists() or not self.path.stat().st_size:
            return
        anew = "name another file for this run, or delete it"
        try:
            saved = load_checkpoint(self.path)
        except UserError as error:
            raise UserError(f"{error}; {anew}") from error
        last = _last_epoch(saved.states)
        try:
            saved.check(run)
        except UserError as error:
            raise UserError(f"{self.path}: has {last} of another run: {anew}") from error
        if epochs_done(states) >= epochs_done(saved.states):
            return
        resume = f"--resume {self.path} continues from there"
        if not has_ended(saved.states, run.options):
            raise UserError(f"{self.path}: has {last} of this run: {resume}; to begin anew {anew}")
        if not self._overwrite:
            again = "with more --epochs, or writes the model, with --out; --overwrite does the same work again"
            raise UserError(f"{self.path}: has this run to its end, {last}: {resume}, {again}")

    def keep(self, run: Run, states: Sequence[State], ranks: Communicator = SINGLE_PROCESS) -> None:
        """Write the file in rank 0, and note in all ranks that it is there; raises a `UserError` in all of them."""
        raise_on_all(ranks, partial(self.save, run, states) if ranks.rank == 0 else None)
        self.last = _last_epoch(states)

    def save(self, run: Run, states: Sequence[State]) -> None:
        self._epochs = self._epochs or [[] for _ in states]
        arrays: Arrays = {}
        rows = []
        for row, (state, epochs) in enumerate(zip(states, self._epochs, strict=True)):
            facts = _Row(list(map(str, state.remarks)))
            if state.weights is not None:
                # Each epoch is converted to text only once: a history may become long. It is an array, because the size
                # of the header is limited.
                epochs += [json.dumps(vars(record)).encode() for record in state.history[len(epochs) :]]
                arrays[_name("weights", row)] = state.weights.values
                arrays[_name("history", row)] = np.frombuffer(b"\n".join(epochs), np.uint8)
                facts = dataclasses.replace(facts, **{name: getattr(state, name) for name in _NUMBERS})
                if (best := state.best) is not None:
                    arrays[_name("best_weights", row)] = best.weights.values
                    facts = dataclasses.replace(facts, best_epoch=best.epoch, best_score=best.score)
            rows.append(vars(facts))
        header = {"p4sgd": self._version, "run": dataclasses.asdict(run), "origin": self._origin, "rows": rows}
        _KIND.save(self.path, arrays, header)


def _name(array: str, row: int) -> str:
    return f"{array}.{row}" if row else array


@dataclass(frozen=True)
class _Row:
    """Facts about a row beside its arrays; without a ``first_rate`` it has not begun."""

    remarks: list[str]
    first_rate: float | None = None
    divisor: float = 1.0
    idle: int = 0
    best_epoch: int | None = None
    best_score: float = 0.0
    stalled: int = 0
    level: float | None = None


_NUMBERS = ("first_rate", "divisor", "idle", "stalled", "level")
"""Facts about a row that are fields of its state."""


@dataclass(frozen=True)
class _Header:
    run: Run
    origin: dict[str, Any]
    rows: list[_Row]


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint; `UserError` if it cannot be read, is no checkpoint, is damaged, or is of another version."""
    arrays, fields = _KIND.load(path)
    with _KIND.decoding(path):
        header = msgspec.convert(fields, _Header)
        size = header.run.data.features + header.run.options.bias
        states = [_state(arrays, facts, row, size) for row, facts in enumerate(header.rows)]
        if not states or states[0].weights is None:
            raise ValueError("it has no epoch")
        return Checkpoint(path, header.run, header.origin, states)


def _state(arrays: Arrays, facts: _Row, row: int, size: int) -> State:
    """The state of a row of ``size`` weights; a `ValueError` if its parts contradict each other."""
    if facts.first_rate is None:
        return State(remarks=facts.remarks)

    def weights(name: str) -> Weights:
        values = arrays[_name(name, row)].astype(np.int32, copy=False)
        if values.shape != (size,):
            raise ValueError(f"it has {values.size} {name.replace('_', ' ')}, not {size}")
        return Weights(values)

    lines = arrays[_name("history", row)].tobytes().splitlines()
    history = msgspec.convert(list(map(parse_json, lines)), list[EpochRecord])
    if not history or [record.epoch for record in history] != list(range(1, len(history) + 1)):
        raise ValueError("the epochs are not in order")
    best = None
    if facts.best_epoch is not None:
        if not 1 <= facts.best_epoch <= len(history):
            raise ValueError(f"the best model is of epoch {facts.best_epoch}")
        best = Best(facts.best_epoch, facts.best_score, weights("best_weights"))
    numbers: dict[str, Any] = {name: getattr(facts, name) for name in _NUMBERS}
    return State(weights("weights"), history, facts.remarks, best=best, **numbers)
