"""E7: processor time until the objective is within 1 % of its optimum, beside other solvers.

A solver gets growing budgets, epochs, iterations or tolerances, with each of its settings, until a fit is close enough.
That fit is repeated, and the least of three times counts: all threads, from arrays in memory to coefficients, with
scaling, and for ours with the losses of every epoch, and with the search for the rate unless one is given. Ours has
its default options, and the best of some, as the others. Each set has a process of its own in which no library may
use more than one thread.
"""

import contextlib
import functools
import itertools
import os
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Any

import numpy as np

from p4sgd.host.errors import UserError
from p4sgd.host.experiments.experiment import Cell, Chart, Finding, Source, Table, experiment
from p4sgd.host.experiments.peers import OURS, PEERS, TUNED, Peer, Problem, fit_p4sgd
from p4sgd.host.experiments.scaling import GPU, GPU_NOTE, PRECISION, SHAPES, config_for, mini_batch_us
from p4sgd.host.experiments.sets import LARGE, SPARSE, sets_of
from p4sgd.host.report.cycles import epoch_cycles
from p4sgd.host.training.dealing.units import deal_units
from p4sgd.host.training.options import TrainingOptions
from p4sgd.hw.spec.config import CLOCK_NS, WorkerConfig
from p4sgd.hw.spec.fixed import MAX_PRECISION

CLOSE = 1.01
"""Close enough to the optimum."""

_PATIENCE = 5.0
"""A solver is given up with a setting if a fit takes so many times ours, and at least half a second."""

_FEW = 1000
"""Samples of a first fit, which loads libraries and compiled code."""

_REPEATS = 2


@dataclass(frozen=True)
class Reached:
    """The quickest fit of a solver that came close enough: seconds of processor time, budget and setting."""

    seconds: float
    budget: float
    setting: Any


@dataclass(frozen=True)
class Measured:
    """What was found on a data set: by solver the fit that came close, ``None`` if none did; who is ``missing``."""

    name: str
    samples: int
    features: int
    reached: Mapping[str, Reached | None]
    missing: tuple[str, ...]

    @property
    def ours(self) -> Reached | None:
        return self.reached.get(OURS.name)

    @property
    def best(self) -> tuple[str, Reached] | None:
        """The quickest other solver."""
        found = self.reached.items()
        others = [(name, each) for name, each in found if each is not None and name not in (OURS.name, TUNED[0].name)]
        return min(others, key=lambda other: other[1].seconds, default=None)

    def ratio(self, name: str = OURS.name) -> float:
        """The time of ours, as `OURS` or `TUNED`, relative to that of the quickest other solver."""
        ours = self.reached.get(name)
        if ours is None or self.best is None:
            return float("inf") if self.best else 0.0
        return ours.seconds / self.best[1].seconds


def optimum(problem: Problem) -> float:
    """The least objective, by Newton's method if there are few columns, or else by L-BFGS."""
    solver, iterations = ("newton-cholesky", 100) if problem.features.shape[1] <= 1024 else ("lbfgs", 10_000)
    peer = next(each for each in PEERS if each.name == ("lbfgs" if solver == "lbfgs" else solver))
    return problem.objective(peer.fit(problem, problem.features, iterations, solver))


def reach(problem: Problem, peer: Peer, goal: float, limit: float) -> Reached | None:
    """The quickest fit whose objective is at most the goal; fits that take more than so many seconds are the last."""
    features, best = peer.prepare(problem) if peer.prepare else problem.features, None

    def timed(budget: float, setting: Any) -> tuple[float, float]:
        begin = time.process_time()
        fitted = peer.fit(problem, features, budget, setting)
        return time.process_time() - begin, problem.objective(fitted)

    for setting in peer.settings:
        for budget in peer.budgets:
            seconds, objective = timed(budget, setting)
            if objective <= goal and (best is None or seconds < best.seconds):
                best = Reached(seconds, budget, setting)
            if objective <= goal or seconds > (limit if best is None else best.seconds):
                break
    if best is None:
        return None
    again = [timed(best.budget, best.setting)[0] for _ in range(_REPEATS)]
    return replace(best, seconds=min(best.seconds, *again))


def measure(name: str, quick: bool) -> Measured:
    """All solvers on a data set; in a process of its own."""
    made = sets_of(quick)[name]()
    features = np.ascontiguousarray(made.features) if isinstance(made.features, np.ndarray) else made.features
    problem = Problem(name, features, made.labels.astype(np.int64))
    rows = np.random.default_rng(0).permutation(problem.labels.size)[:_FEW]
    few = Problem(name, problem.features[rows], problem.labels[rows])
    missing, reached, limit = list[str](), dict[str, Reached | None](), float("inf")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # most fits end before they have converged
        goal = CLOSE * optimum(problem)
        for peer in (OURS, *TUNED, *PEERS):
            if not peer.suits(problem):
                continue
            reason = peer.missing()
            if reason is not None:
                missing.append(reason)
                continue
            try:
                peer.fit(few, peer.prepare(few) if peer.prepare else few.features, peer.budgets[0], peer.settings[0])
                reached[peer.name] = reach(problem, peer, goal, limit)
            except (ValueError, RuntimeError, TypeError) as error:  # of another version of the package, say
                missing.append(f"{peer.name} fails on {name}: {error}")
            ours = reached.get(OURS.name) or reached.get(TUNED[0].name)
            limit = max(0.5, _PATIENCE * ours.seconds) if ours else 10.0
    samples, features = problem.features.shape
    return Measured(name, samples, features, reached, tuple(missing))


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Let processes that are started within use one thread in all libraries."""
    before = dict(os.environ)
    os.environ.update({f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMBA")})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@functools.cache
def _measured(name: str, quick: bool) -> Measured:
    with _one_thread(), ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            return pool.submit(measure, name, quick).result()
        except BrokenProcessPool:
            return Measured(name, 0, 0, {}, (f"{name} is left out: a solver has ended the process",))


def measure_all(quick: bool, *, sparse: bool = False) -> list[Measured]:
    """All data sets, or the sparse ones, each measured once; where we are slowest first."""
    found = [_measured(name, quick) for name in sets_of(quick) if not sparse or name in SPARSE]
    return sorted(found, key=lambda each: -each.ratio())


def board_seconds(samples: int, features: int, options: TrainingOptions) -> float | None:
    """Predicted time of an epoch on one U280 that reads all lines; ``None`` if it cannot hold the columns."""
    config = WorkerConfig.u280()
    try:
        units = [shard.units.size for shard in deal_units(features, options, [config])]
    except UserError:
        return None
    return sum(epoch_cycles(options, [config], units, samples, features).values()) * CLOCK_NS * 1e-9


_COLUMNS = ("data", "solver", "CPU s", "times the quickest other", "budget", "setting", "source")


def _rows(measured: Measured) -> Iterator[list[Cell]]:
    title = f"{measured.name}, {measured.samples:,} × {measured.features:,}"
    quickest = measured.best[1].seconds if measured.best else float("nan")
    for name, each in measured.reached.items():
        if each is None:
            yield [title, name, None, None, "not reached", None, Source.MEASURED]
            continue
        setting = None if each.setting in (None, {}, name) else str(each.setting)
        ratio = round(each.seconds / quickest, 2)
        yield [title, name, round(each.seconds, 4), ratio, f"{each.budget:g}", setting, Source.MEASURED]
    epoch = board_seconds(measured.samples, measured.features, TrainingOptions())
    if epoch is not None and measured.ours is not None:
        seconds = epoch * measured.ours.budget
        row: list[Cell] = [title, "p4sgd on one U280", round(seconds, 5), round(seconds / quickest, 3)]
        yield [*row, f"{measured.ours.budget:g}", "without the search", Source.MODELLED]


def comparison(found: Sequence[Measured]) -> Finding:
    """A table of all solvers on some data sets, and where others are quicker."""
    note = (
        "CPU s is empty where a solver does not come close within 5 times our time and half a second. The budget is "
        "epochs, iterations, or the tolerance of liblinear."
    )
    chart = Chart("data", "CPU s", "solver", log_y=True)
    table = Table(
        f"Processor time to {CLOSE - 1:.0%} of the optimum",
        _COLUMNS,
        [*itertools.chain(*map(_rows, found))],
        [chart],
        note,
    )
    losses = []
    for each in found:
        if each.best and each.ratio() > 1:
            behind = f"takes {each.ratio():.2g} times the processor time of {each.best[0]}"
            if each.ours is None:
                behind = f"does not come within {CLOSE - 1:.0%} of the optimum by default, while {each.best[0]} does"
            tuned = each.ratio(TUNED[0].name)
            rest = f"; tuned it takes {tuned:.2g} times the time of {each.best[0]}" if np.isfinite(tuned) else ""
            losses.append(f"{each.name}: p4sgd {behind}{rest}.")
    sentences = []
    for name, what in ((OURS.name, "By default"), (TUNED[0].name, "With options as well chosen as theirs")):
        ratios = [each.ratio(name) for each in found if name in each.reached]
        sentences.append(
            f"{what} p4sgd is at least as quick as every other solver on {sum(ratio <= 1 for ratio in ratios)} of "
            f"{len(found)} data sets, and takes at most twice as long on {sum(ratio <= 2 for ratio in ratios)}."
        )
    return Finding([table], [*sentences, *sorted({text for each in found for text in each.missing})], losses)


def fewest_epochs(problem: Problem, goal: float, *, batch: int, planes: int) -> int | None:
    """Epochs until the objective is at most the goal, with the best options of `TUNED`; ``None`` if 40 are too few."""
    peer, most = next(each for each in TUNED if each.suits(problem)), 41
    fit = functools.partial(fit_p4sgd, problem.features, problem.labels, problem.l2, batch=batch, precision=planes)
    for setting in peer.settings:
        few = (epochs for epochs in range(1, most) if problem.objective(fit(epochs, setting)) <= goal)
        most = next(few, most)
    return most if most <= 40 else None


def beside_gpu() -> Finding:
    """Boards beside one GPU: time to 1 % of the optimum, epochs times the time of one."""
    name, (samples, features) = "rcv1", SHAPES["rcv1"]
    made, config = LARGE[name](), config_for(features)
    problem = Problem(name, made.features, made.labels.astype(np.int64))
    goal, rows, least = CLOSE * optimum(problem), list[list[Cell]](), dict[str, float]()
    for batch in (size for data, size in GPU if data == name):
        ours, floats = (fewest_epochs(problem, goal, batch=batch, planes=each) for each in (PRECISION, MAX_PRECISION))
        times = GPU[name, batch]
        devices = {
            "8 U280": (ours, mini_batch_us(config, features, 8, batch)[0]),
            "1 U280": (ours, mini_batch_us(config, features, 1, batch)[0]),
            "CUDA graph on one H200": (floats, min(times[:2])),
            "fastest program on one H200": (floats, min(filter(None, times))),
        }
        for device, (epochs, us) in devices.items():
            ms = epochs and epochs * -(-samples // batch) * us / 1000
            rows.append([name, batch, device, epochs, us, ms, Source.MODELLED])
            least[device] = min(least.get(device, float("inf")), ms or float("inf"))
    columns = ("data", "B", "device", "epochs", "mini-batch, µs", "ms to 1 %", "source")
    note = (
        f"Epochs are those of the emulator with the best of some options: with {PRECISION} planes for boards, with "
        f"{MAX_PRECISION} for the GPU, which could train with floats in the same way. "
    )
    chart = Chart("B", "ms to 1 %", "device", log_y=True)
    table = Table("Convergence beside one GPU", columns, rows, [chart], note + GPU_NOTE)
    others = [f"{least[each] / least['8 U280']:.1f} times as fast as the {each}" for each in list(least)[2:]]
    claim = (
        "Claim of the paper's abstract, convergence up to 6.5 times as fast as the best GPU system: by epochs times "
        f"the time of one, each with the mini-batches that suit it best, 8 boards come within {CLOSE - 1:.0%} of the "
        f"optimum of {name} {', '.join(others)} and {least['1 U280'] / least['8 U280']:.1f} times as fast as one board."
    )
    return Finding([table], [claim])


@experiment(
    "E7",
    "Time to 1 % of the optimum",
    "How much processor time does P4SGD take to come within 1 % of the optimum, beside other solvers?",
)
def time_to_optimum(quick: bool) -> Finding:
    """The finding of E7."""
    found = comparison(measure_all(quick))
    if quick:
        return found
    claim = beside_gpu()
    return replace(found, tables=[*found.tables, *claim.tables], sentences=[*found.sentences, *claim.sentences])
