"""Training on sparse data beside SGD of scikit-learn and Vowpal Wabbit: epochs and memory.

    PYTHONPATH=tests python tests/bench/bench_sparse.py [--data rcv1 real-sim wide] [--epochs 20]

The data are made: ``rcv1`` and ``real-sim`` have the shapes of those sets, ``wide`` has 15 of 1,000,000 features in
each of 100,000 samples. They are a CSR matrix of float64 in memory. All train with the same penalties of the same
coefficients. All take turns in one process; the table has medians over the turns. bench_train.py has the way to the
same loss.

- CPU time is that of all threads, and a thread that waits for another is busy: with several threads, compare the time
  that passed.
- An epoch of P4SGD is all from one report of an epoch to the next, losses included, and in the second column the run of
  the device alone. An epoch of the others is what fits of one epoch and of all differ by, without losses.
- Memory is the peak of a process of its own that reads the data from an NPZ file and trains, beyond what it had after
  the same with a few samples; and that in relation to the CSR matrix. Vowpal Wabbit keeps its data in a file. The last
  row has the same of training from a folder that `p4sgd data prepare` made, with the first batch; and then without the
  pages of its files, which the system takes back when it needs them. In P4SGD an entry takes 18 bytes, 12 of them in
  the CSR matrix, a column 16, and a sample some 60.
"""

import ctypes
import dataclasses
import gc
import itertools
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

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

_PREPARED = "p4sgd, prepared"
"""The row for training from a folder of prepared data."""

_FEW = 64
"""Samples that load and compile everything before memory is measured."""

_COLUMNS = ("ms an epoch", "ms a run", "MiB (of the CSR)")


class Emulator:
    """P4SGD with a batch, and its data: costs of epochs but the first, and of the runs of the device in them."""

    def __init__(self, data: Dataset | PreparedFolder, settings: Settings) -> None:
        self.epochs: list[Cost] = []
        self.runs: list[Cost] = []
        self._data, self._settings = data, settings

    def fit(self, epochs: int) -> None:
        """Train for so many epochs, beginning anew."""
        options = TrainingOptions(epochs=epochs, **_options(self._settings))
        _, runs, whole = time_training(self._data, options, WorkerConfig.sparse_worker())
        self.runs += runs
        self.epochs += whole

    turn = fit


def _options(settings: Settings) -> dict[str, Any]:
    return {"batch": settings.batch, "l2": settings.l2, "l1": settings.l1}


class Other:
    """A peer of `support.peers`: an epoch is what fits of one epoch and of all differ by."""

    def __init__(self, name: str, data: Dataset, settings: Settings) -> None:
        self.epochs: list[Cost] = []
        self.runs: list[Cost] = []
        self.fit = PEERS[name](data.features, data.labels, settings).fit

    def turn(self, epochs: int) -> None:
        """Fit for one epoch, and for so many."""
        times = []
        for count in (1, epochs):
            begin = Cost.now()
            self.fit(count)
            times.append(Cost.now().since(begin))
        self.epochs.append(times[1].since(times[0], epochs - 1))


def contender(name: str, data: Dataset, settings: Settings) -> Emulator | Other:
    """P4SGD, if that is how the name begins, or a peer."""
    return Emulator(data, settings) if name.startswith("p4sgd") else Other(name, data, settings)


def compare(path: Path, settings: Settings, chosen: Any) -> dict[str, list[str]]:
    """Cells of the table but memory, by name; in a process of its own."""
    data = read_dataset(path)
    everyone = {
        f"p4sgd B={batch}": Emulator(data, dataclasses.replace(settings, batch=batch)) for batch in chosen.batch
    }
    everyone |= {name: Other(name, data, settings) for name in chosen.peers}
    for each in everyone.values():
        each.fit(2)  # which also loads and compiles everything
        each.epochs.clear()
        each.runs.clear()
    for _ in range(chosen.turns):
        for each in everyone.values():
            each.turn(chosen.epochs)

    def milliseconds(costs: Sequence[Cost]) -> str:
        cost = Cost.median(costs)
        return f"{1000 * cost.cpu:,.1f} ({1000 * cost.wall:,.1f})"

    return {
        name: [milliseconds(each.epochs), milliseconds(each.runs) if each.runs else ""]
        for name, each in everyone.items()
    }


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
                    rows.append([row, *cells, peak])
                settings = dataclasses.replace(settings, batch=chosen.batch[0])
                for source in (path, few):
                    alone(prepare, source, settings)
                rows.append([_PREPARED, "", "", alone(memory, _PREPARED, path, few, settings)])
                title = f"{name}, penalty {penalty}, {threads} threads: CPU time (time that passed)"
                show(title, ("", *_COLUMNS), rows)


if __name__ == "__main__":
    main()
