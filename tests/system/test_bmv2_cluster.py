"""Workers as processes around BMv2, which runs the P4 program."""

import contextlib
import json
import re
import shutil
import signal
import time

import pytest
from support.lab import Lab, await_file, finish

from p4sgd.build.generate.switch_program import COMPILER_VARIABLE, build, find_compiler
from p4sgd.hw.spec.aggregator import AggregatorConfig

pytestmark = pytest.mark.slow

_LIMIT_S = 300
CLUSTER = ("--cluster", "cluster.toml")


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A lab of four workers, and a switch with its program."""
    folder = tmp_path_factory.mktemp("lab")
    for tool in ("simple_switch_grpc", "ethtool"):
        if not shutil.which(tool):
            pytest.skip(f"{tool} is not on the path")
    if not find_compiler():
        pytest.skip(f"p4c-bm2-ss is not on the path, nor is it named by {COMPILER_VARIABLE}")
    build("bmv2", AggregatorConfig(slots=256, jobs=2), folder / "bmv2")
    with contextlib.closing(Lab(folder, 4, network="resend_us = 100000", bmv2=True)) as found:
        found.run("switch", "deploy", *CLUSTER)
        yield found


def test_weights_are_the_emulators(lab):
    assert "the cluster can train" in lab.run("doctor", "--device", "cluster", *CLUSTER)[0]
    run = ("train", "breast_cancer", "--epochs", "2", "--batch", "32", "--json")
    trained = json.loads(lab.run(*run, "--device", "cluster", *CLUSTER)[0])
    emulated = json.loads(lab.run(*run, "--workers", "4", "--config", "tiny")[0])
    assert trained["weights_sha256"] == emulated["weights_sha256"]
    counters = json.loads(lab.run("switch", "counters", *CLUSTER, "--json")[0])["counters"]
    assert counters["FULLS_TO_ALL"] >= 2 * 18 * 4, "one for each micro-batch, and those of the doctor"
    assert not [name for name, count in counters.items() if name.startswith("DROPPED") and count]


def test_the_status_of_a_hung_job_names_the_shard(lab):
    job = ("train", "digits:3", "--epochs", "200", "--batch", "64", "--checkpoint", "run.checkpoint")
    run = lab.p4sgd(*job, "--device", "cluster", *CLUSTER)
    worker, _ = lab.processes["worker2"]
    limit = time.monotonic() + _LIMIT_S
    try:
        await_file(lab.folder / "run.checkpoint", run)
        time.sleep(1)  # until the next epoch is under way
        worker.send_signal(signal.SIGSTOP)
        time.sleep(1)  # until the others wait for it
        said = ""
        while "shard 2" not in said:
            assert run.poll() is None, run.communicate()
            assert time.monotonic() < limit, said
            said = lab.run("switch", "status", *CLUSTER)[0]
        lacks = "(no partials have arrived from|the sums are not acknowledged by)"  # as it was doing when it stopped
        assert re.search(rf"job \d+, slots? \d+( to \d+)?, round \d+: {lacks} shard 2 \(", said), said
        assert "shard 1" not in said
    finally:
        worker.send_signal(signal.SIGCONT)
        run.send_signal(signal.SIGINT)
    finish(run, 130)
