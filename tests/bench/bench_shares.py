"""Time of a mini-batch on four worker processes, one of them slower: equal shares beside shares by measured speed.

    PYTHONPATH=tests python tests/bench/bench_shares.py [--slow 0.5] [--speed 0.1] [--features 65536]

Needs network namespaces: root, or `unshare -Urn` before it. All workers are slowed down to ``--speed``, so that this
machine need not have a core for each; one of them further, to ``--slow`` of that. Times are medians of epochs.
"""

import argparse
import statistics
import tempfile
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from support.lab import Lab

_BATCH = 64


def train(lab: Lab, samples: int, epochs: int, *words: str) -> tuple[float, dict]:
    """Milliseconds of a mini-batch, and the document of the run."""
    words = ("--epochs", epochs, "--lr", "0.01", "--device", "cluster", "--cluster", "cluster.toml", *words)
    document = lab.document("train", "data.npz", "--batch", _BATCH, *words)
    seconds = statistics.median(epoch["seconds"] for epoch in document["epochs"][1:])
    return 1000 * seconds / (samples / _BATCH), document


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slow", type=float, default=0.5)
    parser.add_argument("--speed", type=float, default=0.1)
    parser.add_argument("--features", type=int, default=65_536)
    parser.add_argument("--samples", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--config", default="u280")
    options = parser.parse_args()
    table = Table("one worker", "shares", "units", "a mini-batch", "relative")
    base = 0.0
    for slow in (1.0, options.slow):
        with tempfile.TemporaryDirectory() as folder:
            rng = np.random.default_rng(0)
            x = rng.normal(size=(options.samples, options.features)).astype(np.float32)
            np.savez(Path(folder, "data.npz"), X=x, y=x[:, 0] > 0)
            speeds = [options.speed] * 3 + [options.speed * slow]
            lab = Lab(Path(folder), 4, config=options.config, network="resend_us = 100000", speed=speeds)
            try:
                for shares in ("fixed", "auto"):
                    time, document = train(lab, options.samples, options.epochs, "--shares", shares)
                    base = base or time
                    units = " ".join(map(str, document["units"]))
                    table.add_row(f"{slow:g}", shares, units, f"{time:.2f} ms", f"{time / base:.2f}")
                    if shares == "auto":
                        print(*document["remarks"], sep="\n")
            finally:
                lab.close()
    Console().print(table)


if __name__ == "__main__":
    main()
