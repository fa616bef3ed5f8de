"""Ranks of MPI that drive a worker of a real network each: the aggregator is told by the first."""

import json
import re
import signal
import time

import pytest
from support.lab import Lab, await_file
from support.loopback import loopback
from support.mpi import needs_mpi, started, train
from support.switch import serving

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
    status, out, err, _ = train(*words, "--json", **options)
    assert status == 0, err
    return json.loads(out)["weights_sha256"]


@pytest.mark.parametrize("loss", [0, pytest.param(0.05, marks=pytest.mark.slow)])
def test_ranks_may_be_workers_themselves(loss, new_lab):
    """Also if the switch loses frames of hot columns."""
    words = ("breast_cancer", "--scaling", "maxabs", "--epochs", 2, "--batch", 32)
    expected = weights(*words)
    faults = list(map(str, (5, loss, loss, 1000))) if loss else None
    lab = new_lab(ranks=True, faults=faults, network="resend_us = 20000")
    run = lab.p4sgd("train", *words, "--parallel", "data", "--split", 16, *CLUSTER, "--json")
    out, err = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 0, err
    document = json.loads(out)
    assert document["weights_sha256"] == expected
    rows = -(-569 // 32) * (16 // 8 + 1)  # in every mini-batch those of hot columns, and one more
    assert [rank["ROWS"] for rank in document["epochs"][-1]["counters"]] == [rows] * RANKS


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
    status, _, err, _ = train("breast_cancer", *CLUSTER, ranks=RANKS + 1, cwd=tmp_path)
    assert status == 2
    (line,) = err
    assert re.search(rf"cluster file has {RANKS} workers, not {RANKS + 1}$", line)


@pytest.mark.slow
def test_ranks_that_are_workers_notice_that_the_switch_has_ended(new_lab):
    words = ("digits:3", "--scaling", "maxabs", "--epochs", 5000, "--checkpoint", "state", "--quiet", *CLUSTER)
    lab = new_lab(ranks=True, network="resend_us = 20000")
    run = lab.p4sgd("train", *words, "--parallel", "data", "--split", 16)
    await_file(lab.folder / "state", run)
    lab.kill("switch")
    _, err = run.communicate(timeout=PATIENCE_S / 2)  # they would resend for 120 s
    assert run.returncode == 1, err
    assert "p4sgd train, rank 0: the aggregator at unix:switch is gone (Connection refused)" in err


@pytest.mark.slow
@pytest.mark.parametrize("by", [None, signal.SIGINT, signal.SIGTERM], ids=str)
def test_ranks_that_are_workers_may_send_in_udp_and_be_interrupted_as_they_wait(tmp_path, by):
    """Which needs no root. The switch is stopped, and they would resend for ever."""
    switch, *hosts = (f"{loopback(1)}:{port}" for port in (51200, 51201, 51202))
    file = (
        f'[aggregator]\nkind = "socket"\ncontrol = "unix:aggregator"\nudp = "{switch}"\n'
        "[network]\nresend_us = 20000\nresends = 0\n"
    )
    file += "".join(f'[[workers]]\ninterface = "udp:{host}"\nport = 0\n' for host in hosts)
    (tmp_path / "cluster.toml").write_text(file)
    parallel = (*CLUSTER, "--parallel", "data", "--split", 16)
    with serving(None, tmp_path, [f"udp:{switch}"]) as (aggregator, control):
        if by is None:
            words = ("breast_cancer", "--scaling", "maxabs", "--epochs", 2, "--batch", 32)
            assert weights(*words, *parallel, ranks=RANKS, cwd=tmp_path) == weights(*words)
            assert control.counters()["FULLS_TO_ALL"] > 0
            return
        try:
            words = ("digits:3", "--scaling", "maxabs", "--epochs", 5000, "--checkpoint", "state", "--quiet")
            with started(*words, *parallel, ranks=RANKS, cwd=tmp_path) as run:
                await_file(tmp_path / "state", run)
                aggregator.send_signal(signal.SIGSTOP)
                time.sleep(1)  # until they wait
                run.send_signal(by)
                try:
                    _, err = run.communicate(timeout=PATIENCE_S / 2)
                finally:
                    run.kill()
        finally:
            aggregator.send_signal(signal.SIGCONT)
    assert run.returncode == 130, err
    assert re.search("p4sgd train.*: interrupted while it waited for the aggregator", err)
    assert f"mpiexec -n {RANKS} p4sgd train --resume state" in err
