"""Time of a mini-batch on four worker processes, one of them slower: equal shares beside shares by measured speed.

    PYTHONPATH=tests python tests/bench/bench_shares.py [--slow 0.5] [--speed 0.1] [--features 65536]

Needs network namespaces: root, or `unshare -Urn` before it. All workers are slowed down to ``--speed``, so that this
machine need not have a core for each; one of them further, to ``--slow`` of that. Times are medians of epochs.
"""

import statistics
import tempfile
from pathlib import Path

import numpy as np
from support.lab import Lab
from support.script import parser_of, show

_BATCH = 64


def train(lab: Lab, samples: int, epochs: int, *words: str) -> tuple[float, dict]:
    """Milliseconds of a mini-batch, and the document of the run."""
    words = ("--epochs", epochs, "--lr", "0.01", "--device", "cluster", "--cluster", "cluster.toml", *words)
    document = lab.document("train", "data.npz", "--batch", _BATCH, *words)
    seconds = statistics.median(epoch["seconds"] for epoch in document["epochs"][1:])
    return 1000 * seconds / (samples / _BATCH), document


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__, slow=0.5, speed=0.1, features=65_536, samples=1024, epochs=5, config="u280")
    options, rows = parser.parse_args(), []
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
                    rows.append([f"{slow:g}", shares, units, f"{time:.2f} ms", f"{time / base:.2f}"])
                    if shares == "auto":
                        print(*document["remarks"], sep="\n")
            finally:
                lab.close()
    show("", ("one worker", "shares", "units", "a mini-batch", "relative"), rows)


if __name__ == "__main__":
    main()
