"""Ranks of MPI that drive a worker of a real network each: the aggregator is told by the first."""

import json
import re
import signal

import pytest
from support.lab import Lab, await_file
from support.mpi import needs_mpi, started, train

pytestmark = needs_mpi

PATIENCE_S = 120
RANKS = 2
CLUSTER = ("--device", "cluster", "--cluster", "cluster.toml")


@pytest.fixture
def new_lab(tmp_path):
    """Makes labs whose workers take what is sent again for lost, also on a machine that does much else."""
    labs = []
    network = "resend_us = 20000\nresends = 6"
    yield lambda **options: labs.append(Lab(tmp_path, RANKS, **{"network": network} | options)) or labs[-1]
    for each in labs:
        each.close()


def weights(*words, **options):
    status, out, err = train(*words, "--json", **options)
    assert status == 0, err
    return json.loads(out)["weights_sha256"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("break_it", "status", "says"),
    [
        (lambda lab, run: lab.kill("worker1"), 1, "worker 1 at unix:worker1 is gone"),
        (lambda lab, run: run.send_signal(signal.SIGINT), 130, "interrupted after epoch"),
    ],
    ids=["killed", "Ctrl-C"],
)
def test_what_ends_a_run_is_told_once_and_others_begin(new_lab, break_it, status, says):
    """One of the workers is sparse."""
    lab = new_lab(config=["tiny", "--config sparse --set slots=4"])
    words = ("digits:3", "--epochs", 5000, "--batch", 64, "--scaling", "maxabs", "--checkpoint", "state", "--quiet")
    with started(*words, *CLUSTER, ranks=RANKS, cwd=lab.folder) as run:
        await_file(lab.folder / "state", run)
        break_it(lab, run)
        _, err = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == status, err
    assert err.count(says) == 1, err
    assert "mpiexec -n 2 p4sgd train --resume state" in err
    if "worker1" not in lab.processes:
        lab.start_worker(1)
    words = ("breast_cancer", "--scaling", "maxabs", "--epochs", 1, "--batch", 32)
    assert weights(*words, *CLUSTER, ranks=RANKS, cwd=lab.folder) == weights(*words)


def test_as_many_ranks_as_workers(tmp_path):
    """What the file says is wrong is found before anything is connected."""
    lines = ["[aggregator]", 'kind = "socket"', 'control = "unix:switch"']
    for port in range(RANKS):
        lines += ["[[workers]]", f'control = "unix:worker{port}"', f"port = {port}"]
    (tmp_path / "cluster.toml").write_text("\n".join(lines))
    status, _, err = train("breast_cancer", *CLUSTER, ranks=RANKS + 1, cwd=tmp_path)
    assert status == 2
    (line,) = err
    assert re.search(rf"cluster file has {RANKS} workers, not {RANKS + 1}$", line)
