"""Time of a mini-batch on four worker processes that pause or are slow: equal or measured shares, and stand-ins.

    PYTHONPATH=tests python tests/bench/bench_shares.py [--slow 0.5] [--speed 0.1] [--features 65536] [--rounds 2]

Needs network namespaces: root, or `unshare -Urn` before it. All workers are slowed down to ``--speed``, so that this
machine need not have a core for each; in one situation one of them further, to ``--slow`` of that. In others one pauses
for 50 ms seven times a second, or each twice a second, at random. Every way to train has its turn in each round; times
are means of all epochs but the first of each run.
"""

import contextlib
import random
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from support.lab import Lab
from support.script import parser_of, show

_BATCH = 64
_PAUSE_S = 0.05
_WAYS = ([], ["--shares", "auto"], ["--stand-ins"], ["--shares", "auto", "--stand-ins"])
_SITUATIONS = {"equal": (), "one pauses": ((3, 7),), "each pauses": tuple((worker, 2) for worker in range(4))}
"""By name, the workers that pause and how often in a second."""


def epochs_s(lab: Lab, epochs: int, *words: str) -> list[float]:
    """Seconds of the epochs of a run but the first."""
    words = ("--epochs", epochs, "--lr", "0.01", "--device", "cluster", "--cluster", "cluster.toml", *words)
    document = lab.document("train", "data.npz", "--batch", _BATCH, *words)
    return [epoch["seconds"] for epoch in document["epochs"][1:]]


@contextlib.contextmanager
def pausing(lab: Lab, pauses: tuple[tuple[int, int], ...]) -> Iterator[None]:
    """Stop workers again and again."""
    ended = threading.Event()

    def pause(worker: int, often: int) -> None:
        rng, (process, _) = random.Random(worker), lab.processes[f"worker{worker}"]
        while not ended.wait(rng.expovariate(1 / (1 / often - _PAUSE_S))):
            process.send_signal(signal.SIGSTOP)
            time.sleep(_PAUSE_S)
            process.send_signal(signal.SIGCONT)

    threads = [threading.Thread(target=pause, args=each) for each in pauses]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__, slow=0.5, speed=0.1, features=65_536, samples=1024, epochs=40, config="u280", rounds=2)
    options, rows = parser.parse_args(), []
    base = 0.0
    situations = [(name, 1.0, pauses) for name, pauses in _SITUATIONS.items()]
    for name, slow, pauses in [*situations, (f"one at {options.slow:g}", options.slow, ())]:
        with tempfile.TemporaryDirectory() as folder:
            rng = np.random.default_rng(0)
            x = rng.normal(size=(options.samples, options.features)).astype(np.float32)
            np.savez(Path(folder, "data.npz"), X=x, y=x[:, 0] > 0)
            speeds = [options.speed] * 3 + [options.speed * slow]
            lab = Lab(Path(folder), 4, config=options.config, speed=speeds)
            taken: dict[str, list[float]] = {}
            try:
                for way in _WAYS * options.rounds:
                    with pausing(lab, pauses):
                        taken.setdefault(" ".join(way) or "neither", []).extend(epochs_s(lab, options.epochs, *way))
            finally:
                lab.close()
        for way, seconds in taken.items():
            ms = 1000 * statistics.mean(seconds) / (options.samples / _BATCH)
            base = base or ms
            rows.append([name, way, f"{ms:.1f} ms", f"{ms / base:.2f}"])
            print(*rows[-1], flush=True)
    show("", ("workers", "help", "a mini-batch", "relative"), rows)


if __name__ == "__main__":
    main()
