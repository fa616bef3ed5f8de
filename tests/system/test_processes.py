"""Workers and an aggregator as processes, joined by a network that the kernel makes: train, fail, resume, examine."""

import json
import random
import re
import signal
import time
from functools import cache

import numpy as np
import pytest
from click.testing import CliRunner
from support.lab import Lab, await_file, finish

from p4sgd.host.cli.app import main

PATIENT = "resend_us = 20000"
"""What is sent again was lost, also on a machine that does much else."""

RUN = ("breast_cancer", "--epochs", "3", "--batch", "32")
LONG = ("digits:3", "--epochs", "100", "--batch", "64")
CLUSTER = ("--device", "cluster", "--cluster", "cluster.toml")
SPARSE = "--config sparse --set slots=4"


@pytest.fixture
def new_lab(tmp_path):
    """Makes labs in the folder of a test."""
    labs = []
    yield lambda *words, **options: labs.append(Lab(tmp_path, *words, **options)) or labs[-1]
    for each in labs:
        each.close()


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """Four workers with nothing wrong."""
    found = Lab(tmp_path_factory.mktemp("lab"), 4, network=PATIENT)
    yield found
    found.close()


@cache
def emulated(*words):
    """Hash of the weights that four emulated workers end with, whom several tests ask for the same."""
    done = CliRunner().invoke(main, ["train", *words, "--workers", "4", "--config", "tiny", "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)["weights_sha256"]


def doctor(lab, status, cluster="cluster.toml"):
    """Findings that are not passed."""
    out, _ = lab.run("doctor", "--device", "cluster", "--cluster", cluster, "--json", status=status)
    return [
        (finding["worker"], finding["check"], finding["problem"])
        for finding in json.loads(out)["findings"]
        if finding["result"] == "failed"
    ]


def write_sparse_data(folder):
    """300 samples of 170 features, of which each has 6."""
    rng = np.random.default_rng(0)
    with (folder / "made.libsvm").open("w") as file:
        for columns in (np.sort(rng.choice(170, 6, replace=False)) for _ in range(300)):
            values = " ".join(f"{column + 1}:{rng.normal():.3f}" for column in columns)
            file.write(f"{int(columns[0] < 20)} {values}\n")
    return ("made.libsvm", "--batch", "32", "--l1", "0.0001", "--staleness", "1")


@pytest.mark.parametrize(("merge", "expected"), [("auto", {1, 2, 3, 4}), ("1", {1}), ("3", {2})])
def test_weights_are_the_emulators(lab, merge, expected):
    """However many micro-batches of a mini-batch of 4 are in a packet; 3 at most are 2 and 2."""
    out, _ = lab.run("train", *RUN, *CLUSTER, "--merge", merge, "--json")
    document = json.loads(out)
    times, micro_batches = document["message_times"], document["packets"]["micro_batches"]
    assert document["packets"]["version"] == 2
    assert micro_batches in expected
    assert (times["messages"][0], sum(times["messages"])) == (micro_batches, 4)
    assert 0 < times["predicted_s"] < times["planning_s"]
    # A mini-batch is a part of its epoch, of which there is one more for each of 18.
    assert 0 < times["measured_s"] < max(epoch["seconds"] for epoch in document["epochs"]) / 18
    assert document["weights_sha256"] == emulated(*RUN)


def test_weights_are_the_emulators_while_workers_pause_and_others_stand_in(seed, new_lab):
    lab, rng = new_lab(4, network="resend_us = 1000"), random.Random(seed)
    training = lab.p4sgd("train", *RUN, *CLUSTER, "--stand-ins", "--json")
    while training.poll() is None:
        process, _ = lab.processes[f"worker{rng.randrange(4)}"]
        for number in (signal.SIGSTOP, signal.SIGCONT):
            process.send_signal(number)
            time.sleep(0.03)
    assert json.loads(finish(training)[0])["weights_sha256"] == emulated(*RUN)


@pytest.mark.slow
def test_sparse_workers_among_dense_ones(new_lab):
    lab = new_lab(
        3,
        config=["tiny", SPARSE, SPARSE],
        entries=["", "share = 4", "share = 2"],
        network=PATIENT,
    )
    run = (*write_sparse_data(lab.folder), "--epochs", "2")
    document = json.loads(lab.run("train", *run, *CLUSTER, "--json")[0])
    assert [worker["sparse"] for worker in document["configuration"]] == [False, True, True]
    dense, first, second = document["units"]
    assert (dense, first + second) == (8, 14), "the dense worker has all units that it holds, with staleness"
    assert first > second, "sparse workers have nonzeros by shares of 4 and 2"
    assert document["weights_sha256"] == lab.weights(*run, "--workers", "1")
    assert doctor(lab, 0) == []
    _, said = lab.run("train", *RUN, *CLUSTER, status=2)
    assert "the scaling standard makes zeros other numbers, and sparse workers keep only what is not 0" in said


# -- failures --------------------------------------------------------------------------------------------------------


def begin_and_break(lab, break_it, *words, job=LONG):
    """A run that something happens to after some epochs."""
    run = lab.p4sgd("train", *job, "--checkpoint", "run.checkpoint", *CLUSTER, *words)
    await_file(lab.folder / "run.checkpoint", run)
    time.sleep(0.3)
    break_it(lab)
    return run


def stop_switch(lab, *, go_on=False):
    lab.processes["switch"][0].send_signal(signal.SIGCONT if go_on else signal.SIGSTOP)


def restart(lab, worker):
    lab.kill(f"worker{worker}")
    lab.start_worker(worker)


IMPATIENT = f"{PATIENT}\nresends = 5\ndoublings = 3"
"""Workers give up after 20 ms · (1 + 2 + 4 + 8 + 8 + 8)."""

BREAKS = {
    "aggregator killed": (
        f"{PATIENT}\nresends = 100\ndoublings = 8",  # it is named long before they give up
        lambda lab: lab.kill("switch"),
        r"the aggregator at unix:switch is gone \(Connection refused\): .* p4sgd switch serve",
        Lab.start_switch,
    ),
    "aggregator stopped": (
        IMPATIENT,
        stop_switch,
        r"the aggregator does not answer worker 0, 1, 2, 3, not even a probe.*\(slot \d+, round \d+\).*"
        "p4sgd doctor --device cluster --cluster cluster.toml says more",
        lambda lab: stop_switch(lab, go_on=True),
    ),
    "worker killed": (
        IMPATIENT,
        lambda lab: lab.kill("worker2"),
        "worker 2 at unix:worker2 is gone",
        lambda lab: lab.start_worker(2),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BREAKS)
def test_what_ends_a_run_is_named_and_it_goes_on_with_another(new_lab, name):
    network, break_it, says, repair = BREAKS[name]
    lab = new_lab(4, network=network)
    _, said = finish(begin_and_break(lab, break_it, "--on-loss", "stop"), 1)
    assert re.search(says, said, re.DOTALL), said
    repair(lab)
    epochs = str(int(re.search(r"state after epoch (\d+)", said).group(1)) + 2)
    got = lab.weights("--resume", "run.checkpoint", "--epochs", epochs)
    assert got == emulated(*LONG[:1], "--epochs", epochs, *LONG[3:5])


CHANGES = {
    "killed": (2, lambda lab: lab.kill("worker2"), ["instead of 4: worker 2 at unix:worker2 is gone"], {}),
    "cable": (
        2,
        lambda lab: lab.set_link(2, "down"),
        [r"\d+ is trained by 3 workers instead of 4: worker 2 at \S*worker2 no longer answers"],
        {},
    ),
    "restarted": (
        1,
        lambda lab: restart(lab, 1),
        ["instead of 4: worker 1 ", "4 workers, 1 of them new: worker 1 at unix:"],
        {},
    ),
    "late": (
        3,
        lambda lab: lab.start_worker(3),
        ["4 workers, 1 of them new: worker 3 at unix:"],
        {"entries": ["share = 2", "", "", "late = true"], "absent": {3}},
    ),
    "sparse": (
        0,
        lambda lab: restart(lab, 0),
        ["instead of 4: worker 0 ", "4 workers, 1 of them new: worker 0 at"],
        {"config": [SPARSE, SPARSE, "tiny", "tiny"]},
    ),
}
"""Worker, what happens to it, what is said of it, and options of the lab."""


def test_a_stand_in_ends_the_epoch_in_place_of_a_worker_that_is_killed(new_lab):
    """No epoch is done again; the others share its features from the next one on."""
    lab = new_lab(4, network=PATIENT, speed=1e5)  # an epoch takes half a second or more
    job = ("digits:3", "--epochs", "3", "--batch", "64", "--tolerance", "0")
    words = ("--stand-ins", "--json", "--quiet")
    document = json.loads(finish(begin_and_break(lab, lambda lab: lab.kill("worker2"), *words, job=job))[0])
    said = [remark for remark in document["remarks"] if "trained by" in remark]
    assert len(said) == 1
    assert said[0].startswith("epoch 3 is trained by 3 workers instead of 4: worker 2 at")
    assert document["weights_sha256"] == emulated(*job)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_the_others_take_over_from_a_worker_until_it_comes(new_lab, name):
    worker, change, says, options = CHANGES[name]
    lab = new_lab(4, network=IMPATIENT, **options)
    job = (*LONG, "--tolerance", "0") if name == "late" else LONG  # it takes a while to start
    job = (*write_sparse_data(lab.folder), "--epochs", "200") if name == "sparse" else job
    out, said = finish(begin_and_break(lab, change, "--json", "--quiet", job=job))
    document = json.loads(out)
    remarks = [remark for remark in document["remarks"] if f"worker {worker}" in remark]
    for wanted in says:
        assert any(re.search(wanted, remark) for remark in remarks), document["remarks"]
    assert f"warning: {remarks[0]}" in said, "quiet leaves out no warnings"
    if name == "late":
        assert sum(document["units"]) == 9
        assert document["units"][0] in (3, 4), "of 9 units, by a share of 2 in 5"
    expected = lab.weights(*job) if name == "sparse" else emulated(*job)
    assert document["weights_sha256"] == expected


@pytest.mark.slow
def test_workers_of_several_sizes(new_lab):
    lab = new_lab(3, config=["u50", "u280", "u50"], network=PATIENT)
    for words in ((), ("--shares", "auto")):
        assert lab.weights(*RUN, *CLUSTER, *words) == emulated(*RUN)


# -- what is found ---------------------------------------------------------------------------------------------------


def test_the_doctor_finds_what_is_wrong_and_says_which_version_is_used(lab):
    findings = json.loads(lab.run("doctor", *CLUSTER, "--json")[0])["findings"]
    assert not [finding for finding in findings if finding["result"] == "failed"]
    (packets,) = (finding["evidence"] for finding in findings if finding["check"] == "packets")
    assert (packets["version"], packets["micro_batches"]) == (2, 46)
    lab.set_link(1, "down")
    try:
        ((worker, check, problem),) = doctor(lab, 1)
    finally:
        lab.set_link(1, "up")
    assert (worker, check) == (1, "link")
    assert "the way up is dead" in problem
    lab.write_cluster(name="wrong.toml", ports=[0, 2, 1, 3], network=PATIENT)
    found = doctor(lab, 1, "wrong.toml")
    assert [(worker, check) for worker, check, _ in found] == [(1, "settings"), (2, "settings")]
    for worker, _, problem in found:
        assert re.search(rf"port {worker}\b.* shard {worker}\b", problem)
