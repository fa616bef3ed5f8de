"""A trace of a simulation as a file that ui.perfetto.dev and chrome://tracing show (JSON, Trace Event Format)."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p4sgd.host.new_file import begins_with, new_file
from p4sgd.hw.spec.clock import CLOCK_NS

if TYPE_CHECKING:
    from p4sgd.sim.cluster.trace import Interval, Trace

__all__ = ["is_trace_file", "lanes", "save_trace"]

_START = b'{"displayTimeUnit": "ns", "traceEvents": ['


def lanes(intervals: "Iterable[Interval]") -> "list[list[Interval]]":
    """Deal intervals, ordered by their begin, to as few rows as hold them without overlap."""
    rows: list[list[Interval]] = []
    for interval in intervals:
        free = next((row for row in rows if row[-1].end <= interval.begin), None)
        if free is None:
            rows.append([interval])
        else:
            free.append(interval)
    return rows


def save_trace(trace: "Trace", path: Path) -> None:
    """Write a process for every worker, a thread for every stage, a complete event for every micro-batch.

    A thread shows one thing at a time, so a stage that holds several micro-batches has further threads. Times are those
    of the waveform. Micro-batches have the same name, and so the same colour, in all stages.

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
    """Whether a file begins as `save_trace` begins it.

    Raises
    ------
    UserError
        If it cannot be read.
    """
    return begins_with(path, _START)


def _events(workers: "Sequence[dict[str, list[Interval]]]") -> Iterator[dict[str, Any]]:
    thread = 0  # some viewers tell threads of different processes apart by their numbers alone
    for process, stages in enumerate(workers, 1):  # process 0 is the idle process to some
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
