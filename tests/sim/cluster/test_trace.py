"""Events that a simulator has noted become intervals, or the file is refused."""

import pytest

from p4sgd.hw.spec.run import EVENTS, STAGES
from p4sgd.sim.cluster import trace
from p4sgd.sim.cluster.protocol import EVENTS_FILE
from p4sgd.sim.cluster.trace import Interval, read_trace


def line(cycle, worker, *events):
    return f"{4 * cycle} {worker} {sum(1 << EVENTS.index(event) for event in events):x}\n"


NOTES = [
    line(10, 0, "mini_batch_begins", "forward_begins"),
    line(12, 0, "forward_ends"),
    line(12, 1, "mini_batch_begins", "forward_begins", "forward_ends"),
    line(13, 0, "forward_begins"),
    line(15, 0, "forward_ends", "partial_sent"),
    line(18, 0, "partial_sent"),
    line(40, 0, "sums_came"),
    line(41, 0, "sums_came"),
    line(46, 0, "deltas_came"),
    line(90, 0, "mini_batch_begins", "forward_begins", "forward_ends"),
]
WHOLE = "".join(NOTES) + "end 10\n"


def read(folder, text):
    (folder / EVENTS_FILE).write_text(text)
    return read_trace(folder, 2)


def test_begins_and_ends_are_paired_in_order(tmp_path):
    found = read(tmp_path, WHOLE)
    first, second = found.workers
    assert found.whole
    assert set(first) == set(second) == set(STAGES)
    assert first["forward"] == [Interval(0, 0, 10, 13), Interval(1, 0, 13, 16), Interval(2, 1, 90, 91)]
    assert first["network"] == [Interval(0, 0, 15, 41), Interval(1, 0, 18, 42)]
    assert first["loss"] == [Interval(0, 0, 40, 47)], "that of micro-batch 1 had not ended"
    assert first["backward"] == first["update"] == second["network"] == []
    assert second["forward"] == [Interval(0, 0, 12, 13)]
    assert [interval.cycles for interval in first["forward"]] == [3, 3, 1]


def test_a_simulation_without_a_run(tmp_path):
    assert read(tmp_path, "end 0\n").workers == 2 * [{stage: [] for stage in STAGES}]


def test_no_more_than_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(trace, "EVENTS_LIMIT", 10)
    assert not read(tmp_path, WHOLE.replace("end 10", "end 11")).whole


@pytest.mark.parametrize("length", range(len(WHOLE) - 1))
def test_a_file_that_was_cut(tmp_path, length):
    with pytest.raises(ValueError, match=r"events.txt is incomplete"):
        read(tmp_path, WHOLE[:length])


@pytest.mark.parametrize("missing", range(11))
def test_a_file_with_a_hole(tmp_path, missing):
    lines = WHOLE.splitlines(keepends=True)
    with pytest.raises(ValueError, match="incomplete"):
        read(tmp_path, "".join(lines[:missing] + lines[missing + 1 :]))


def test_no_file(tmp_path):
    with pytest.raises(ValueError, match="incomplete"):
        read_trace(tmp_path, 1)
