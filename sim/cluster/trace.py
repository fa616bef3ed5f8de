"""Traces of a simulation: when each micro-batch was in each stage. Imports neither Amaranth nor cocotb."""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from p4sgd.hw.spec.config import CLOCK_NS
from p4sgd.hw.spec.run import EVENTS, STAGES
from p4sgd.sim.cluster.protocol import EVENTS_FILE, EVENTS_LIMIT


@dataclass(frozen=True, slots=True)
class Interval:
    """The time that a micro-batch spends in a stage, by numbers that count from the beginning of the simulation."""

    micro_batch: int
    mini_batch: int
    begin: int  # first cycle in the stage
    end: int  # first cycle after it

    @property
    def cycles(self) -> int:
        """Cycles in the stage."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Trace:
    """Trace of a simulated cluster."""

    workers: list[dict[str, list[Interval]]]  # for every worker the intervals of each stage of `STAGES`, in order
    whole: bool  # whether it has all events of the simulation; only the first `EVENTS_LIMIT` are recorded


def read_trace(directory: Path, workers: int) -> Trace:
    """Read the events that ``sim_trace.sv`` has written; micro-batches that have not left a stage are missing in it.

    ValueError if the file is incomplete: a simulator does not notice that the disk is full, and one that is killed may
    leave any part of it.
    """
    path = directory / EVENTS_FILE
    cycles: list[list[list[int]]] = [[[] for _ in EVENTS] for _ in range(workers)]
    try:
        *lines, end = path.read_text().splitlines()
        for line in lines:
            time, worker, bits = line.split()
            happened = int(bits, 16)
            for number, seen in enumerate(cycles[int(worker)]):
                if happened >> number & 1:
                    seen.append(int(time) // CLOCK_NS)
        word, count = end.split()
        whole = word == "end" and len(lines) == min(int(count), EVENTS_LIMIT)
    except (OSError, ValueError, IndexError):
        whole = False
    if not whole:
        raise ValueError(f"{path} is incomplete: the disk may be full")
    return Trace([_pair(dict(zip(EVENTS, seen, strict=True))) for seen in cycles], int(count) <= EVENTS_LIMIT)


def _pair(cycles: dict[str, list[int]]) -> dict[str, list[Interval]]:
    """Intervals from cycles of events: the n-th begin and the n-th end of a stage belong to micro-batch n."""
    began = cycles["mini_batch_begins"]
    mini_batches = [bisect_right(began, cycle) - 1 for cycle in cycles["forward_begins"]]
    return {
        stage: [
            Interval(number, mini_batches[number], begin, end + 1)
            for number, (begin, end) in enumerate(zip(cycles[first], cycles[last], strict=False))
        ]
        for stage, (first, last) in STAGES.items()
    }


def lanes(intervals: Iterable[Interval]) -> list[list[Interval]]:
    """Distribute intervals, ordered by their begin, over as few rows as possible, without overlap in a row."""
    rows: list[list[Interval]] = []
    for interval in intervals:
        free = next((row for row in rows if row[-1].end <= interval.begin), None)
        if free is None:
            rows.append([interval])
        else:
            free.append(interval)
    return rows


@dataclass(frozen=True, slots=True)
class MiniBatch:
    """A worker during a mini-batch, from the first line taken to the cycle after its last update, for drawings."""

    number: int
    begin: int
    end: int
    first: int  # its first micro-batch
    rows: dict[str, list[list[Interval]]]  # by stage all intervals that overlap this time, in `lanes`


def second_mini_batch(trace: Trace) -> MiniBatch | None:
    """The second mini-batch of worker 0, or the only one; ``None`` if none is done."""
    stages = trace.workers[0]
    updates = stages["update"]
    if not updates:
        return None
    chosen = min(1, updates[-1].mini_batch)
    begin = min(interval.begin for interval in stages["forward"] if interval.mini_batch == chosen)
    own = [interval for interval in updates if interval.mini_batch == chosen]
    end, first = max(interval.end for interval in own), own[0].micro_batch
    rows = {
        stage: lanes(interval for interval in intervals if interval.end > begin and interval.begin < end)
        for stage, intervals in stages.items()
    }
    return MiniBatch(chosen, begin, end, first, rows)
