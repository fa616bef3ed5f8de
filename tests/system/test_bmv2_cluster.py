"""Workers as processes around BMv2, which runs the P4 program."""

import contextlib
import json
import re
import shutil
import signal
import time

import pytest
from support.lab import Lab
from support.mpi import needs_mpi, train

from p4sgd.build.generate.switch_program import COMPILER_VARIABLE, build, find_compiler
from p4sgd.hw.spec.aggregator import AggregatorConfig

pytestmark = pytest.mark.slow

_LIMIT_S = 300
CLUSTER = ("--cluster", "cluster.toml")


def end(process, status=0):
    out, err = process.communicate(timeout=_LIMIT_S)
    assert process.returncode == status, out + err
    return out


@contextlib.contextmanager
def deployed(folder, **options):
    """A lab whose switch has its program."""
    for tool in ("simple_switch_grpc", "ethtool"):
        if not shutil.which(tool):
            pytest.skip(f"{tool} is not on the path")
    if not find_compiler():
        pytest.skip(f"p4c-bm2-ss is not on the path, nor is it named by {COMPILER_VARIABLE}")
    build("bmv2", AggregatorConfig(slots=256, jobs=2), folder / "bmv2")
    with contextlib.closing(Lab(folder, 4, network="resend_us = 100000", bmv2=True, **options)) as found:
        end(found.p4sgd("switch", "deploy", *CLUSTER))
        yield found


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """Four workers, and the switch."""
    with deployed(tmp_path_factory.mktemp("lab")) as found:
        yield found


@needs_mpi
def test_ranks_have_it_add_hot_columns(tmp_path):
    run = ("train", "breast_cancer", "--scaling", "maxabs", "--epochs", "2", "--batch", "32", "--json")
    with deployed(tmp_path, ranks=True) as found:
        trained = json.loads(
            end(found.p4sgd(*run, "--parallel", "data", "--split", "16", "--device", "cluster", *CLUSTER))
        )
    _, emulated, _, _ = train(*run[1:])
    assert trained["weights_sha256"] == json.loads(emulated)["weights_sha256"]


def test_weights_are_the_emulators(lab):
    assert "the cluster can train" in end(lab.p4sgd("doctor", "--device", "cluster", *CLUSTER))
    run = ("train", "breast_cancer", "--epochs", "2", "--batch", "32", "--json")
    trained = json.loads(end(lab.p4sgd(*run, "--device", "cluster", *CLUSTER)))
    emulated = json.loads(end(lab.p4sgd(*run, "--workers", "4", "--config", "tiny")))
    assert trained["weights_sha256"] == emulated["weights_sha256"]
    counters = json.loads(end(lab.p4sgd("switch", "counters", *CLUSTER, "--json")))["counters"]
    assert counters["FULLS_TO_ALL"] >= 2 * 18 * 4, "one for each micro-batch, and those of the doctor"
    assert not [name for name, count in counters.items() if name.startswith("DROPPED") and count]


def test_the_status_of_a_hung_job_names_the_shard(lab):
    job = ("train", "digits:3", "--epochs", "200", "--batch", "64", "--checkpoint", "run.checkpoint")
    run = lab.p4sgd(*job, "--device", "cluster", *CLUSTER)
    worker, _ = lab.processes["worker2"]
    limit = time.monotonic() + _LIMIT_S
    try:
        while not (lab.folder / "run.checkpoint").exists():
            assert run.poll() is None, run.communicate()
            assert time.monotonic() < limit
            time.sleep(0.05)
        time.sleep(1)  # until the next epoch is under way
        worker.send_signal(signal.SIGSTOP)
        time.sleep(1)  # until the others wait for it
        said = ""
        while "shard 2" not in said:
            assert run.poll() is None, run.communicate()
            assert time.monotonic() < limit, said
            said = end(lab.p4sgd("switch", "status", *CLUSTER))
        lacks = "(no partials have arrived from|the sums are not acknowledged by)"  # as it was doing when it stopped
        assert re.search(rf"job \d+, slots? \d+( to \d+)?, round \d+: {lacks} shard 2 \(", said), said
        assert "shard 1" not in said
    finally:
        worker.send_signal(signal.SIGCONT)
        run.send_signal(signal.SIGINT)
    end(run, 130)
