"""A trace as a file: a process a worker, a thread a stage, nothing in two places at once."""

import itertools
import json

import pytest

from p4sgd.host.cli.trace import save_trace
from p4sgd.host.errors import UserError
from p4sgd.hw.spec.run import STAGES
from p4sgd.sim.cluster.trace import Interval, Trace, lanes

FORWARD = [Interval(0, 0, 10, 14), Interval(1, 0, 14, 18), Interval(2, 1, 30, 34)]
NETWORK = [Interval(0, 0, 20, 50), Interval(1, 0, 24, 54), Interval(2, 1, 50, 60)]
STAGES_OF_WORKER = {stage: [] for stage in STAGES} | {"forward": FORWARD, "network": NETWORK}


def test_lanes():
    assert lanes([]) == []
    assert lanes(FORWARD) == [FORWARD]
    assert lanes(NETWORK) == [[NETWORK[0], NETWORK[2]], [NETWORK[1]]]


def test_events(tmp_path):
    save_trace(Trace([STAGES_OF_WORKER, STAGES_OF_WORKER], True), tmp_path / "run.json")
    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    threads = {e["tid"]: (names[e["pid"]], e["args"]["name"]) for e in events if e["name"] == "thread_name"}
    stages = ["forward", "network", "network 2", "loss", "backward", "update"]
    assert list(threads.values()) == [(f"worker {worker}", stage) for worker in (0, 1) for stage in stages]
    complete = [e for e in events if e["ph"] == "X"]
    assert len(complete) == 2 * (len(FORWARD) + len(NETWORK))
    network = [e for e in complete if threads[e["tid"]] == ("worker 1", "network 2")]
    assert network == [
        {
            "ph": "X",
            "name": "micro-batch 1",
            "cat": "network",
            "pid": 2,
            "tid": network[0]["tid"],
            "ts": 0.096,
            "dur": 0.12,
            "args": {"micro_batch": 1, "mini_batch": 0, "cycles": 30},
        }
    ]
    for thread in threads:
        for earlier, later in itertools.pairwise(e for e in complete if e["tid"] == thread):
            assert earlier["ts"] + earlier["dur"] <= later["ts"]


def test_whole_or_not_at_all(tmp_path):
    path = tmp_path / "run.json"
    path.write_text("from before")
    with pytest.raises(TypeError):
        save_trace(Trace([{"forward": [Interval(None, 0, 0, 1), Interval({0}, 0, 1, 2)]}], True), path)
    assert path.read_text() == "from before"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(UserError, match="cannot write"):
        save_trace(Trace([], True), tmp_path / "gone" / "run.json")
