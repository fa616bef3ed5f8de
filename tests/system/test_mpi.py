"""Ranks of MPI train together as one process does, and fail together."""

import json
import os
import re
import signal
import socket
import time

import pytest
from click.testing import CliRunner
from support.data_files import make_dataset
from support.mpi import descendants, needs_mpi, started, train

from p4sgd.host.cli.app import main
from p4sgd.host.data.synth import write_dataset
from p4sgd.host.training import load_checkpoint

pytestmark = needs_mpi

PATIENCE_S = 120


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "rcv1.libsvm"
    write_dataset(make_dataset("rcv1", scale=0.02), path)
    return path


def until(condition):
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize(("merge", "messages"), [("auto", None), ("3", [3, 3, 2])])
def test_messages_are_planned_or_given(data, merge, messages):
    """How many micro-batches travel in one; what it takes is predicted and measured."""
    words = (data, "--epochs", 2, "--batch", 64, "--json")
    status, one, _ = train(*words, ranks=1)
    assert status == 0
    assert json.loads(one)["options"]["workers"] == 1
    assert json.loads(one)["message_times"] is None
    status, two, err = train(*words, "--merge", merge, ranks=2)
    assert (status, err) == (0, [])
    assert json.loads(two)["weights_sha256"] == json.loads(one)["weights_sha256"]
    times = json.loads(two)["message_times"]
    assert times["messages"] == messages or (messages is None and sum(times["messages"]) == 8)
    assert min(times[name] for name in ("predicted_s", "one_message_s", "measured_s", "planning_s")) > 0


@pytest.mark.parametrize("words", [(), ("--parallel", "data", "--split", "512")], ids=["model", "data"])
def test_ranks_train_on_a_prepared_folder(data, words, tmp_path):
    """Units are dealt to other workers than it was prepared for."""
    options = ["--workers", 2] if not words else []
    prepare = ["data", "prepare", data, "--out", tmp_path / "made", "--batch", 64, *options]
    done = CliRunner().invoke(main, list(map(str, prepare)))
    assert done.exit_code == 0, done.output
    run = (tmp_path / "made", "--epochs", 2, "--json")
    status, several, err = train(*run, *words, ranks=3)
    assert status == 0, err
    assert err.count("checking files") == 1, "told once"
    document = json.loads(several)
    assert document["weights_sha256"] == json.loads(train(*run)[1])["weights_sha256"]
    if words:
        counted = document["epochs"][-1]["counters"]
        assert len(counted) == 3
        assert all(rank["BYTES_SENT"] for rank in counted)


def test_what_all_ranks_find_is_told_once(data, tmp_path):
    lines = data.read_text().splitlines()
    lines[-1] = "1 7:seven"
    bad = tmp_path / "bad.libsvm"
    bad.write_text("\n".join(lines))
    for path, wrong in {"missing.libsvm": "", bad: f"line {len(lines)}: the value of feature 7 is 'seven'"}.items():
        status, out, (line,) = train(path, ranks=3)
        assert (status, out) == (2, "")
        assert f"{path}" in line
        assert wrong in line


@pytest.mark.slow
def test_ctrl_c_ends_all_ranks_and_the_run_goes_on(data, tmp_path):
    state, model = tmp_path / "state", tmp_path / "model"
    words = (data, "--epochs", 100_000, "--batch", 64, "--checkpoint", state, "--out", model, "--json")
    with started(*words, ranks=2) as process:
        until(lambda: state.exists() or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, err
    assert err.count("interrupted after epoch") == 1
    assert "mpiexec -n 2 p4sgd train --resume" in err
    done = json.loads(out.splitlines()[-1])  # after what mpiexec says
    assert done["stopped"] == "interrupted"
    assert model.exists()
    check_resumed(data, state, len(done["epochs"]) + 2)


def check_resumed(data, state, epochs):
    """Two ranks go on from a checkpoint, to the weights of one process."""
    status, resumed, err = train("--resume", state, "--epochs", epochs, "--json", ranks=2)
    assert status == 0, err
    _, whole, _ = train(data, "--epochs", epochs, "--batch", 64, "--json")
    assert json.loads(resumed)["weights_sha256"] == json.loads(whole)["weights_sha256"]


@pytest.mark.parametrize("parallel", ["model", pytest.param("data", marks=pytest.mark.slow)])
def test_a_killed_rank_ends_the_job_and_fewer_go_on(data, parallel, tmp_path):
    """A rank that is killed cannot say so, and mpiexec kills the others: what a user is told is mpiexec's.

    Open MPI names the rank. MPICH 5.0 only tells a process, which may be one that it has killed itself (3 of 12 times).
    """
    state = tmp_path / "state"
    words = (data, "--epochs", 100_000, "--batch", 64, "--checkpoint", state, "--quiet", "--parallel", parallel)
    with started(*words, ranks=3) as process:
        until(lambda: state.exists() or process.poll() is not None)
        ranks = descendants(process, "--launcher")
        assert len(ranks) == 3
        os.kill(ranks[1], signal.SIGKILL)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode != 0
    said = " ".join((out + err).split())
    told = re.search(r"(rank \d+ with )?PID (\d+) (?:on node|RUNNING AT) (\S+)", said)
    assert told, said
    rank, named, host = told.groups()
    assert int(named) in ranks, said
    assert rank is None or (rank, int(named)) == ("rank 1 with ", ranks[1]), said
    assert host.split(".")[0] == socket.gethostname().split(".")[0], said
    assert "signal 9" in said, said
    assert not [rank for rank in ranks if os.path.exists(f"/proc/{rank}")]
    check_resumed(data, state, load_checkpoint(state).states[0].epoch + 1)
