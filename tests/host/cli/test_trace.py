"""A trace as a file: a process a worker, a thread a stage, nothing in two places at once; and drawn in text."""

import itertools
import json

import pytest

from p4sgd.host.cli.simulate import draw, save_trace
from p4sgd.host.errors import UserError
from p4sgd.hw.spec.run import STAGES
from p4sgd.sim.cluster.trace import Interval, Trace, lanes

FORWARD = [Interval(0, 0, 10, 14), Interval(1, 0, 14, 18), Interval(2, 1, 30, 34)]
NETWORK = [Interval(0, 0, 20, 50), Interval(1, 0, 24, 54), Interval(2, 1, 50, 60)]
STAGES_OF_WORKER = {stage: [] for stage in STAGES} | {"forward": FORWARD, "network": NETWORK}


def test_lanes():
    assert (lanes([]), lanes(FORWARD), lanes(NETWORK)) == ([], [FORWARD], [[NETWORK[0], NETWORK[2]], [NETWORK[1]]])


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
        {"ph": "X", "name": "micro-batch 1", "cat": "network", "pid": 2, "tid": network[0]["tid"], "ts": 0.096}
        | {"dur": 0.12, "args": {"micro_batch": 1, "mini_batch": 0, "cycles": 30}}
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


def trace(*mini_batches, scale=1):
    """Two micro-batches a mini-batch, which begins at a cycle given; the second comes 4 cycles after the first."""
    parts = {"forward": (0, 3), "network": (5, 12), "loss": (11, 13), "backward": (14, 17), "update": (16, 18)}
    assert set(parts) == set(STAGES)
    starts = [(number, start + late) for number, start in enumerate(mini_batches) for late in (0, 4)]
    return Trace(
        [
            {
                stage: [
                    Interval(n, number, (start + begin) * scale, (start + end) * scale)
                    for n, (number, start) in enumerate(starts)
                ]
                for stage, (begin, end) in parts.items()
            }
        ],
        True,
    )


def test_the_second_mini_batch_between_its_neighbours():
    assert list(draw(trace(0, 20, 40))) == [
        "worker 0, mini-batch 1: 22 cycles from 20 on, a column is 1",
        "forward  0██ 1██             ░░",
        "network       0██████",
        "                  1██████",
        "loss                0█  1█",
        "backward ░             0██ 1██",
        "update   ░░              0█  1█",
    ]
