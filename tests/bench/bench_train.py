"""From a file to a model: the whole command ``p4sgd train FILE`` beside scripts that do the same with other packages.

    PYTHONPATH=tests python tests/bench/bench_train.py [--data breast_cancer gisette dense rcv1] [--epochs 10]

Every job is a process of its own: it starts Python, reads the file, scales, trains for as many epochs, and writes
coefficients. P4SGD has its default options, so it searches for a learning rate and measures the model after every
epoch. The others do neither (`support.peers`): those without a good default rate get the best of five, by the loss
after all epochs, and the search is not counted. The jobs take turns; the table has medians of CPU time, which other
programs disturb little, and of the time that passed, and the most memory that a process held.

The loss is the mean logistic loss of the training set, computed here from the coefficients in the same way for all.
The last columns have the epochs and the CPU time of the shortest job whose loss is at most 1 % above that of P4SGD
after all epochs, of jobs with 1, 2, 5, 10, … epochs.

The data are made: ``gisette`` has that set's shape with 13 % of the values, ``rcv1`` has that one's, both as LIBSVM;
``dense`` is 20,000 × 4,096 in float32, and ``breast_cancer`` the real one, both as NPZ.
"""

import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from support.data_files import make_dataset
from support.peers import PEERS, describe_machine, limit_threads, read_file
from support.script import CONSOLE, alone, parser_of, show

from p4sgd.host.data import Dataset, read_dataset
from p4sgd.host.data.synth import write_dataset
from p4sgd.host.training.model_file import is_model_file, load_model

_RATES = (0.25, 1.0, 4.0, 16.0, 64.0)
"""Learning rates to choose from, times the mean squared norm of a sample."""

_CLOSE = 1.01
"""A loss counts as the same up to this ratio."""

_LAUNCH = """
import json, os, sys, time
begin = time.perf_counter()
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, used = os.wait4(pid, 0)
wall = time.perf_counter() - begin
print()
print(json.dumps([os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, wall, used.ru_maxrss / 1024]))
"""
"""Runs a command and reports what it used. A small program does that, because on Linux the peak memory of a process
begins with what the one that started it holds."""

_P4SGD = "from p4sgd.host.cli import main; main()"


def _gisette() -> Dataset:
    """Whole numbers from 1 to 999, and 87 % zeros, as in the data of the NIPS 2003 challenge."""
    made = make_dataset("gisette")
    values = np.asarray(made.features)
    floor, most = np.quantile(values[:200], 0.87), values.max()
    return Dataset(np.ceil(np.maximum(values - floor, 0) * (999 / (most - floor))), made.labels, "gisette")


def _dense() -> Dataset:
    """Uniform features, and the labels of a hidden plane with some noise."""
    rng = np.random.default_rng(0)
    values = rng.random((20_000, 4096), np.float32)
    score = (values - 0.5) @ rng.normal(size=4096).astype(np.float32)
    score += rng.normal(size=score.size) * score.std() / 2
    return Dataset(values, np.where(score > 0, 1.0, -1.0), "dense")


def _breast_cancer() -> Dataset:
    data = read_dataset("breast_cancer")
    return Dataset(data.features, 2 * data.labels - 1, data.name)


DATA: Mapping[str, tuple[str, Callable[[], Dataset]]] = {
    "breast_cancer": ("npz", _breast_cancer),
    "gisette": ("libsvm", _gisette),
    "dense": ("npz", _dense),
    "rcv1": ("libsvm", lambda: make_dataset("rcv1")),
}
"""Data sets by name: the format of the file, and how to make it."""


def make_file(name: str, path: Path) -> None:
    """Write a data set, unless it is there."""
    if not path.exists():
        write_dataset(DATA[name][1](), path)


def loss_of(path: Path, model: Path) -> float:
    """Mean logistic loss of a model on a file, infinite if training has diverged."""
    features, labels = read_file(path)
    if is_model_file(model):
        loaded = load_model(model)
        coefficients, intercept = loaded.coefficients, loaded.intercept
    else:
        with np.load(model) as arrays:
            coefficients, intercept = arrays["coefficients"], arrays["intercept"]
    z = features[:, : coefficients.size] @ coefficients + intercept
    loss = float(np.logaddexp(0, -labels * z).mean())
    return loss if math.isfinite(loss) else math.inf


@dataclass(frozen=True)
class Used:
    """What a job used: seconds of CPU time, seconds that passed, MiB at most."""

    cpu: float
    wall: float
    memory: float


class JobError(Exception):
    """A job failed; the last line of its messages."""


class Contender:
    """The jobs of P4SGD or of a peer on a file."""

    def __init__(self, name: str, path: Path, chosen: Any) -> None:
        self.name = name
        self._path, self._chosen = path, chosen
        self._rate = 1.0
        self.used: dict[int, list[Used]] = {}
        """By the number of epochs."""
        self.loss: dict[int, float] = {}

    def choose_rate(self) -> None:
        """Find the rate with the lowest loss after all epochs."""
        if self.name == "p4sgd" or not PEERS[self.name].has_rate:
            return
        losses = {}
        for self._rate in _RATES:
            self.run(self._chosen.epochs)
            losses[self._rate] = self.loss.pop(self._chosen.epochs)
        self.used.clear()
        self._rate = min(losses, key=losses.__getitem__)

    def run(self, epochs: int) -> None:
        """Do a job; JobError if it fails."""
        chosen, out = self._chosen, self._path.with_suffix(f".{self.name}")
        words = [str(self._path), "--epochs", str(epochs), "--batch", str(chosen.batch), "--out", str(out)]
        if self.name == "p4sgd":
            command = ["-c", _P4SGD, "train", *words, "--overwrite"]
        else:
            more = ["--threads", str(chosen.threads), "--rate", str(self._rate)]
            command = ["-m", "support.peers", self.name, *words, *more]
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _LAUNCH, sys.executable, *command],
            capture_output=True,
            text=True,
            check=True,
        )
        status, *used = json.loads(done.stdout.splitlines()[-1])
        if status:
            raise JobError(done.stderr.strip().splitlines()[-1])
        self.used.setdefault(epochs, []).append(Used(*used))
        if epochs not in self.loss:
            self.loss[epochs] = alone(loss_of, self._path, out)

    def row(self, goal: float) -> list[str]:
        """Its row of the table."""
        epochs, full = self._chosen.epochs, self.used[self._chosen.epochs]
        cpu, wall, memory = (
            statistics.median(getattr(used, what) for used in full) for what in ("cpu", "wall", "memory")
        )
        cells = [self.name, f"{cpu:.2f}", f"{wall:.2f}", f"{memory:,.0f}", f"{self.loss[epochs]:.4f}"]
        reached = min((count for count, loss in self.loss.items() if loss <= goal), default=None)
        if reached is None:
            return [*cells, "-", "-"]
        return [*cells, str(reached), f"{statistics.median(used.cpu for used in self.used[reached]):.2f}"]


def compare(name: str, folder: Path, chosen: Any) -> None:
    """Print the table of a data set, and who is left out."""
    path = folder / f"{name}.{DATA[name][0]}"
    alone(make_file, name, path)
    counts = [chosen.epochs, *(count for count in (1, 2, 5, 10, 20, 50, 100, 200, 500) if count < chosen.epochs)]
    contenders = {each: Contender(each, path, chosen) for each in ("p4sgd", *chosen.peers)}
    left_out = []
    for each in list(contenders.values()):
        try:
            each.choose_rate()
            each.run(1)  # fills the caches of the disk and of compilers
            each.used.clear()
        except JobError as error:
            left_out.append(f"{each.name} is left out: {error}")
            del contenders[each.name]
    for turn in range(chosen.turns):
        for count in counts if turn == 0 else counts[:1]:
            for each in contenders.values():
                each.run(count)
    goal = _CLOSE * contenders["p4sgd"].loss[chosen.epochs]
    show(
        f"{path.name}, {path.stat().st_size / 2**20:,.1f} MiB, {chosen.epochs} epochs",
        ("", "CPU s", "wall s", "MiB", "loss", "epochs to the loss of p4sgd", "CPU s to it"),
        (each.row(goal) for each in contenders.values()),
    )
    CONSOLE.print(*left_out, sep="\n", highlight=False)


def main() -> None:
    """Print one table for each data set."""
    parser = parser_of(__doc__, epochs=10, batch=16, threads=1, turns=3)
    parser.add_argument("--data", nargs="+", choices=DATA, default=list(DATA))
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument("--folder", type=Path, help="where files are kept for the next time")
    chosen = parser.parse_args()
    limit_threads(chosen.threads)
    CONSOLE.print(describe_machine(chosen.threads), highlight=False)
    with tempfile.TemporaryDirectory() as temporary:
        folder = chosen.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name in chosen.data:
            compare(name, folder, chosen)


if __name__ == "__main__":
    main()
