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
def lab(tmp_path):
    """Workers that take what is sent again for lost, also on a machine that does much else."""
    found = Lab(tmp_path, RANKS, network="resend_us = 20000\nresends = 6")
    yield found
    found.close()


def weights(*words, **options):
    status, out, err, _ = train(*words, "--json", **options)
    assert status == 0, err
    return json.loads(out)["weights_sha256"]


def in_the_middle(lab, do_it):
    """A run to which something happens after some epochs: its exit status and standard error."""
    words = ("digits:3", "--epochs", 5000, "--batch", 64, "--checkpoint", "state", "--quiet", *CLUSTER)
    with started(*words, ranks=RANKS, cwd=lab.folder) as process:
        await_file(lab.folder / "state", process)
        do_it(process)
        _, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, err


@pytest.mark.slow
def test_a_rank_may_drive_a_sparse_worker(tmp_path):
    lab = Lab(tmp_path, RANKS, config=["tiny", "--sparse --slots 4"], network="resend_us = 20000")
    try:
        words = ("breast_cancer", "--scaling", "maxabs", "--epochs", 3, "--batch", 32)
        assert weights(*words, *CLUSTER, ranks=RANKS, cwd=lab.folder) == weights(*words)
    finally:
        lab.close()


@pytest.mark.parametrize("loss", [0, pytest.param(0.05, marks=pytest.mark.slow)])
def test_ranks_may_be_workers_themselves(loss, tmp_path):
    """Also if the switch loses frames of hot columns."""
    words = ("breast_cancer", "--scaling", "maxabs", "--epochs", 2, "--batch", 32)
    expected = weights(*words)
    faults = list(map(str, (5, loss, loss, 1000))) if loss else None
    lab = Lab(tmp_path, RANKS, ranks=True, faults=faults, network="resend_us = 20000")
    try:
        run = lab.p4sgd("train", *words, "--parallel", "data", "--split", 16, *CLUSTER, "--json")
        out, err = run.communicate(timeout=PATIENCE_S)
        assert run.returncode == 0, err
        document = json.loads(out)
        assert document["weights_sha256"] == expected
        rows = -(-569 // 32) * (16 // 8 + 1)  # in every mini-batch those of hot columns, and one more
        assert [rank["ROWS"] for rank in document["epochs"][-1]["counters"]] == [rows] * RANKS
    finally:
        lab.close()


@pytest.mark.slow
def test_a_worker_that_is_killed_is_named_once(lab):
    status, err = in_the_middle(lab, lambda process: lab.kill("worker1"))
    assert status == 1
    assert err.count("worker 1 at unix:worker1 is gone") == 1, err
    assert "mpiexec -n 2 p4sgd train --resume state" in err


@pytest.mark.slow
def test_ctrl_c_ends_the_runs_of_all_workers_and_others_begin(lab):
    status, err = in_the_middle(lab, lambda process: process.send_signal(signal.SIGINT))
    assert status == 130, err
    assert err.count("interrupted after epoch") == 1
    words = ("breast_cancer", "--epochs", 1, "--batch", 32)
    assert weights(*words, *CLUSTER, ranks=RANKS, cwd=lab.folder) == weights(
        *words, "--workers", RANKS, "--config", "tiny"
    )


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
def test_ranks_that_are_workers_notice_that_the_switch_has_ended(tmp_path):
    words = ("digits:3", "--scaling", "maxabs", "--epochs", 5000, "--checkpoint", "state", "--quiet", *CLUSTER)
    lab = Lab(tmp_path, RANKS, ranks=True, network="resend_us = 20000")
    try:
        run = lab.p4sgd("train", *words, "--parallel", "data", "--split", 16)
        await_file(tmp_path / "state", run)
        lab.kill("switch")
        _, err = run.communicate(timeout=PATIENCE_S / 2)  # they would resend for 120 s
        assert run.returncode == 1, err
        assert "p4sgd train, rank 0: the aggregator at unix:switch is gone (Connection refused)" in err
    finally:
        lab.close()


def udp_ranks(folder):
    """Write a cluster file of ranks that send in UDP, which needs no root; returns the aggregator's address."""
    switch, *hosts = (f"{loopback(1)}:{port}" for port in (51200, 51201, 51202))
    file = (
        f'[aggregator]\nkind = "socket"\ncontrol = "unix:aggregator"\nudp = "{switch}"\n'
        "[network]\nresend_us = 20000\nresends = 0\n"
    )
    file += "".join(f'[[workers]]\ninterface = "udp:{host}"\nport = 0\n' for host in hosts)
    (folder / "cluster.toml").write_text(file)
    return switch


@pytest.mark.slow
def test_ranks_that_are_workers_may_send_in_udp(tmp_path):
    switch = udp_ranks(tmp_path)
    words = ("breast_cancer", "--scaling", "maxabs", "--epochs", 2, "--batch", 32)
    with serving(None, tmp_path, [f"udp:{switch}"]) as (_, control):
        got = weights(*words, *CLUSTER, "--parallel", "data", ranks=RANKS, cwd=tmp_path)
        assert control.counters()["FULLS_TO_ALL"] > 0
    assert got == weights(*words)


@pytest.mark.slow
@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM], ids=lambda by: by.name)
def test_ranks_that_wait_for_a_paused_switch_can_be_interrupted(tmp_path, by):
    switch = udp_ranks(tmp_path)
    words = ("digits:3", "--scaling", "maxabs", "--epochs", 5000, "--checkpoint", "state", "--quiet", *CLUSTER)
    with serving(None, tmp_path, [f"udp:{switch}"]) as (aggregator, _):
        try:
            with started(*words, "--parallel", "data", "--split", 16, ranks=RANKS, cwd=tmp_path) as run:
                await_file(tmp_path / "state", run)
                aggregator.send_signal(signal.SIGSTOP)
                time.sleep(1)  # until they wait
                run.send_signal(by)
                try:
                    _, err = run.communicate(timeout=PATIENCE_S / 2)  # they would resend for ever
                finally:
                    run.kill()
        finally:
            aggregator.send_signal(signal.SIGCONT)
    assert run.returncode == 130, err
    assert re.search("p4sgd train.*: interrupted while it waited for the aggregator", err)
    assert f"mpiexec -n {RANKS} p4sgd train --resume state" in err
