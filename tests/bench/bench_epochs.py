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

Few planes have an optimum of their own, which may be worse. The second table has the loss of the model file relative to
the optimum, and the epochs until the loss on rounded features is within 1 % of the optimum of these features. The third
has the predicted time on a U280 until the loss is within 1 %: cycles of `p4sgd.hw.spec.timing` for one worker at
250 MHz, with 592 ns of network (hw/net/README.md), without the search for the learning rate, which runs on the host.

diamonds and fair need files of other packages, see `support.sets`. A set takes a minute or two.
"""

import argparse
import math
import statistics
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import scipy.optimize
from rich.console import Console
from rich.table import Table
from scipy.special import expit
from sklearn.linear_model import SGDClassifier, SGDRegressor
from support.events import events
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
from p4sgd.host.training.rate import automatic_rate, largest_rate
from p4sgd.host.training.schedule import LearningRateSchedule
from p4sgd.hw.spec.config import CLOCK_NS, WorkerConfig
from p4sgd.hw.spec.timing import mini_batch_cycles

FloatArray = npt.NDArray[np.float64]

SETS = {name: REAL[name] for name in ("breast_cancer", "digits:parity", "diabetes", "diamonds", "fair")} | dict(MADE)

CONFIG = WorkerConfig.u280()

BATCH = TrainingOptions().batch

CLOSE = (1.01, 1.001)
"""Losses relative to the optimum."""

NETWORK_NS = 592.0

SEPARABLE = 0.05
"""Classes count as separable if the optimum is below this part of the loss of a constant model."""

RATES = 2.0 ** np.arange(-14, 5)
"""Learning rates of the peers, of a mean gradient on standardised features."""


@dataclass
class Run:
    """The course of a run: relative losses of the best model after each epoch, and the cycles of an epoch."""

    losses: list[float] = field(default_factory=list)
    own: list[float] = field(default_factory=list)
    """Losses on rounded features relative to their optimum."""
    cycles: float = math.nan
    end: float = math.nan
    """Relative loss of the model file, with an intercept that is fitted to the samples without rounding."""

    def epochs(self, close: float = CLOSE[0]) -> int | None:
        """Epochs to ``close`` times the optimum; ``None`` if there were too few."""
        return _first(self.losses, close)

    @property
    def done(self) -> bool:
        """Whether nothing is left to be seen."""
        return bool(self.losses) and self.losses[-1] <= CLOSE[-1] and (not self.own or min(self.own) <= CLOSE[0])


def _first(losses: Sequence[float], close: float) -> int | None:
    return next((epoch for epoch, loss in enumerate(losses, 1) if loss <= close), None)


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


def rounded_optimum(problem: Problem, prepared: Prepared) -> float:
    """The optimum of the features as the hardware reads them."""
    [image], form = prepared.images, prepared.features
    lines = image.layout.unpack_lines(np.stack(image.port_lines), form.precision, form.signed)
    q = np.asarray(image.layout.unpad(lines)[: prepared.samples, : prepared.space.count], float)
    return optimum(_standardise(q), problem.y, problem.made.loss)[0]


def before(problem: Problem, planes: int) -> dict[str, object]:
    """Options that train as before the scaling ``standard``, the search for a rate and the schedule ``adaptive``."""
    options: dict[str, object] = {"precision": planes, "scaling": "minmax", "schedule": "constant"}
    _, chosen, prepared = prepare_run(problem, **options)
    rate = automatic_rate(get_loss(chosen.loss), prepared.mean_square)
    return options | {"learning_rate": min(rate, largest_rate(BATCH, prepared.features))}


def emulate(problem: Problem, epochs: int, **options: object) -> Run:
    """Train on the emulator until the loss is within 0.1 % of the optimum."""
    data, chosen, prepared = prepare_run(problem, epochs=epochs, **options)
    own = rounded_optimum(problem, prepared)
    [image], run, best = prepared.images, Run(), [math.inf, math.inf]
    network = round(NETWORK_NS / CLOCK_NS)
    cycles = mini_batch_cycles(CONFIG, BATCH, image.layout.chunks, prepared.features.precision, network)
    run.cycles = -(-prepared.samples // BATCH) * cycles

    def look(record: EpochRecord) -> None:
        metrics = record.metrics
        best[:] = min(best, [metrics["train_loss"], metrics["test_loss"]])
        run.losses.append(best[1] / problem.optimum)
        run.own.append(metrics["train_loss"] / own)
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
    return {"precision": planes} | ({"precondition": "block"} if run == "block" else {})


Rows = dict[tuple[str, int], dict[str, Run]]
"""By data set and planes: runs by name. The peers of a set are the same for all planes."""


def show(rows: Rows, shapes: dict[str, str], epochs: int, console: Console) -> None:
    """Print the tables."""
    many = f">{epochs}"

    def table(title: str, names: Sequence[str], cell: Callable[[Run], str]) -> None:
        result = Table(title=title)
        result.add_column("data")
        for name in ("P", *names):
            result.add_column(name, justify="right")
        for (name, planes), runs in rows.items():
            result.add_row(shapes[name], str(planes), *(cell(runs[each]) for each in names))
        console.print(result)

    def own(run: Run) -> str:
        lowest = run.end - 1
        return f"{lowest:.1%}, {_first(run.own, CLOSE[0]) or many}" if lowest > 0.001 else "reached"

    def time(run: Run) -> str:
        reached = run.epochs()
        return (
            f"{reached * run.cycles * CLOCK_NS / 1e6:.3g}"
            if reached
            else f">{epochs * run.cycles * CLOCK_NS / 1e6:.3g}"
        )

    def both(run: Run) -> str:
        return " / ".join(str(run.epochs(close) or many) for close in CLOSE)

    table("epochs to 1 % / 0.1 % above the optimum", (*RUNS, *PEERS), both)
    table("loss of the model above the optimum, epochs to 1 % above that of rounded features", RUNS, own)
    table("ms on a U280 to 1 %", RUNS, time)


def summarise(rows: Rows, epochs: int) -> Iterator[str]:
    """Compare runs: medians, and where the default is worse."""
    for run in RUNS[1:]:
        factors, worse = [], []
        for (name, planes), runs in rows.items():
            old, new = runs["before"], runs[run]
            goal = max(old.losses[-1], 1.0) * CLOSE[0]
            needed = _first(new.losses, goal)
            factor = (_first(old.losses, goal) or epochs) / needed if needed else 0.0
            factors.append(factor)
            if factor < 1:
                worse.append(
                    f"{name} at {planes}" + ("" if needed else f" (+{new.losses[-1] / old.losses[-1] - 1:.1%})")
                )
        yield (
            f"{run}: to 1 % above the lowest loss of before, {statistics.median(factors):.3g} times fewer epochs in "
            f"the median of {len(factors)} cases; more on {', '.join(worse) or 'none'}"
        )
        reached = [runs for runs in rows.values() if runs[run].epochs()]
        if reached:
            ratios = [(runs["before"].epochs() or epochs) / (runs[run].epochs() or epochs) for runs in reached]
            also = sum(runs["before"].epochs() is not None for runs in reached)
            yield (
                f"{run}: within 1 % in {len(ratios)} cases, after {statistics.median(ratios):.3g} times fewer epochs "
                f"than before in the median, at least (before got there in {also} of them)"
            )
        for peer in PEERS:
            best = {
                name: (runs[run].epochs() or math.inf) / (runs[peer].epochs() or epochs)
                for (name, planes), runs in rows.items()
                if planes == 8
            }
            if best:
                each = ", ".join(f"{name} {ratio:.3g}" for name, ratio in best.items())
                median = statistics.median(best.values())
                yield f"{run} at 8 planes: epochs relative to {peer}, median {median:.3g}: {each}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--planes", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--epochs", type=int, default=100)
    chosen = parser.parse_args()
    console, rows, shapes = Console(width=120), Rows(), {}
    for name, made in load_sets(chosen.set):
        problem = make_problem(made)
        samples, features = problem.x.shape
        shapes[name] = f"{name}, {samples:,} × {features}" + (" (separable)" if problem.separable else "")
        peers = {peer: follow(problem, steps(problem), chosen.epochs) for peer, steps in PEERS.items()}
        for planes in chosen.planes:
            runs = {run: emulate(problem, chosen.epochs, **options_of(run, problem, planes)) for run in RUNS}
            rows[name, planes] = runs | peers
    show(rows, shapes, chosen.epochs, console)
    for line in summarise(rows, chosen.epochs):
        console.print(line, highlight=False)


if __name__ == "__main__":
    main()
