"""`p4sgd plan factors` plans on published costs, and names what is wrong with its file."""

import json
import re

import pytest
from click.testing import CliRunner
from support.spd_kfac import FACTORS, READY_S, broadcast_s, cost_table, invert_s, reduce_s

from p4sgd.host.cli.app import main

RESNET50 = {
    "sizes": FACTORS,
    "invert_s": cost_table(invert_s, FACTORS),
    "send_s": cost_table(broadcast_s, FACTORS),
    "ready_s": READY_S,
    "sum_s": cost_table(reduce_s, [0, 100_000_000]),
}
SMALL = {"sizes": [3, 2], "invert_s": [[1, 1.0]], "send_s": [[1, 9.0]], "ready_s": [0, 1], "sum_s": [[1, 2.0], [2, 3]]}


@pytest.fixture
def run(tmp_path):
    def run(content, *words):
        path = tmp_path / "factors.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return CliRunner().invoke(main, ["plan", "factors", str(path), "--ranks", "64", *words])

    return run


def test_published_factors(run):
    done = run(RESNET50, "--json")
    assert (done.exit_code, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    placement, sums = document["placement"], document["sums"]
    times = placement["makespan_s"]
    assert list(times) == ["planned", "round-robin", "balanced sizes", "all by everybody"]
    assert placement["lower_bound_s"] < min(times.values()) == times["planned"]
    assert sorted(placement["sends"]) == [f for f, owner in enumerate(placement["owners"]) if owner is not None]
    assert min(sums["end_s"].values()) == sums["end_s"]["planned"] == sums["messages"][-1]["end_s"]
    assert sum(message["factors"] for message in sums["messages"]) == 108


def test_tables(run):
    done = run(RESNET50)
    assert done.exit_code == 0
    for text in ("round-robin", "balanced sizes", "all by everybody", "lower bound", "one a factor", "one in all"):
        assert text in done.stdout


def test_without_sums(run):
    done = run({key: SMALL[key] for key in ("sizes", "invert_s", "send_s")}, "--json")
    assert done.exit_code == 0
    assert "sums" not in json.loads(done.stdout)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"sizes": [3, 0]}, "sizes: entry 2 .*whole number.* not 0"),
        ({"sizes": [3, 1.5]}, "sizes: entry 2 .* not 1.5"),
        ({"sizes": [True, 2]}, "sizes: entry 1 .* not True"),
        ({"sizes": [3, 10**10]}, "sizes: entry 2 .* not 10000000000"),
        ({"sizes": []}, "sizes: .*at least one"),
        ({"sizes": 3}, "sizes: must be a list"),
        ({"ready_s": [0]}, "ready_s: 1 times for 2 sizes"),
        ({"ready_s": [0, -1]}, "ready_s: entry 2 .* not -1"),
        ({"ready_s": [0, float("nan")]}, "ready_s: entry 2 .* not nan"),
        ({"invert_s": [[2, 1.0], [1, 1.0]]}, "invert_s: entry 2: size 1 follows 2"),
        ({"send_s": [[1, "fast"]]}, "send_s: entry 1: .*'fast'"),
        ({"send_s": [[1, 10**400]]}, "send_s: entry 1: "),
        ({"send_s": [[1, 2, 3]]}, "send_s: .*pairs"),
        ({"sum_s": []}, "sum_s: .*pairs"),
        ({"sum_s": 7}, "sum_s: .*pairs"),
        ({"more": 7}, "keys sizes, invert_s"),
    ],
)
def test_bad_files(run, change, says):
    done = run(SMALL | change)
    assert (done.exit_code, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "factors.json: " in line
    assert re.search(says, line), line


@pytest.mark.parametrize("content", ["", "[1, 2]", "{", '{"sizes": [1], "invert_s": [[1, 1]]}', "[" * 100_000, "é\0"])
def test_files_of_something_else(run, content):
    done = run(content)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "factors.json: " in done.stderr


def test_bad_arguments(run, tmp_path):
    done = run(SMALL, "--ranks", "0")
    assert done.exit_code == 2
    assert "--ranks" in done.stderr
    done = CliRunner().invoke(main, ["plan", "factors", str(tmp_path / "nowhere"), "--ranks", "2"])
    assert done.exit_code == 2
    assert f"{tmp_path / 'nowhere'}: cannot read" in done.stderr
