"""Test metrics of every loss beside those of scikit-learn's estimator for it, at 8 and at 4 bits.

    PYTHONPATH=tests python tests/bench/bench_losses.py [--loss NAME …] [--splits 5]

Accuracy of classes, mean squared and absolute errors, pinball losses and deviances of samples that were not trained on,
means over some splits; `support.loss_peers` says of which data and with which options. All of it takes two minutes.
"""

import argparse

from rich.console import Console
from rich.table import Table
from support.loss_peers import ALLOWED, CASES, compare

from p4sgd.host.losses import LOSSES


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loss", nargs="+", choices=LOSSES, default=list(LOSSES))
    parser.add_argument("--splits", type=int, default=5)
    chosen = parser.parse_args()
    table = Table("loss, data, scikit-learn's estimator", title=f"means of {chosen.splits} splits")
    table.add_column("its metric", justify="right")
    for bits in ALLOWED:
        table.add_column(f"{bits} bits", justify="right")
        table.add_column("worse by", justify="right")
    for case in CASES:
        if case.loss in chosen.loss:
            scores = compare(case, chosen.splits)
            ours = [(f"{scores.ours[bits]:.5g}", f"{scores.worse(case, bits):.2%}") for bits in ALLOWED]
            table.add_row(case.name, f"{scores.theirs:.5g}", *(cell for pair in ours for cell in pair))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
