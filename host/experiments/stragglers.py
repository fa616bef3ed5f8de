"""Mini-batches of worker processes that pause or are slow, with measured shares and stand-ins, beside a model."""

import bisect
import contextlib
import itertools
import json
import random
import secrets
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from p4sgd.host.errors import P4sgdError
from p4sgd.host.experiments.experiment import Cell, Chart, Finding, Source, Table, experiment
from p4sgd.host.serve.local_cluster import python_command
from p4sgd.hw.spec.config import CLOCK_NS
from p4sgd.hw.spec.udp import PROGRAM_PORTS

_WORKERS, _BATCH, _PAUSE_S, _RESEND_US, _READY_S = 4, 64, 0.05, 2000, 120

_SLOW = "one at half speed"
_SITUATIONS: dict[str, dict[int, int]] = {
    "equal": {},
    "one pauses 7 times a second": {3: 7},
    "each pauses twice a second": dict.fromkeys(range(_WORKERS), 2),
    _SLOW: {},
}
"""By name, the workers that pause for `_PAUSE_S` at random times, and how often in a second."""

_WAYS = {
    "no help": (),
    "shares": ("--shares", "auto"),
    "stand-ins": ("--stand-ins",),
    "both": ("--shares", "auto", "--stand-ins"),
}


def _speeds(situation: str) -> list[float]:
    return [0.5 if situation == _SLOW and worker == _WORKERS - 1 else 1.0 for worker in range(_WORKERS)]


# -- measured ----------------------------------------------------------------------------------------------------------


class _Cluster:
    """Worker processes, one more than take part, and an aggregator in a folder. The last worker has half the ``speed``
    of the others, and takes the place of the one before it in `_SLOW`."""

    def __init__(self, folder: Path, speed: float) -> None:
        self._folder, self._processes = folder, list[subprocess.Popen[bytes]]()
        host = f"127.{secrets.randbelow(254) + 1}.{secrets.randbelow(256)}.{secrets.randbelow(254) + 1}"
        text = f'[aggregator]\nkind = "socket"\ncontrol = "unix:switch"\nudp = "{host}"\n'
        text += f"[network]\nresend_us = {_RESEND_US}\n"
        self._start("switch", "switch", "serve", "--interface", f"udp:{host}")
        workers = []
        for worker, its in enumerate([speed] * _WORKERS + [speed / 2]):
            udp = f"{host}:{PROGRAM_PORTS[1 + worker]}"
            words = "--config", "u280", "--set", "engines=1", "--speed", str(its)  # units divide its time
            self._start(f"worker{worker}", "worker", "--interface", f"udp:{udp}", *words)
            workers.append(f'[[workers]]\ncontrol = "unix:worker{worker}"\nudp = "{udp}"\nport = 0\n')
        for situation in _SITUATIONS:
            chosen = [*workers[: _WORKERS - 1], workers[-1 if situation == _SLOW else -2]]
            (folder / f"{situation}.toml").write_text(text + "".join(chosen))
        end = time.monotonic() + _READY_S
        while not all((folder / name).exists() for name in ("switch", *(f"worker{i}" for i in range(len(workers))))):
            if time.monotonic() > end or any(process.poll() is not None for process in self._processes):
                self.close()
                raise P4sgdError(f"processes did not start: {(folder / 'log').read_text()}")
            time.sleep(0.05)

    def _start(self, name: str, *words: str) -> None:
        command = python_command("from p4sgd.host.cli import main; main()", *words, "--control", f"unix:{name}")
        with (self._folder / "log").open("ab") as log:
            process = subprocess.Popen(command, cwd=self._folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self._processes.append(process)

    def train(self, situation: str, *words: str) -> dict[str, Any]:
        """The result of a training."""
        words = ("train", "data.npz", "--device", "cluster", "--cluster", f"{situation}.toml", "--json", *words)
        command = python_command("from p4sgd.host.cli import main; main()", *words)
        done = subprocess.run(command, cwd=self._folder, capture_output=True, check=False, text=True)
        if done.returncode:
            raise P4sgdError(f"training has failed: {done.stderr}")
        return dict(json.loads(done.stdout))

    @contextlib.contextmanager
    def pausing(self, pauses: dict[int, int], seed: int) -> Iterator[None]:
        """Stop workers again and again."""
        ended = threading.Event()

        def pause(worker: int, often: int) -> None:
            rng, process = random.Random(f"{worker} {seed}"), self._processes[1 + worker]
            while not ended.wait(rng.expovariate(1 / (1 / often - _PAUSE_S))):
                process.send_signal(signal.SIGSTOP)
                time.sleep(_PAUSE_S)
                process.send_signal(signal.SIGCONT)

        threads = [threading.Thread(target=pause, args=each) for each in pauses.items()]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            ended.set()
            for thread in threads:
                thread.join()

    def close(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait()


def _measure(
    situations: Sequence[str],
    ways: Sequence[str],
    *,
    samples: int,
    features: int,
    speed: float,
    epochs: int,
    rounds: int,
) -> tuple[dict[tuple[str, str], float], float]:
    """Mean ms of a mini-batch in all epochs but the first of each run, by situation and way, in turn; and ms for which
    one of equal workers computes in it without help."""
    found, weights, busy = dict[tuple[str, str], list[float]](), set(), list[float]()
    run = "--batch", str(_BATCH), "--epochs", str(epochs), "--lr", "0.01", "--tolerance", "0"
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as opened:
        rng = np.random.default_rng(0)
        x = rng.normal(size=(samples, features)).astype(np.float32)
        np.savez(Path(name, "data.npz"), X=x, y=x[:, 0] > 0)
        cluster = opened.enter_context(contextlib.closing(_Cluster(Path(name), speed)))
        for seed, situation, way in itertools.product(range(rounds), situations, ways):
            with cluster.pausing(_SITUATIONS[situation], seed):
                document = cluster.train(situation, *run, *_WAYS[way])
            weights.add(document["weights_sha256"])
            later, count = document["epochs"][1:], samples / _BATCH
            found.setdefault((situation, way), []).extend(1e3 * epoch["seconds"] / count for epoch in later)
            if (situation, way) == (situations[0], ways[0]):
                cycles = [epoch["counters"][0]["CYCLES_BUSY"] for epoch in later]
                busy += [each * CLOCK_NS * 1e-6 / count for each in cycles]
    if len(weights) != 1:
        raise P4sgdError(f"pauses have changed the weights: {weights}")
    return {each: statistics.mean(times) for each, times in found.items()}, statistics.median(busy)


# -- modelled ----------------------------------------------------------------------------------------------------------


def _clock(pauses: int, seed: str) -> Callable[[float, float], float]:
    """When work of so many ms that begins at a time ends, on a worker that pauses so often in a second."""
    rng, begins, length = random.Random(seed), [0.0], 1e3 * _PAUSE_S
    while pauses and begins[-1] < 1e6:
        begins.append(begins[-1] + length + rng.expovariate(1 / (1e3 / pauses - length)))

    def ends(at: float, work: float) -> float:
        index = bisect.bisect(begins, at) - 1
        if index:
            at = max(at, begins[index] + length)
        while index + 1 < len(begins) and at + work > begins[index + 1]:
            index += 1
            work -= begins[index] - at
            at = begins[index] + length
        return at + work

    return ends


def model_ms(situation: str, way: str, computing: float, network: float, mini_batches: int, epochs: int = 50) -> float:
    """Mean ms of a mini-batch, of which each of equal workers computes for ``computing`` ms, half of it forward.

    A stand-in has a thread of its own. It asks who is missing `_RESEND_US` after its own partials, or at once if the
    worker was missing in the mini-batch before. An epoch ends when all have caught up.
    """
    helps, speeds = "--stand-ins" in _WAYS[way], _speeds(situation)
    ends = [_clock(_SITUATIONS[situation].get(worker, 0), f"{worker}") for worker in range(_WORKERS)]
    share = [speed / sum(speeds) * _WORKERS if "--shares" in _WAYS[way] else 1.0 for speed in speeds]
    work = [[computing / 2 * share[shard] / speed for shard in range(_WORKERS)] for speed in speeds]  # by holder, shard
    own, other, missing, now = [0.0] * _WORKERS, [0.0] * _WORKERS, [False] * _WORKERS, 0.0
    for _ in range(epochs):
        for _ in range(mini_batches):
            partial = [ends[i](own[i], work[i][i]) for i in range(_WORKERS)]
            ready = list(partial)
            for i in range(_WORKERS if helps else 0):
                shard = (i + 1) % _WORKERS
                asks = own[i] if missing[i] else partial[i] + _RESEND_US / 1e3
                missing[i] = False
                if asks < partial[shard]:
                    other[i] = ends[i](max(other[i], asks), work[i][shard])
                    missing[i] = other[i] < partial[shard]
                    ready[shard] = min(partial[shard], max(other[i], partial[i]))
            full = max(ready) + network
            for i in range(_WORKERS):
                begin = max(full, partial[i] if own[i] < full else own[i])
                own[i] = ends[i](begin, work[i][i])
                other[i] = ends[i](max(other[i], full), work[i][(i + 1) % _WORKERS] if helps else 0.0)
        now = max(*own, *other)
        own, other = [now] * _WORKERS, [now] * _WORKERS
    return now / (epochs * mini_batches)


@experiment("E11", "Stragglers", "What do workers cost that pause or are slow, with shares and stand-ins?")
def stragglers(quick: bool) -> Finding:
    """The finding of E11."""
    situations = list(_SITUATIONS)[:2] if quick else list(_SITUATIONS)
    ways = ["no help", "stand-ins"] if quick else list(_WAYS)
    size = {"samples": 2048, "features": 2048, "speed": 1e7, "epochs": 3, "rounds": 1}
    if not quick:
        size = {"samples": 8192, "features": 4096, "speed": 1.3e7, "epochs": 4, "rounds": 3}
    measured, computing = _measure(situations, ways, **size)  # type: ignore[arg-type]
    base = measured["equal", "no help"]
    rows: list[list[Cell]] = []
    losses, costs = [], {}
    for (situation, way), ms in measured.items():
        predicted = model_ms(situation, way, computing, base - computing, int(size["samples"]) // _BATCH)
        rows.append([situation, way, ms, ms / base, Source.MEASURED])
        rows.append([situation, way, predicted, predicted / base, Source.MODELLED])
        costs[situation, way] = ms / base - 1
    for situation in situations[1:]:
        best, help_ = min((costs[situation, way], way) for way in ways)
        if best > 0.15:
            losses.append(f"{situation}: a mini-batch takes {best:.0%} more at best ({help_})")
    standing = costs["equal", "stand-ins"]
    return Finding(
        [
            Table(
                f"{_WORKERS} worker processes, {size['features']:,} features, B = {_BATCH}, epochs of "
                f"{int(size['samples']) // _BATCH} mini-batches",
                ("workers", "help", "a mini-batch, ms", "relative", "source"),
                rows,
                [Chart("workers", "relative", "help", {"source": source}) for source in ("measured", "modelled")],
                f"Workers compute with {size['speed']:g} values a second, stand-ins with as many again on a thread of "
                f"their own, so that this machine need not have a core for each; pauses take {_PAUSE_S * 1e3:.0f} ms. "
                "Modelled ones have a core a thread.",
            )
        ],
        [f"If nobody pauses, a mini-batch takes {1 + standing:.2f} times as long with stand-ins."],
        losses,
    )
