"""Plans of messages beside other rules: layers of a neural network at measured costs, and frames of the hardware.

    PYTHONPATH=tests python tests/bench/bench_merging.py

The first tables are modelled from figures that the authors of MG-WFBP have measured (support/googlenet.py). Their rule
takes the start of a message from the line that fits the costs best, and all costs from that line or from the table: the
better plan is shown. Faster processors are modelled: all passes take a fraction of the measured time. The largest gain
beside each rule stands below its table.

The last table is modelled with the cycles of the hardware (support/frames.py). It ends with an error if frames of
several micro-batches would be faster anywhere.
"""

import numpy as np
from rich.console import Console
from rich.table import Table
from support.frames import CHUNKS, PRECISIONS, hardware_passes
from support.googlenet import ALL_REDUCE_S, READY_S, SIZES
from support.spd_kfac import mg_wfbp

from p4sgd.host.distributed.merging import CostTable, plan_messages, schedule
from p4sgd.hw.spec.config import BANKS, PRESETS

SPEEDS = (1, 2, 4, 8, 16, 32)


def layers(nodes: int) -> tuple[Table, dict[str, float]]:
    """GoogLeNet on so many computers; and the largest gain beside each other rule."""
    sizes, seconds = ALL_REDUCE_S[nodes]
    cost = CostTable(sizes, seconds)
    slope, start = np.polyfit(sizes, seconds, 1)
    table = Table(title=f"GoogLeNet's gradients on {nodes} computers: end of the last all-reduce, ms")
    rules = ("MG-WFBP's rule", "one a layer", "one in all")
    for column in ("processors", "messages", "planned", *rules):
        table.add_column(column, justify="right")
    gains = dict.fromkeys(rules, 0.0)
    for speed in SPEEDS:
        trace = [each / speed for each in READY_S], SIZES, cost
        planned = plan_messages(*trace)
        count = len(SIZES)
        greedy = [mg_wfbp(*trace[:2], known, start) for known in (cost, lambda size: start + slope * size)]
        ends = [
            min(schedule(lengths, *trace)[-1].end for lengths in choices)
            for choices in (greedy, [[1] * count], [[count]])
        ]
        end = planned[-1].end
        gains = {rule: max(gains[rule], 1 - end / other) for rule, other in zip(rules, ends, strict=True)}
        cells = [f"{other * 1e3:.1f} ({other / end - 1:+.1%})" for other in ends]
        table.add_row(f"{speed} × as fast" if speed > 1 else "measured", f"{len(planned)}", f"{end * 1e3:.1f}", *cells)
    return table, gains


def frames(preset: str) -> Table:
    """The hardware: n, and by how much the mini-batch takes longer with frames of 2, 4 and all micro-batches."""
    config = PRESETS[preset]()
    table = Table(title=f"frames of n micro-batches between {preset} workers and a hardware aggregator, cycles")
    for column in ("B", "C·P", "planned n", "n = 1", "n = 2", "n = 4", "one frame"):
        table.add_column(column, justify="right")
    for batch in (8, 16, 64, 256, 1024):
        for lines in sorted({chunks * precision for chunks in CHUNKS for precision in PRECISIONS}):
            passes, count = hardware_passes(config, batch, lines, 1), batch // BANKS
            best = passes.uniform()
            if best != 1 or passes.end(passes.best()) < passes.end([1] * count):
                raise SystemExit(f"B = {batch}, C·P = {lines}: longer frames would be faster")
            ends = [
                passes.end([n] * (count // n) + [count % n] * (count % n > 0)) if n <= count else None
                for n in (1, 2, 4, count)
            ]
            cells = ["" if end is None else f"{end:,.0f}" for end in ends]
            table.add_row(f"{batch}", f"{lines}", f"{best}", *cells)
    return table


def main() -> None:
    """Plan and print."""
    console = Console(width=120)
    for nodes in ALL_REDUCE_S:
        table, gains = layers(nodes)
        console.print(table)
        told = ", ".join(f"{gain:.1%} less than {rule}" for rule, gain in gains.items())
        console.print(f"largest gains: {told}\n")
    console.print(frames("u280"))


if __name__ == "__main__":
    main()
