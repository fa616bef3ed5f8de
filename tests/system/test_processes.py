"""Workers and an aggregator as processes, joined by a network that the kernel makes: train, fail, resume, examine."""

import json
import re
import signal
import time
from functools import cache

import numpy as np
import pytest
from click.testing import CliRunner
from support.bench import default_seed
from support.lab import Lab, await_file, finish

from p4sgd.host.cli.app import main
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.sim.cluster.build import build_single_worker

PATIENT = "resend_us = 20000"
"""What is sent again was lost, also on a machine that does much else."""


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """Four workers with nothing wrong."""
    found = Lab(tmp_path_factory.mktemp("lab"), 4, network=PATIENT)
    yield found
    found.close()


RUN = ("breast_cancer", "--epochs", "3", "--batch", "32")
CLUSTER = ("--device", "cluster", "--cluster", "cluster.toml")


@cache
def emulated(*words):
    """Hash of the weights that four emulated workers end with, whom several tests ask for the same."""
    done = CliRunner().invoke(main, ["train", *words, "--workers", "4", "--config", "tiny", "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)["weights_sha256"]


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


@pytest.mark.parametrize(("merge", "packets"), [pytest.param("1", 4 * 4, marks=pytest.mark.slow), ("auto", 4)])
def test_weights_are_the_emulators_whatever_the_network_does(seed, tmp_path, merge, packets):
    """Four packets for each worker and AllReduce; a mini-batch has as many of these as ``merge`` makes, or more."""
    lab = Lab(tmp_path, 4, faults=map(str, (seed, 0.05, 0.05, 1000)))
    try:
        got = lab.weights(*RUN, *CLUSTER, "--merge", merge)
        time.sleep(0.5)
        assert got == emulated(*RUN)
        counts = json.loads((tmp_path / "relay.json").read_text())
        assert counts["packets"] > 3 * 18 * 4 * packets
        assert min(counts["lost"], counts["duplicated"], counts["reordered"]) > packets, counts
    finally:
        lab.close()


LONG = ("digits:3", "--epochs", "100", "--batch", "64", "--checkpoint", "run.checkpoint")


def begin_and_break(lab, break_it, *words, job=LONG):
    """A run that something happens to after some epochs."""
    run = lab.p4sgd("train", *job, *CLUSTER, *words)
    await_file(lab.folder / "run.checkpoint", run)
    time.sleep(0.3)
    break_it()
    return run


def fail_in_the_middle(lab, break_it):
    """Output of a run that ends because of what happens to it."""
    return finish(begin_and_break(lab, break_it, "--on-loss", "stop"), 1)[1]


def resumed(lab):
    """The hash of a run that goes on to a few epochs more, and that of one that was never stopped."""
    done = int(re.search(r"state after epoch (\d+)", lab.said).group(1))
    epochs = str(done + 2)
    got = lab.weights("--resume", "run.checkpoint", "--epochs", epochs)
    return got, emulated(*LONG[:1], "--epochs", epochs, *LONG[3:5])


@pytest.fixture
def own_lab(tmp_path):
    """Four workers that give up after 20 ms · (1 + 2 + 4 + 8 + 8 + 8)."""
    found = Lab(tmp_path, 4, network=f"{PATIENT}\nresends = 5\ndoublings = 3")
    yield found
    found.close()


@pytest.mark.slow
def test_an_aggregator_that_is_killed_is_named_and_the_run_goes_on_with_another(tmp_path):
    """Long before its workers give up."""
    lab = Lab(tmp_path, 4, network=f"{PATIENT}\nresends = 100\ndoublings = 8")
    try:
        lab.said = fail_in_the_middle(lab, lambda: lab.kill("switch"))
        assert re.search(
            r"the aggregator at unix:switch is gone \(Connection refused\): .* p4sgd switch serve", lab.said
        )
        lab.start_switch()
        got, wanted = resumed(lab)
        assert got == wanted
    finally:
        lab.close()


@pytest.mark.slow
def test_an_aggregator_that_stops_for_too_long_is_not_heard(own_lab):
    switch, _ = own_lab.processes["switch"]
    own_lab.said = fail_in_the_middle(own_lab, lambda: switch.send_signal(signal.SIGSTOP))
    switch.send_signal(signal.SIGCONT)
    assert "the aggregator does not answer worker 0, 1, 2, 3, not even a probe" in own_lab.said
    assert re.search(r"\(slot \d+, round \d+\)", own_lab.said)
    assert "p4sgd doctor --device cluster --cluster cluster.toml says more" in own_lab.said
    got, wanted = resumed(own_lab)
    assert got == wanted


@pytest.mark.slow
def test_a_worker_that_is_killed_is_named_and_the_run_goes_on_with_another(own_lab):
    own_lab.said = fail_in_the_middle(own_lab, lambda: own_lab.kill("worker2"))
    assert "worker 2 at unix:worker2 is gone" in own_lab.said
    own_lab.start_worker(2)
    got, wanted = resumed(own_lab)
    assert got == wanted


@pytest.mark.slow
@pytest.mark.parametrize(
    ("break_it", "says"),
    [
        (lambda lab: lab.kill("worker2"), "worker 2 at unix:worker2 is gone"),
        (lambda lab: lab.set_link(2, "down"), r"worker 2 at \S*worker2 no longer answers"),
    ],
    ids=["killed", "cable"],
)
def test_the_others_take_over_from_a_worker_that_is_lost(own_lab, break_it, says):
    run = begin_and_break(own_lab, lambda: break_it(own_lab), "--json", "--quiet")
    out, said = finish(run)
    document = json.loads(out)
    (remark,) = [remark for remark in document["remarks"] if "worker 2" in remark]
    assert re.search(rf"epoch \d+ is trained by 3 workers instead of 4: {says}", remark)
    assert said.startswith(f"warning: {remark}"), "quiet leaves out no warnings"
    assert document["weights_sha256"] == emulated(*LONG[:5])


@pytest.mark.slow
def test_a_worker_that_comes_later_takes_part(tmp_path):
    lab = Lab(tmp_path, 4, network=PATIENT, entries=["share = 2", "", "", "late = true"], absent={3})
    try:
        run = begin_and_break(lab, lambda: lab.start_worker(3), "--json")
        document = json.loads(finish(run)[0])
        assert any("4 workers, 1 of them new: worker 3 at unix:" in remark for remark in document["remarks"])
        assert sum(document["units"]) == 9
        assert document["units"][0] in (3, 4), "of 9 units, by a share of 2 in 5"
        assert document["weights_sha256"] == emulated(*LONG[:5])
    finally:
        lab.close()


def restart(lab, worker):
    lab.kill(f"worker{worker}")
    lab.start_worker(worker)


@pytest.mark.slow
def test_a_worker_that_is_started_again_takes_part_again(own_lab):
    document = json.loads(finish(begin_and_break(own_lab, lambda: restart(own_lab, 1), "--json"))[0])
    assert [remark for remark in document["remarks"] if "instead of 4: worker 1 " in remark]
    assert [remark for remark in document["remarks"] if "4 workers, 1 of them new: worker 1 at unix:" in remark]
    assert document["weights_sha256"] == emulated(*LONG[:5])


@pytest.mark.rtl
@pytest.mark.slow
def test_workers_of_verilog_beside_emulated_ones(tmp_path, monkeypatch):
    """They train, are examined, give up about when the others do, and leave nothing."""
    build_single_worker(WorkerConfig.tiny())  # here, because no worker that starts is waited for so long
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    lab = Lab(tmp_path, 4, rtl=2, network=f"{PATIENT}\nresends = 40\ndoublings = 3")
    try:
        out, _ = lab.run("train", *RUN, *CLUSTER, "--json")
        document = json.loads(out)
        assert document["packets"] == {"version": 1, "micro_batches": 1}, "what hardware speaks"
        assert document["weights_sha256"] == emulated(*RUN)
        assert doctor(lab, 0) == []
        switch, _ = lab.processes["switch"]
        lab.said = fail_in_the_middle(
            lab, lambda: switch.send_signal(signal.SIGSTOP)
        )  # one that is killed is named at once
        switch.send_signal(signal.SIGCONT)
        assert "the aggregator does not answer worker 0, 1, 2, 3, not even a probe" in lab.said
        got, wanted = resumed(lab)
        assert got == wanted
        assert lab.kill("worker0", signal.SIGTERM) == 0
    finally:
        lab.close()
    assert list(scratch.glob("p4sgd-*")) == []


def test_an_aggregator_or_a_worker_that_is_not_there(lab):
    (lab.folder / "nobody.toml").write_text(
        (lab.folder / "cluster.toml").read_text().replace("unix:worker3", "unix:nobody")
    )
    _, said = lab.run("train", *RUN, "--device", "cluster", "--cluster", "nobody.toml", status=2)
    assert re.search(r"worker 3 at unix:\S*nobody is not there .*start it: p4sgd worker", said)
    (lab.folder / "nobody.toml").write_text(
        (lab.folder / "cluster.toml").read_text().replace("unix:switch", "unix:nobody")
    )
    _, said = lab.run("train", *RUN, "--device", "cluster", "--cluster", "nobody.toml", status=2)
    assert re.search(r"the aggregator at unix:\S*nobody is not there .*p4sgd switch serve", said)


# -- sparse workers --------------------------------------------------------------------------------------------------


MADE = ("made.libsvm", "--batch", "32", "--l1", "0.0001", "--staleness", "1")
SPARSE = "--sparse --slots 4"


def write_sparse_data(folder):
    """300 samples of 170 features, of which each has 6."""
    rng = np.random.default_rng(0)
    with (folder / "made.libsvm").open("w") as file:
        for columns in (np.sort(rng.choice(170, 6, replace=False)) for _ in range(300)):
            values = " ".join(f"{column + 1}:{rng.normal():.3f}" for column in columns)
            file.write(f"{int(columns[0] < 20)} {values}\n")


@pytest.fixture(scope="module")
def mixed_lab(tmp_path_factory):
    """A dense worker and two sparse ones that hold more, in a network that loses and repeats."""
    seed = default_seed()
    print(f"P4SGD_SEED={seed}")
    found = Lab(
        tmp_path_factory.mktemp("mixed"),
        3,
        config=["tiny", SPARSE, SPARSE],
        entries=["", "share = 4", "share = 2"],
        network=PATIENT,
        faults=map(str, (seed, 0.05, 0.05, 1000)),
    )
    write_sparse_data(found.folder)
    yield found
    found.close()


def test_sparse_workers_among_dense_ones_end_with_the_emulators_weights(mixed_lab):
    run = (*MADE, "--epochs", "2")
    out, _ = mixed_lab.run("train", *run, *CLUSTER, "--json")
    document = json.loads(out)
    assert [worker["sparse"] for worker in document["configuration"]] == [False, True, True]
    dense, first, second = document["units"]
    assert (dense, first + second) == (8, 14), "the dense worker has all units that it holds, with staleness"
    assert first > second, "sparse workers have nonzeros by shares of 4 and 2"
    assert document["weights_sha256"] == mixed_lab.weights(*run, "--workers", "1")


def test_the_doctor_finds_nothing_with_sparse_workers(mixed_lab):
    assert doctor(mixed_lab, 0) == []


def test_sparse_workers_refuse_zeros_that_scaling_changes(mixed_lab):
    _, said = mixed_lab.run("train", *RUN, *CLUSTER, status=2)
    assert "the scaling standard makes zeros other numbers, and sparse workers keep only what is not 0" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    "configs", [[SPARSE, SPARSE, "tiny", "tiny"], ["tiny", "tiny", SPARSE, "tiny"], [SPARSE] * 4], ids=str
)
def test_a_sparse_worker_is_replaced_and_comes_back(tmp_path, configs):
    """Its features go to dense workers and to sparse ones, and back."""
    lab = Lab(tmp_path, 4, config=configs, network=f"{PATIENT}\nresends = 5\ndoublings = 3")
    long = ("--epochs", "200", "--checkpoint", "run.checkpoint", "--json")
    try:
        write_sparse_data(tmp_path)
        lost = configs.index(SPARSE)
        run = begin_and_break(lab, lambda: restart(lab, lost), job=(*MADE, *long))
        document = json.loads(finish(run)[0])
        assert [remark for remark in document["remarks"] if f"instead of 4: worker {lost} " in remark]
        assert [remark for remark in document["remarks"] if f"4 workers, 1 of them new: worker {lost} at" in remark]
        assert document["weights_sha256"] == lab.weights(*MADE, *long[:2])
    finally:
        lab.close()


@pytest.mark.rtl
@pytest.mark.slow
def test_sparse_workers_beside_those_of_verilog(seed, tmp_path):
    """And an emulated dense one, in a network that loses and repeats."""
    build_single_worker(WorkerConfig.tiny())
    lab = Lab(
        tmp_path,
        3,
        config=["tiny", "tiny", SPARSE],
        rtl=1,
        network=PATIENT,
        entries=["", "", "share = 9"],
        faults=map(str, (seed, 0.05, 0.05, 1000)),
    )
    try:
        write_sparse_data(tmp_path)
        run = (*MADE, "--epochs", "2", "--checkpoint", "run.checkpoint")
        assert lab.weights(*run, *CLUSTER) == lab.weights(*run[:-2], "--workers", "1")
        assert doctor(lab, 0) == []
        goes_on = "--resume", "run.checkpoint", "--epochs"
        emulated = ("--device", "emulator", "--workers")
        for epochs, words in (
            ("4", (*emulated, "1")),
            ("5", CLUSTER),
            ("6", (*emulated, "4", "--config", "tiny")),
            ("7", CLUSTER),
        ):
            got = lab.weights(*goes_on, epochs, *words)
        assert got == lab.weights(*MADE, "--epochs", "7")
    finally:
        lab.close()


# -- doctor ----------------------------------------------------------------------------------------------------------


def doctor(lab, status, cluster="cluster.toml"):
    """Findings that are not passed."""
    out, _ = lab.run("doctor", "--device", "cluster", "--cluster", cluster, "--json", status=status)
    return [
        (finding["worker"], finding["check"], finding["problem"])
        for finding in json.loads(out)["findings"]
        if finding["result"] == "failed"
    ]


def test_the_doctor_finds_nothing_and_says_which_version_is_used(lab):
    out, _ = lab.run("doctor", *CLUSTER, "--json")
    findings = json.loads(out)["findings"]
    assert not [finding for finding in findings if finding["result"] == "failed"]
    (packets,) = (finding for finding in findings if finding["check"] == "packets")
    assert packets["evidence"]["version"] == 2
    assert packets["evidence"]["micro_batches"] == 46


def test_the_doctor_finds_a_link_that_is_down(lab):
    lab.set_link(1, "down")
    try:
        ((worker, check, problem),) = doctor(lab, 1)
    finally:
        lab.set_link(1, "up")
    assert (worker, check) == (1, "link")
    assert "the way up is dead" in problem


def test_the_doctor_finds_workers_behind_other_ports(lab):
    lab.write_cluster(name="wrong.toml", ports=[0, 2, 1, 3], network=PATIENT)
    found = doctor(lab, 1, "wrong.toml")
    assert [(worker, check) for worker, check, _ in found] == [(1, "settings"), (2, "settings")]
    for worker, _, problem in found:
        assert re.search(rf"port {worker}\b.* shard {worker}\b", problem)


# -- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((*CLUSTER, "--workers", "3"), "cluster.toml has 4 workers, this run has 3: leave --workers out"),
        ((*CLUSTER, "--merge", "47"), "--merge 47: a packet of this job has at most 46 micro-batches"),
        ((*CLUSTER, "--config", "small"), "has another configuration than was asked for (engines 1, not 2"),
    ],
)
def test_options_that_do_not_go_together(lab, words, says):
    _, said = lab.run("train", *RUN, *words, status=2)
    assert says in said


def test_workers_with_another_number_of_slots(lab):
    lab.kill("worker3", 15)
    lab.configs[3] = "small"
    try:
        lab.start_worker(3)
        _, said = lab.run("train", *RUN, *CLUSTER, status=2)
        assert re.search(r"worker 3 at \S*worker3 has 8 slots, worker 0 at \S*worker0 has 4", said)
    finally:
        lab.kill("worker3", 15)
        lab.configs[3] = "tiny"
        lab.start_worker(3)


@pytest.mark.slow
def test_workers_of_several_sizes(tmp_path):
    lab = Lab(tmp_path, 3, config=["u50", "u280", "u50"], network=PATIENT)
    try:
        expected = emulated(*RUN)
        for words in ((), ("--shares", "auto")):
            assert lab.weights(*RUN, *CLUSTER, *words) == expected
    finally:
        lab.close()


def test_a_worker_ends_well(lab):
    assert lab.kill("worker3", 15) == 0
    assert not (lab.folder / "worker3").exists()
    lab.start_worker(3)
