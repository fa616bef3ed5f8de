"""ResNet-50's 108 Kronecker factors at published costs: placements and merged sums beside those of others.

    PYTHONPATH=tests python tests/bench/bench_placement.py [--ranks 2 4 8 16 32 64] [--write factors.json]

All times are modelled, from costs that were published for 64 GPUs (see support/spd_kfac.py) and are taken for any
number of ranks. The published exponential for inversions is above what the authors measured where every GPU inverts all
factors (scripts/time_breakdown.py): 651 ms against 292 ms. ``--write`` makes a file for ``p4sgd plan factors``.
"""

import argparse
import json
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table
from support.spd_kfac import (
    FACTORS,
    READY_S,
    REDUCE_LATENCY_S,
    broadcast_s,
    cost_table,
    invert_s,
    mg_wfbp,
    reduce_s,
)

from p4sgd.host.distributed.merging import plan_messages, schedule
from p4sgd.host.precondition.placement import PlacementProblem


def main() -> None:
    """Plan and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8, 16, 32, 64])
    parser.add_argument("--write", type=Path, metavar="FILE")
    options = parser.parse_args()
    console = Console(width=120)

    table = Table(title="inverting and sending, ms")
    for column in (
        "ranks",
        "planned",
        "round-robin",
        "balanced sizes",
        "by everybody",
        "lower bound",
        "sent",
        "took, s",
    ):
        table.add_column(column, justify="right")
    for ranks in options.ranks:
        problem = PlacementProblem(FACTORS, invert_s, broadcast_s, ranks)
        begin = time.perf_counter()
        best = problem.best()
        took = time.perf_counter() - begin
        others = (problem.round_robin(), problem.balanced_sizes(), problem.by_all())
        times = [*(other.makespan for other in others), problem.lower_bound()]
        cells = [best.makespan * 1e3, *(seconds * 1e3 for seconds in times)]
        table.add_row(str(ranks), *(f"{cell:.1f}" for cell in cells), str(len(best.sends)), f"{took:.2f}")
    console.print(table)

    values = [size * (size + 1) // 2 for size in FACTORS]
    table = Table(title="sums of factors while they are computed (64 GPUs)")
    for column in ("", "messages", "end, ms", "beside planned"):
        table.add_column(column, justify="right" if column else "left")
    planned = plan_messages(READY_S, values, reduce_s)
    for name, messages in (
        ("planned", planned),
        ("MG-WFBP's rule", schedule(mg_wfbp(READY_S, values, reduce_s, REDUCE_LATENCY_S), READY_S, values, reduce_s)),
        ("one a factor", schedule([1] * len(values), READY_S, values, reduce_s)),
        ("one in all", schedule([len(values)], READY_S, values, reduce_s)),
    ):
        end = messages[-1].end
        table.add_row(name, str(len(messages)), f"{end * 1e3:.1f}", f"{end / planned[-1].end - 1:+.1%}")
    console.print(table)

    if options.write:
        factors = {
            "sizes": FACTORS,
            "invert_s": cost_table(invert_s, FACTORS),
            "send_s": cost_table(broadcast_s, FACTORS),
            "ready_s": READY_S,
            "sum_s": cost_table(reduce_s, [0, sum(values)]),
        }
        options.write.write_text(json.dumps(factors))


if __name__ == "__main__":
    main()
