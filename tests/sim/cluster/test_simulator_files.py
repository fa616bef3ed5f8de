"""Files that a simulator writes, memory and events, are read completely or refused: a disk may be full for a while."""

import numpy as np
import pytest

from p4sgd.hw.spec.run import EVENTS, STAGES
from p4sgd.sim.cluster import trace
from p4sgd.sim.cluster.protocol import EVENTS_FILE, read_saved
from p4sgd.sim.cluster.trace import Interval, read_trace

SAVED = "3 5\n00000003 00a1\n00000004 ffb2\nend\n"


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
TRACE = "".join(NOTES) + "end 10\n"


def read_memory(folder, text):
    (folder / "worker1_bank2.bin.txt").write_text(text)
    saved = read_saved(folder, 1, 2)
    assert all(word.dtype == np.uint8 for _, word in saved)
    return [(address, word.tolist()) for address, word in saved]


def read_events(folder, text):
    (folder / EVENTS_FILE).write_text(text)
    return read_trace(folder, 2)


def test_words_with_their_addresses(tmp_path):
    assert read_memory(tmp_path, SAVED) == [(6, [0xA1, 0]), (8, [0xB2, 0xFF])]
    assert read_memory(tmp_path, "1024 0\nend\n") == []


def test_begins_and_ends_are_paired_in_order(tmp_path):
    found = read_events(tmp_path, TRACE)
    first, second = found.workers
    assert found.whole
    assert set(first) == set(second) == set(STAGES)
    assert first["forward"] == [Interval(0, 0, 10, 13), Interval(1, 0, 13, 16), Interval(2, 1, 90, 91)]
    assert first["network"] == [Interval(0, 0, 15, 41), Interval(1, 0, 18, 42)]
    assert first["loss"] == [Interval(0, 0, 40, 47)], "that of micro-batch 1 had not ended"
    assert first["backward"] == first["update"] == second["network"] == []
    assert second["forward"] == [Interval(0, 0, 12, 13)]
    assert [interval.cycles for interval in first["forward"]] == [3, 3, 1]


def test_no_run_and_no_more_than_the_limit(tmp_path, monkeypatch):
    assert read_events(tmp_path, "end 0\n").workers == 2 * [{stage: [] for stage in STAGES}]
    monkeypatch.setattr(trace, "EVENTS_LIMIT", 10)
    assert not read_events(tmp_path, TRACE.replace("end 10", "end 11")).whole


@pytest.mark.parametrize(("read", "content"), [(read_memory, SAVED), (read_events, TRACE)])
def test_files_that_were_cut_or_have_a_hole(tmp_path, read, content):
    lines = content.splitlines(keepends=True)
    holes = ["".join(lines[:missing] + lines[missing + 1 :]) for missing in range(len(lines))]
    for text in (*holes, *(content[:length] for length in range(len(content) - 1))):
        with pytest.raises(ValueError, match="incomplete"):
            read(tmp_path, text)
    with pytest.raises(ValueError, match="incomplete"):
        read_trace(tmp_path / "nowhere", 1)
