"""Epochs to the optimum, of training with and without the defaults, and of SGD in floating point.

    PYTHONPATH=tests python tests/bench/bench_epochs.py [--set NAME …] [--planes 1 2 4 8] [--epochs 100]

Each cell has the epochs until the training loss is within 1 % and within 0.1 % of the optimum, for mini-batches of 16.
The loss is that on raw features, without rounding, of the best epoch so far. It is compared for

- ``before``: scaling ``minmax``, schedule ``constant`` and the learning rate that norms of samples tell alone,
- ``default``: no options but the number of planes,
- ``block``: the default with ``--precondition block``,
- ``float``: SGD in float64 on standardised features with the same mini-batches in the same order, at the best of 19
  learning rates and of the schedules ``constant`` and ``adaptive``, and with a fitted intercept,
- ``sklearn``: SGDClassifier or SGDRegressor on standardised features, one sample an update, at the best of 19
  learning rates and of the schedules constant, invscaling and ``adaptive``.

The optimum is that of L-BFGS in float64 on the standardised features, or of least squares. Where classes are separable,
there is none, and the loss of scikit-learn's LogisticRegression with its default penalty (C = 1) stands for it; all
train without a penalty.

The second table has the loss of the model file relative to the optimum: few planes have one of their own, which may be
worse. The third has the predicted time on a U280 until the loss is within 1 %: cycles of `p4sgd.hw.spec.timing` for one
worker at 250 MHz, with the network of `BOARDS_NETWORK`, without the search for the learning rate on the host.

diamonds and fair need files of other packages, see `support.sets`. A set takes a minute or two.
"""

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import scipy.optimize
from scipy.special import expit
from sklearn.linear_model import SGDClassifier, SGDRegressor
from support.events import events
from support.script import parser_of, show
from support.sets import MADE, REAL, LabelledSet, load_sets

from p4sgd.host.data import Dataset
from p4sgd.host.data.order import shuffle
from p4sgd.host.devices import open_device
from p4sgd.host.losses import get_loss
from p4sgd.host.training import TrainingOptions, train
from p4sgd.host.training.dealing.units import deal_units
from p4sgd.host.training.events import EpochRecord
from p4sgd.host.training.preparation import prepare
from p4sgd.host.training.prepared import Placement, Prepared
from p4sgd.host.training.rate import LearningRateSchedule, automatic_rate, largest_rate
from p4sgd.hw.spec.config import CLOCK_NS, WorkerConfig
from p4sgd.hw.spec.timing import BOARDS_NETWORK, mini_batch_cycles

FloatArray = npt.NDArray[np.float64]

SETS = {name: REAL[name] for name in ("breast_cancer", "digits:parity", "diabetes", "diamonds", "fair")} | dict(MADE)

CONFIG = WorkerConfig.u280()

BATCH = TrainingOptions().batch

CLOSE = (1.01, 1.001)
"""Losses relative to the optimum."""

SEPARABLE = 0.05
"""Classes count as separable if the optimum is below this part of the loss of a constant model."""

RATES = 2.0 ** np.arange(-14, 5)
"""Learning rates of the peers, of a mean gradient on standardised features."""


@dataclass
class Run:
    """The course of a run: relative losses of the best model after each epoch, and the cycles of an epoch."""

    losses: list[float] = field(default_factory=list)
    cycles: float = math.nan
    end: float = math.nan
    """Relative loss of the model file, with an intercept that is fitted to the samples without rounding."""

    def epochs(self, close: float = CLOSE[0]) -> int | None:
        """Epochs to ``close`` times the optimum; ``None`` if there were too few."""
        return next((epoch for epoch, loss in enumerate(self.losses, 1) if loss <= close), None)

    @property
    def done(self) -> bool:
        """Whether nothing is left to be seen."""
        return bool(self.losses) and self.losses[-1] <= CLOSE[-1]


@dataclass
class Problem:
    """A set with its samples in training order, standardised, and its optimum."""

    made: LabelledSet
    x: FloatArray
    y: FloatArray
    optimum: float
    separable: bool


def make_problem(made: LabelledSet) -> Problem:
    """Standardise a set and find its optimum."""
    order = shuffle(made.labels.size, 0)
    x, y = _standardise(made.features[order]), made.labels[order]
    y = (y - y.mean()) / y.std() if made.loss == "squared" else 2 * y - 1
    return Problem(made, x, y, *optimum(x, y, made.loss))


def _standardise(x: FloatArray) -> FloatArray:
    deviation = x.std(axis=0)
    return (x - x.mean(axis=0)) / np.where(deviation > 0, deviation, 1)


def optimum(x: FloatArray, y: FloatArray, name: str) -> tuple[float, bool]:
    """The smallest mean loss, and whether one with a penalty stands for it."""
    loss, x = get_loss(name), np.column_stack([x, np.ones(len(x))])
    if name == "squared":
        return float(loss.value(x @ np.linalg.lstsq(x, y)[0], y).mean()), False

    def minimum(penalty: float) -> float:
        def objective(w: FloatArray) -> tuple[float, FloatArray]:
            z, shrunk = x @ w, np.append(penalty * w[:-1], 0.0)
            return float(loss.value(z, y).mean() + shrunk @ w / 2), loss.residual(z, y) @ x / y.size + shrunk

        limits = {"maxiter": 20_000, "maxfun": 40_000, "ftol": 1e-13, "gtol": 1e-9}
        found = scipy.optimize.minimize(objective, np.zeros(x.shape[1]), jac=True, method="L-BFGS-B", options=limits)
        return float(loss.value(x @ found.x, y).mean())

    lowest, constant = minimum(0.0), -sum(p * math.log(p) for p in (np.mean(y > 0), np.mean(y < 0)))
    return (lowest, False) if lowest > SEPARABLE * constant else (minimum(1 / y.size), True)


def prepare_run(problem: Problem, **options: object) -> tuple[Dataset, TrainingOptions, Prepared]:
    """The data and options of a run on the emulator, and what it begins with."""
    data = Dataset(problem.made.features, problem.made.labels, "set")
    chosen = TrainingOptions(loss=problem.made.loss, **options)
    return data, chosen, prepare(data, chosen, Placement(deal_units(data.feature_count, chosen, [CONFIG])))


def before(problem: Problem, planes: int) -> dict[str, object]:
    """Options that train as before the scaling ``standard``, the search for a rate and the schedule ``adaptive``."""
    options: dict[str, object] = {"l2": 0.0, "precision": planes, "scaling": "minmax", "schedule": "constant"}
    _, chosen, prepared = prepare_run(problem, **options)
    rate = automatic_rate(get_loss(chosen.loss), prepared.mean_square)
    return options | {"learning_rate": min(rate, largest_rate(BATCH, prepared.features))}


def emulate(problem: Problem, epochs: int, **options: object) -> Run:
    """Train on the emulator until the loss is within 0.1 % of the optimum."""
    data, chosen, prepared = prepare_run(problem, epochs=epochs, **options)
    run, best = Run(), [math.inf, math.inf]
    cycles = mini_batch_cycles(
        CONFIG, BATCH, prepared.images[0].layout.chunks, prepared.features.precision, BOARDS_NETWORK
    )
    run.cycles = -(-prepared.samples // BATCH) * cycles

    def look(record: EpochRecord) -> None:
        metrics = record.metrics
        best[:] = min(best, [metrics["train_loss"], metrics["test_loss"]])
        run.losses.append(best[1] / problem.optimum)
        if run.done:
            raise KeyboardInterrupt  # ends the training

    result = train(data, chosen, open_device("emulator", CONFIG, 1), test=data, events=events(epoch=look))
    run.end = result.metrics["train_loss"] / problem.optimum
    return run


def _intercepts(z: FloatArray, y: FloatArray, name: str) -> FloatArray:
    """The best constant for each column of activations."""
    if name == "squared":
        return -(z - y[:, None]).mean(axis=0)
    c = np.zeros(z.shape[1])
    for _ in range(8):
        p = expit(z + c)
        c += np.clip(((y[:, None] + 1) / 2 - p).mean(axis=0) / np.maximum((p * (1 - p)).mean(axis=0), 1e-9), -2, 2)
    return c


class _Adaptive:
    """Schedules ``adaptive`` for columns of weights, as `p4sgd.host.training.epochs` applies them."""

    def __init__(self, rates: FloatArray) -> None:
        self._schedules = [LearningRateSchedule("adaptive", rate, 0.5) for rate in rates]
        self._idle = [0] * rates.size
        self._base: list[tuple[float, FloatArray, int] | None] = [None] * rates.size
        self._epoch = 0

    def rates(self) -> FloatArray:
        return np.array([schedule.rate(1) for schedule in self._schedules])

    def judge(self, losses: FloatArray, weights: FloatArray) -> None:
        """Change rates, and the weights in place."""
        self._epoch += 1
        for column, (schedule, loss) in enumerate(zip(self._schedules, losses, strict=True)):
            base = self._base[column]
            progress = base is None or schedule.is_progress(loss, base[0], TrainingOptions().tolerance)
            if base is None or loss < base[0]:
                self._base[column] = base = (loss, weights[:, column].copy(), self._epoch)
            self._idle[column] = 0 if progress else self._idle[column] + 1
            if schedule.adapt(self._idle[column], self._epoch - base[2]):
                weights[:, column] = base[1]


def _steps_of_float(problem: Problem) -> Iterator[float]:
    """The lowest loss of mini-batch SGD after each epoch, at the best rate and schedule."""
    loss, (samples, features) = get_loss(problem.made.loss), problem.x.shape
    rates = np.concatenate([RATES, RATES])
    weights = np.zeros((features + 1, rates.size))
    x = np.column_stack([problem.x, np.ones(samples)])
    adaptive = _Adaptive(RATES)
    while True:
        rates[RATES.size :] = adaptive.rates()
        for first in range(0, samples, BATCH):
            part = x[first : first + BATCH]
            y = np.repeat(problem.y[first : first + BATCH, None], rates.size, axis=1)
            weights -= rates / BATCH * (part.T @ loss.residual(part @ weights, y))
        z = x @ weights
        z += _intercepts(z, problem.y, loss.name)
        losses = np.nan_to_num(loss.value(z, np.repeat(problem.y[:, None], rates.size, axis=1)).mean(axis=0), nan=1e9)
        adaptive.judge(losses[RATES.size :], weights[:, RATES.size :])
        yield float(losses.min())


def _steps_of_sklearn(problem: Problem) -> Iterator[float]:
    """The lowest loss of scikit-learn's SGD after each epoch, at the best rate and schedule."""
    loss, classes = get_loss(problem.made.loss), problem.made.loss == "logistic"
    make: Callable[..., SGDClassifier | SGDRegressor] = SGDClassifier if classes else SGDRegressor
    settings = {"loss": "log_loss" if classes else "squared_error", "penalty": None, "random_state": 0}
    models = [
        make(learning_rate=schedule, eta0=rate, **settings)
        for schedule in ("constant", "invscaling", "constant")
        for rate in RATES
    ]
    adaptive = _Adaptive(RATES)
    weights = np.zeros((problem.x.shape[1] + 1, RATES.size))
    while True:
        losses = []
        for model in models:
            model.partial_fit(problem.x, problem.y, **({"classes": [-1.0, 1.0]} if classes else {}))
            z = problem.x @ model.coef_.ravel() + model.intercept_
            losses.append(float(np.nan_to_num(loss.value(z, problem.y).mean(), nan=1e9)))
        own = models[2 * RATES.size :]
        for column, model in enumerate(own):
            weights[:, column] = [*model.coef_.ravel(), model.intercept_[0]]
        adaptive.judge(np.array(losses[2 * RATES.size :]), weights)
        for column, (model, rate) in enumerate(zip(own, adaptive.rates(), strict=True)):
            model.coef_, model.intercept_ = (
                weights[:-1, column].reshape(model.coef_.shape).copy(),
                weights[-1:, column].copy(),
            )
            model.eta0 = rate
        yield min(losses)


def follow(problem: Problem, steps: Iterator[float], epochs: int) -> Run:
    """Run a peer until the loss is within 0.1 % of the optimum."""
    run = Run()
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        while len(run.losses) < epochs and not run.done:
            run.losses.append(min(next(steps) / problem.optimum, *run.losses[-1:], math.inf))
    return run


RUNS = ("before", "default", "block")

PEERS = {"float": _steps_of_float, "sklearn": _steps_of_sklearn}


def options_of(run: str, problem: Problem, planes: int) -> dict[str, object]:
    """Options of one of `RUNS`."""
    if run == "before":
        return before(problem, planes)
    return {"precision": planes, "l2": 0.0} | ({"precondition": "block"} if run == "block" else {})


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__, planes=[1, 2, 4, 8], epochs=100)
    parser.add_argument("--set", nargs="+", choices=SETS, default=list(SETS))
    chosen, tables = parser.parse_args(), ([], [], [])
    many = f">{chosen.epochs}"
    for name, made in load_sets(chosen.set):
        problem = make_problem(made)
        samples, features = problem.x.shape
        shape = f"{name}, {samples:,} × {features}" + (" (separable)" if problem.separable else "")
        peers = [follow(problem, steps(problem), chosen.epochs) for steps in PEERS.values()]
        for planes in chosen.planes:
            runs = [emulate(problem, chosen.epochs, **options_of(run, problem, planes)) for run in RUNS]
            cells = (
                [" / ".join(str(run.epochs(close) or many) for close in CLOSE) for run in (*runs, *peers)],
                [f"{run.end - 1:.1%}" for run in runs],
                [f"{(run.epochs() or math.inf) * run.cycles * CLOCK_NS / 1e6:.3g}" for run in runs],
            )
            for table, own in zip(tables, cells, strict=True):
                table.append([shape, str(planes), *own])
    titles = (
        "epochs to 1 % / 0.1 % above the optimum",
        "loss of the model above the optimum",
        "ms on a U280 to 1 %",
    )
    for title, rows, names in zip(titles, tables, ((*RUNS, *PEERS), RUNS, RUNS), strict=True):
        show(title, ("data", "P", *names), rows)


if __name__ == "__main__":
    main()
