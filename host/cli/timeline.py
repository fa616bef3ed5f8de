"""A trace of a simulation as a few lines of text."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from p4sgd.host.trace_file import lanes

if TYPE_CHECKING:
    from p4sgd.sim.cluster.trace import Interval, Trace

__all__ = ["draw"]

_COLUMNS = 100


def draw(trace: "Trace") -> Iterator[str]:
    """What worker 0 does in its second mini-batch, or the only one: from the first line to the last update.

    A block is a micro-batch in a stage, its first column the last digit of its number within the mini-batch; those of
    other mini-batches are pale. A stage that holds several at a time has further rows.
    """
    stages = trace.workers[0]
    updates = stages["update"]
    if not updates:
        return
    chosen = min(1, updates[-1].mini_batch)
    begin = min(interval.begin for interval in stages["forward"] if interval.mini_batch == chosen)
    end = max(interval.end for interval in updates if interval.mini_batch == chosen)
    first = next(interval.micro_batch for interval in updates if interval.mini_batch == chosen)
    scale = -(-(end - begin) // _COLUMNS)
    yield f"worker 0, mini-batch {chosen}: {end - begin} cycles, a column is {scale}"
    for stage, intervals in stages.items():
        shown = [interval for interval in intervals if interval.end > begin and interval.begin < end]
        for number, row in enumerate(lanes(shown)):
            cells = [" "] * -(-(end - begin) // scale)
            for interval in row:
                _place(cells, interval, begin, scale, chosen, first)
            yield f"{'' if number else stage:<9}{''.join(cells).rstrip()}"


def _place(cells: list[str], interval: "Interval", begin: int, scale: int, chosen: int, first: int) -> None:
    start = max(0, (interval.begin - begin) // scale)
    stop = min(len(cells), -(-(interval.end - begin) // scale))
    ours = interval.mini_batch == chosen
    cells[start:stop] = ("█" if ours else "░") * (stop - start)
    if ours:
        cells[start] = str((interval.micro_batch - first) % 10)
