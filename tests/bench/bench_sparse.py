"""Training on sparse data beside SGD of scikit-learn and Vowpal Wabbit: epochs, memory, and the way to the same loss.

    PYTHONPATH=tests python tests/bench/bench_sparse.py [--data rcv1 real-sim wide] [--epochs 20]

The data are made: ``rcv1`` and ``real-sim`` have the shapes of those sets, ``wide`` has 15 of 1,000,000 features in
each of 100,000 samples. They are a CSR matrix of float64 in memory. All train with the same penalties of the same
coefficients. scikit-learn gets the best of five rates, by the objective after all epochs; Vowpal Wabbit has a good
default; P4SGD searches for its own within the time that is measured. All take turns in one process; the table has
medians over the turns.

- CPU time is that of all threads, and a thread that waits for another is busy: with several threads, compare the time
  that passed.
- An epoch of P4SGD is all from one report of an epoch to the next, losses included, and in the second column the run of
  the device alone. An epoch of the others is what fits of one epoch and of all differ by, without losses.
- Memory is the peak of a process of its own that reads the data from an NPZ file and trains, beyond what it had after
  the same with a few samples; and that in relation to the CSR matrix. Vowpal Wabbit keeps its data in a file. The last
  row has the same of training from a folder that `p4sgd data prepare` made, with the first batch; and then without the
  pages of its files, which the system takes back when it needs them. In P4SGD an entry takes 18 bytes, 12 of them in
  the CSR matrix, a column 16, and a sample some 60.
- The objective is the mean logistic loss with the penalties, computed here from the coefficients. The last columns have
  the epochs and the time of the shortest fit whose objective is at most 1 % above that of P4SGD with the first batch
  after all epochs, of fits with 1, 2, 5, 10, … epochs; the search of P4SGD and its packing count.
"""

import ctypes
import dataclasses
import gc
import itertools
import math
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from support.data_files import make_dataset
from support.peers import PEERS, Settings, describe_machine, limit_threads
from support.script import CONSOLE, Cost, alone, parser_of, show, time_training

from p4sgd.host.data import Dataset, read_dataset
from p4sgd.host.data.read import open_source
from p4sgd.host.data.synth import write_dataset
from p4sgd.host.streaming.folder import PreparedFolder, open_prepared
from p4sgd.host.streaming.make import make_folder
from p4sgd.host.training import TrainingOptions
from p4sgd.hw.spec.config import WorkerConfig

DATA: Mapping[str, Callable[[], Dataset]] = {
    "rcv1": lambda: make_dataset("rcv1"),
    "real-sim": lambda: make_dataset("real-sim"),
    "wide": lambda: make_dataset("zipf", samples=100_000, features=1_000_000, nonzeros=15),
}
"""Data sets by name."""

PENALTIES = {"none": (0.0, 0.0), "l2": (1e-5, 0.0), "l1": (0.0, 1e-6)}
"""Strengths of the L2 and L1 penalties by name."""

_PEERS = ("scikit-learn", "vowpal-wabbit")

_RATES = (0.25, 1.0, 4.0, 16.0, 64.0)
"""Learning rates to choose from, times the mean squared norm of a sample."""

_CLOSE = 1.01
"""An objective counts as the same up to this ratio."""

_PREPARED = "p4sgd, prepared"
"""The row for training from a folder of prepared data."""

_FEW = 64
"""Samples that load and compile everything before memory is measured."""

FloatArray = npt.NDArray[np.floating]

_COLUMNS = ("ms an epoch", "ms a run", "MiB (of the CSR)", "objective", "epochs to p4sgd's", "s to it")


class Contender(ABC):
    """P4SGD with a batch, or a peer, and its data.

    Attributes
    ----------
    epochs
        Costs of epochs but the first.
    runs
        Costs of the runs of the device in them.
    fits, objectives
        Costs and the objective of fits, by the number of epochs.
    """

    def __init__(self) -> None:
        self.epochs: list[Cost] = []
        self.runs: list[Cost] = []
        self.fits: dict[int, list[Cost]] = {}
        self.objectives: dict[int, float] = {}

    @abstractmethod
    def fit(self, epochs: int) -> None:
        """Train for so many epochs, beginning anew."""

    @abstractmethod
    def coefficients(self) -> tuple[FloatArray, float]:
        """Those of the features, and the intercept; after `fit`."""

    def turn(self, counts: Sequence[int]) -> None:
        """Fit with each number of epochs."""
        for count in counts:
            begin = Cost.now()
            self.fit(count)
            self.fits.setdefault(count, []).append(Cost.now().since(begin))


class Emulator(Contender):
    """P4SGD, which reports its epochs."""

    def __init__(self, data: Dataset | PreparedFolder, settings: Settings) -> None:
        super().__init__()
        self._data, self._settings = data, settings

    def fit(self, epochs: int) -> None:
        settings = self._settings
        options = TrainingOptions(epochs=epochs, **_options(settings))
        self._model, runs, whole = time_training(self._data, options, WorkerConfig.sparse_worker())
        self.runs += runs
        self.epochs += whole

    def coefficients(self) -> tuple[FloatArray, float]:
        return self._model.coefficients, self._model.intercept


def _options(settings: Settings) -> dict[str, Any]:
    return {"batch": settings.batch, "l2": settings.l2, "l1": settings.l1}


class Other(Contender):
    """A peer of `support.peers`."""

    def __init__(self, name: str, data: Dataset, settings: Settings) -> None:
        super().__init__()
        self._peer = PEERS[name](data.features, data.labels, settings)

    def fit(self, epochs: int) -> None:
        self._peer.fit(epochs)

    def coefficients(self) -> tuple[FloatArray, float]:
        return self._peer.coefficients()

    def turn(self, counts: Sequence[int]) -> None:
        super().turn(counts)
        self.epochs.append(self.fits[counts[-1]][-1].since(self.fits[counts[0]][-1], counts[-1] - counts[0]))


def contender(name: str, data: Dataset, settings: Settings) -> Contender:
    """P4SGD, if that is how the name begins, or a peer."""
    return Emulator(data, settings) if name.startswith("p4sgd") else Other(name, data, settings)


def objective(data: Dataset, trained: Contender, settings: Settings) -> float:
    """Mean logistic loss with penalties, infinite if training has diverged."""
    coefficients, intercept = trained.coefficients()
    z = data.features[:, : coefficients.size] @ coefficients + intercept
    value = float(np.logaddexp(0, -data.labels * z).mean())
    value += settings.l2 / 2 * float((coefficients**2).sum()) + settings.l1 * float(np.abs(coefficients).sum())
    return value if math.isfinite(value) else math.inf


def with_best_rate(name: str, data: Dataset, settings: Settings, epochs: int) -> Settings:
    """The settings with the rate that has the lowest objective after all epochs."""
    found = {}
    for rate in _RATES if PEERS[name].has_rate else _RATES[:1]:
        choice = dataclasses.replace(settings, rate=rate)
        peer = Other(name, data, choice)
        peer.fit(epochs)
        found[objective(data, peer, choice)] = choice
    return found[min(found)]


def compare(path: Path, settings: Settings, chosen: Any) -> dict[str, list[str]]:
    """Cells of the table but memory, by name; in a process of its own."""
    data = read_dataset(path)
    choices = {f"p4sgd B={batch}": dataclasses.replace(settings, batch=batch) for batch in chosen.batch}
    choices |= {name: with_best_rate(name, data, settings, chosen.epochs) for name in chosen.peers}
    everyone = {name: contender(name, data, choice) for name, choice in choices.items()}
    counts = [*(count for count in (1, 2, 5, 10, 20, 50, 100) if count < chosen.epochs), chosen.epochs]
    for name, each in everyone.items():
        for count in counts:  # which also loads and compiles everything
            each.fit(count)
            each.objectives[count] = objective(data, each, choices[name])
        each.epochs.clear()
        each.runs.clear()
    for _ in range(chosen.turns):
        for each in everyone.values():
            each.turn(counts)
    goal = _CLOSE * next(iter(everyone.values())).objectives[chosen.epochs]
    return {name: _cells(each, goal) for name, each in everyone.items()}


def _cells(each: Contender, goal: float) -> list[str]:
    def milliseconds(costs: Sequence[Cost]) -> str:
        cost = Cost.median(costs)
        return f"{1000 * cost.cpu:,.1f} ({1000 * cost.wall:,.1f})"

    cells = [milliseconds(each.epochs), milliseconds(each.runs) if each.runs else ""]
    cells.append(f"{each.objectives[max(each.objectives)]:.4f}")
    reached = min((count for count, value in each.objectives.items() if value <= goal), default=None)
    if reached is None:
        return [*cells, "-", "-"]
    cost = Cost.median(each.fits[reached])
    return [*cells, str(reached), f"{cost.cpu:.2f} ({cost.wall:.2f})"]


def memory(name: str, path: Path, few: Path, settings: Settings) -> str:
    """The cell of peak memory; in a process of its own."""
    if name == "vowpal-wabbit":
        return ""

    def train(path: Path) -> None:
        if name == _PREPARED:
            Emulator(open_prepared(path.with_suffix("")), settings).fit(2)
        else:
            contender(name, read_dataset(path), settings).fit(2)

    train(few)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # of the GNU C library
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    begin, own, trained = _status("VmRSS"), [_status("RssAnon")], threading.Event()

    def watch() -> None:  # there is no peak of it
        while not trained.wait(0.002):
            own.append(_status("RssAnon"))

    watching = threading.Thread(target=watch)
    watching.start()
    train(path)
    trained.set()
    watching.join()
    peaks = [_status("VmHWM") - begin, max(own) - own[0]][: 1 + (name == _PREPARED)]
    matrix = read_dataset(path).features
    whole = sum(part.nbytes for part in (matrix.data, matrix.indices, matrix.indptr)) / 2**20
    return ", ".join(f"{peak:,.0f} ({peak / whole:.2f})" for peak in peaks)


def _status(key: str) -> float:
    """An entry of the process's status, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) / 1024


def prepare(path: Path, settings: Settings) -> None:
    """Make a folder of prepared data beside the file; in a process of its own."""
    make_folder(open_source(str(path)), TrainingOptions(**_options(settings)), None, path.with_suffix(""))


def main() -> None:
    """Print one table for each data set, penalty and number of threads."""
    parser = parser_of(__doc__, batch=[16, 64, 1024], threads=[1, 2], epochs=20, turns=3)
    for name, choices in (("data", DATA), ("penalty", PENALTIES), ("peers", _PEERS)):
        parser.add_argument(f"--{name}", nargs="*", choices=choices, default=list(choices))
    chosen, left_out = parser.parse_args(), []
    for name in list(chosen.peers):
        try:
            PEERS[name].check()
        except ImportError as error:
            left_out.append(f"{name} is left out: {error}")
            chosen.peers.remove(name)

    with tempfile.TemporaryDirectory() as folder:
        for name, threads in itertools.product(chosen.data, chosen.threads):
            limit_threads(threads)
            path, few = Path(folder, f"{name}.npz"), Path(folder, f"{name}-few.npz")
            if not path.exists():
                made = DATA[name]()
                write_dataset(made, path)
                write_dataset(Dataset(made.features[:_FEW], made.labels[:_FEW], name), few)
            CONSOLE.print(describe_machine(threads), *left_out, sep="\n", highlight=False)
            for penalty in chosen.penalty:
                settings = Settings(threads=threads, l2=PENALTIES[penalty][0], l1=PENALTIES[penalty][1])
                rows = []
                for row, cells in alone(compare, path, settings, chosen).items():
                    batch = int(row.partition("=")[2] or 1)
                    peak = alone(memory, row, path, few, dataclasses.replace(settings, batch=batch))
                    rows.append([row, *cells[:2], peak, *cells[2:]])
                settings = dataclasses.replace(settings, batch=chosen.batch[0])
                for source in (path, few):
                    alone(prepare, source, settings)
                rows.append([_PREPARED, "", "", alone(memory, _PREPARED, path, few, settings)])
                title = f"{name}, penalty {penalty}, {threads} threads: CPU time (time that passed)"
                show(title, ("", *_COLUMNS), rows)


if __name__ == "__main__":
    main()
