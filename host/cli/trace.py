"""Traces of a simulation: files for ui.perfetto.dev and chrome://tracing, and drawings in the terminal."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p4sgd.host.files import begins_with, new_file
from p4sgd.hw.spec.config import CLOCK_NS

if TYPE_CHECKING:
    from p4sgd.sim.cluster.trace import Interval, MiniBatch, Trace

_START = b'{"displayTimeUnit": "ns", "traceEvents": ['


def save_trace(trace: "Trace", path: Path) -> None:
    """Write a trace in the Trace Event Format (JSON); `UserError` if it cannot be written.

    It has a process for every worker, a thread for every stage and a complete event for every micro-batch, which has
    the same name, and so the same colour, in all stages. A thread shows one event at a time, so a stage that holds
    several micro-batches has further threads. Times are those of the waveform.
    """
    with new_file(path) as file:
        file.write(_START)
        separator = "\n"
        for event in _events(trace.workers):
            file.write(f"{separator}{json.dumps(event)}".encode())
            separator = ",\n"
        file.write(b"\n]}\n")


def is_trace_file(path: Path) -> bool:
    """Whether a file begins like those of `save_trace`; `UserError` if it cannot be read."""
    return begins_with(path, _START)


def _events(workers: "Sequence[dict[str, list[Interval]]]") -> Iterator[dict[str, Any]]:
    from p4sgd.sim.cluster.trace import lanes

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
                    numbers = {"micro_batch": interval.micro_batch, "mini_batch": interval.mini_batch}
                    times = {"ts": interval.begin * CLOCK_NS / 1000, "dur": interval.cycles * CLOCK_NS / 1000}
                    event = {"ph": "X", "name": f"micro-batch {interval.micro_batch}", "cat": stage, **where, **times}
                    yield {**event, "args": {**numbers, "cycles": interval.cycles}}


def draw(trace: "Trace") -> Iterator[str]:
    """Lines of text that show worker 0 in its second mini-batch (or the only one), from first line to last update.

    A block is a micro-batch in a stage; its first column has the last digit of its number within the mini-batch. Blocks
    of other mini-batches are pale. A stage that holds several micro-batches at a time has further rows.
    """
    from p4sgd.sim.cluster.trace import second_mini_batch

    shown = second_mini_batch(trace)
    if shown is None:
        return
    cycles = shown.end - shown.begin
    scale = -(-cycles // 100)
    yield f"worker 0, mini-batch {shown.number}: {cycles} cycles, a column is {scale}"
    for stage, rows in shown.rows.items():
        for number, row in enumerate(rows):
            cells = [" "] * -(-cycles // scale)
            for interval in row:
                _place(cells, interval, shown, scale)
            yield f"{'' if number else stage:<9}{''.join(cells).rstrip()}"


def _place(cells: list[str], interval: "Interval", shown: "MiniBatch", scale: int) -> None:
    start = max(0, (interval.begin - shown.begin) // scale)
    stop = min(len(cells), -(-(interval.end - shown.begin) // scale))
    ours = interval.mini_batch == shown.number
    cells[start:stop] = ("█" if ours else "░") * (stop - start)
    if ours:
        cells[start] = str((interval.micro_batch - shown.first) % 10)
