"""Traces of a simulation: files for ui.perfetto.dev and chrome://tracing, and drawings in the terminal."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p4sgd.host.files import begins_with, new_file
from p4sgd.hw.spec.config import CLOCK_NS

if TYPE_CHECKING:
    from p4sgd.sim.cluster.trace import Interval, Trace

__all__ = ["draw", "is_trace_file", "lanes", "save_trace"]


_START = b'{"displayTimeUnit": "ns", "traceEvents": ['


def lanes(intervals: "Iterable[Interval]") -> "list[list[Interval]]":
    """Distribute intervals, ordered by their begin, over as few rows as possible, without overlap in a row."""
    rows: list[list[Interval]] = []
    for interval in intervals:
        free = next((row for row in rows if row[-1].end <= interval.begin), None)
        if free is None:
            rows.append([interval])
        else:
            free.append(interval)
    return rows


def save_trace(trace: "Trace", path: Path) -> None:
    """Write a trace in the Trace Event Format (JSON).

    It has a process for every worker, a thread for every stage and a complete event for every micro-batch. A thread
    shows one event at a time, so a stage that holds several micro-batches has further threads. Times are those of the
    waveform. A micro-batch has the same name, and so the same colour, in all stages.

    Raises
    ------
    UserError
        If the file cannot be written.
    """
    with new_file(path) as file:
        file.write(_START)
        separator = "\n"
        for event in _events(trace.workers):
            file.write(f"{separator}{json.dumps(event)}".encode())
            separator = ",\n"
        file.write(b"\n]}\n")


def is_trace_file(path: Path) -> bool:
    """Whether a file begins like those of `save_trace`.

    Raises
    ------
    UserError
        If it cannot be read.
    """
    return begins_with(path, _START)


def _events(workers: "Sequence[dict[str, list[Interval]]]") -> Iterator[dict[str, Any]]:
    thread = 0  # counted over all processes, because some viewers distinguish threads only by number
    for process, stages in enumerate(workers, 1):  # from 1, because some viewers take process 0 for the idle process
        yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": f"worker {process - 1}"}}
        for stage, intervals in stages.items():
            for number, row in enumerate(lanes(intervals) or [[]], 1):
                thread += 1
                where = {"pid": process, "tid": thread}
                name = stage if number == 1 else f"{stage} {number}"
                yield {"ph": "M", "name": "thread_name", **where, "args": {"name": name}}
                yield {"ph": "M", "name": "thread_sort_index", **where, "args": {"sort_index": thread}}
                for interval in row:
                    yield {
                        "ph": "X",
                        "name": f"micro-batch {interval.micro_batch}",
                        "cat": stage,
                        **where,
                        "ts": interval.begin * CLOCK_NS / 1000,
                        "dur": interval.cycles * CLOCK_NS / 1000,
                        "args": {
                            "micro_batch": interval.micro_batch,
                            "mini_batch": interval.mini_batch,
                            "cycles": interval.cycles,
                        },
                    }


_COLUMNS = 100


def draw(trace: "Trace") -> Iterator[str]:
    """Lines of text that show worker 0 in its second mini-batch (or the only one), from first line to last update.

    A block is a micro-batch in a stage; its first column has the last digit of its number within the mini-batch. Blocks
    of other mini-batches are pale. A stage that holds several micro-batches at a time has further rows.
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
