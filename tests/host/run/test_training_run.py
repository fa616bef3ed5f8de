"""`TrainingRun` without a command line: what a request leaves open, and what is written."""

import dataclasses
import os
import re
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from support.command_line import commands
from support.events import events
from support.ranks import run_ranks

from p4sgd.host.cli.app import main
from p4sgd.host.data.read import open_source
from p4sgd.host.errors import UserError, flag
from p4sgd.host.run.request import TrainingRequest
from p4sgd.host.run.training_run import TrainingRun
from p4sgd.host.streaming.make import make_folder
from p4sgd.host.training import TrainingOptions
from p4sgd.host.training.events import Stage
from p4sgd.host.training.model_file import load_model
from p4sgd.hw.spec.config import CONFIGURATIONS, PRESETS, WorkerConfig

pytestmark = pytest.mark.usefixtures("own_folder")


def test_a_plan_writes_nothing_and_its_execution_does():
    request = TrainingRequest(data="iris:1", samples=90, options={"epochs": 2}, out=Path("model"))
    plan = TrainingRun(request)
    assert list(Path().iterdir()) == []
    config = WorkerConfig(lanes=8, chunks=128)  # of few features: of u280 most lanes would be idle
    assert (plan.device, plan.config, plan.options.batch) == ("emulator", config, TrainingOptions().batch)
    assert (plan.data.samples, plan.data.space.count) == (90, 4)
    stages, epochs = [], []
    result = plan.execute(events(stage=stages.append, epoch=epochs.append))
    assert stages == [Stage.OPEN, Stage.TRAIN, Stage.WRITE]
    assert tuple(epochs) == result.history
    assert load_model(Path("model")).weights.tolist() == result.model.weights.tolist()


def test_a_checkpoint_fixes_data_and_options_but_those_that_change_nothing():
    Path("data.csv").write_text("".join(f"{index % 2},{index},{index * index % 7}\n" for index in range(64)))
    reading = {"label_column": "1", "header": False}
    begun = TrainingRequest(data="data.csv", reading=reading, samples=40, options={"batch": 24}, checkpoint=Path("c"))
    TrainingRun(dataclasses.replace(begun, options={"epochs": 2, "batch": 24})).execute()
    plan = TrainingRun(TrainingRequest(resume=Path("c"), options={"epochs": 3}))
    assert (plan.options.batch, plan.options.epochs, plan.request.data) == (24, 3, "data.csv")
    assert (plan.request.reading, plan.data.samples, plan.checkpoint.path) == (reading, 40, Path("c"))
    assert len(plan.execute().history) == 3
    with pytest.raises(UserError, match=r"^c: .*--batch 24, not with --batch 32"):
        TrainingRun(TrainingRequest(resume=Path("c"), options={"batch": 32}))


def test_a_prepared_folder_fixes_what_it_depends_on():
    options = TrainingOptions(batch=24, precision=4)
    make_folder(open_source("breast_cancer"), options, PRESETS["tiny"](), Path("made"))
    plan = TrainingRun(TrainingRequest(data="made", options={"precision": 3, "epochs": 1}))
    assert (plan.options.batch, plan.options.precision, plan.options.planes) == (24, 3, 4)
    assert plan.config == PRESETS["tiny"]()
    stages, steps = [], set()
    plan.execute(events(stage=stages.append, progress=lambda step, done, total: steps.add(step.name)))
    assert stages == list(Stage)
    assert steps == {"CHECK"}
    (image,) = Path("made").glob("worker0*")
    content = bytearray(image.read_bytes())
    content[-1] ^= 1
    image.write_bytes(content)
    damaged = TrainingRun(TrainingRequest(data="made"))
    with pytest.raises(UserError, match=image.name):
        damaged.execute()


@pytest.fixture
def made():
    make_folder(open_source("digits:3"), TrainingOptions(workers=4), PRESETS["tiny"](), Path("made"))
    return "made"


def test_the_configuration_of_a_simulation_is_its_own(made):
    """A folder's may take very long to build, and sparse workers are no Verilog; a checkpoint's has begun, and goes
    before that of the folder."""
    begun = TrainingRequest(data=made, options={"epochs": 1, "workers": 1}, config="small", checkpoint=Path("e"))
    TrainingRun(begun).execute()
    plan = TrainingRun(TrainingRequest(resume=Path("e"), options={"epochs": 2}))
    assert (plan.config, plan.options.workers) == (PRESETS["small"](), 1)
    Path("data.libsvm").write_text("".join(f"{row % 2} {row % 37 + 1}:1 100:2\n" for row in range(64)))
    make_folder(open_source("data.libsvm"), TrainingOptions(), None, Path("sparse"))
    for name, data in (("c", made), ("d", "data.libsvm")):
        TrainingRun(TrainingRequest(data=data, options={"epochs": 1}, checkpoint=Path(name))).execute()
    for request, emulated, simulated in (
        ({"data": made}, "tiny", "small"),
        ({"data": made, "config": "tiny"}, "tiny", "tiny"),
        ({"resume": Path("c"), "options": {"epochs": 2}}, "tiny", "tiny"),
        ({"data": "data.libsvm"}, "sparse", "small"),
        ({"data": "sparse"}, "sparse", "small"),
        ({"resume": Path("d"), "options": {"epochs": 2}}, "sparse", "small"),
    ):
        for device, config in (("emulator", emulated), ("rtl", simulated)):
            assert TrainingRun(TrainingRequest(device=device, **request)).config == CONFIGURATIONS[config]()


def test_workers_of_a_cluster_say_what_they_are():
    """Until then nothing is known of how much they hold; by default all of the file train, as the help says."""
    Path("data.libsvm").write_text("1 1:1 20000:1\n0 2:1\n")
    worker = '[[workers]]\ncontrol = "unix:worker{0}"\nudp = "127.0.0.1:{1}"\nport = 0\n'
    Path("cluster.toml").write_text(
        '[aggregator]\nkind = "socket"\ncontrol = "unix:switch"\nudp = "127.0.0.1:51200"\n'
        + "".join(worker.format(index, 51201 + index) for index in range(3))
    )
    request = TrainingRequest(data="data.libsvm", config="small", options={"workers": 3})
    with pytest.raises(UserError, match="20,000 features and the bias are 313 units of 64, more than the workers hold"):
        TrainingRun(request)
    plan = TrainingRun(dataclasses.replace(request, device="cluster", cluster=Path("cluster.toml"), options={}))
    assert plan.options.workers == 3
    with pytest.raises(UserError, match=r"worker 0 at .* is not there"):
        plan.execute()
    (option,) = [param for param in commands()["train"].params if param.name == "workers"]
    assert re.search("by default 1, .*all workers of the cluster file", option.help)


def test_ranks_fix_the_workers_and_train_as_one_process(monkeypatch):
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    monkeypatch.setenv("SLURM_PROCID", "1")
    for name in ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)

    def run(ranks):
        plan = TrainingRun(request, ranks)
        return plan, plan.execute()

    reports = []
    monkeypatch.setattr("p4sgd.host.report.save_report", lambda *arguments, **_: reports.append(arguments[1]))
    np.savez("wide.npz", X=np.random.default_rng(0).normal(size=(40, 20)), y=np.arange(40) % 2)
    request = TrainingRequest(data="wide.npz", options={"epochs": 2}, config="tiny", out=Path("model"), overwrite=True)
    one = TrainingRun(dataclasses.replace(request, options={"epochs": 2, "workers": 2}, out=None)).execute()
    request = dataclasses.replace(request, report=Path("run.html"))
    for plan, result in run_ranks(2, run):
        assert plan.options.workers == 2
        assert result.model.weights.tolist() == one.model.weights.tolist()
    assert Path("model").exists()
    assert reports == [Path("run.html")], "only the first rank writes"
    with pytest.raises(UserError, match=r"^srun has started 3 workers, this run has 2: leave --workers out"):
        run_ranks(3, lambda ranks: TrainingRun(dataclasses.replace(request, options={"workers": 2}), ranks))
    with pytest.raises(UserError, match=r"rtl .*--launcher.* emulator"):
        run_ranks(2, lambda ranks: TrainingRun(dataclasses.replace(request, device="rtl"), ranks))


@pytest.mark.parametrize(
    ("other", "name"),
    [
        ({"options": {"epochs": 2, "learning_rate": 0.5}}, "--lr"),
        ({"reading": {"label_column": ("x",)}}, "--label-column"),
        ({"samples": 30}, "--samples"),
        ({"out": Path("model")}, "--out"),
        ({"data": "changed.npz"}, "DATA"),
        ({"test": "wide.npz"}, "--test"),
        ({}, "the version of p4sgd"),
    ],
)
def test_ranks_that_differ_are_named_at_once(monkeypatch, other, name):
    np.savez("wide.npz", X=np.random.default_rng(0).normal(size=(40, 20)), y=np.arange(40) % 2)
    content = bytearray(Path("wide.npz").read_bytes())
    content[len(content) // 2] ^= 1
    Path("changed.npz").write_bytes(content)
    odd = set()
    if not other:
        monkeypatch.setattr("importlib.metadata.version", lambda name: str(threading.current_thread() in odd))

    def run(ranks):
        request = TrainingRequest(data="wide.npz", options={"epochs": 2})
        if ranks.rank == 1:
            odd.add(threading.current_thread())
            request = dataclasses.replace(request, **other)
        with pytest.raises(UserError, match=rf"^{name}: .*rank 1 has .*rank 0 has "):
            TrainingRun(request, ranks)

    run_ranks(3, run)


@pytest.mark.parametrize("names", [{"data": "-"}, {"data": "pipe"}, {"data": "iris:1", "test": "pipe"}])
def test_ranks_need_files_that_can_be_read_again(names):
    os.mkfifo("pipe")
    with pytest.raises(UserError, match=r"^(DATA|--test) (-|pipe) can be read once, by one process: write the data"):
        run_ranks(2, lambda ranks: TrainingRun(TrainingRequest(**names), ranks))


def test_ranks_compare_folders_whatever_their_names():
    for name, seed in (("made", 0), ("other", 1)):
        make_folder(open_source("breast_cancer"), TrainingOptions(workers=2, seed=seed), PRESETS["tiny"](), Path(name))
    shutil.copytree("made", "copy")

    def run(ranks, *names):
        TrainingRun(TrainingRequest(data=names[ranks.rank], options={"epochs": 1, "workers": 2}), ranks).execute()

    run_ranks(2, lambda ranks: run(ranks, "made", "copy"))
    for names in (("made", "other"), ("breast_cancer", "made")):
        with pytest.raises(UserError, match=r"^DATA: .*rank 1 has .*rank 0 has "):
            run_ranks(2, lambda ranks, names=names: run(ranks, *names))


def test_names_of_options_are_those_of_the_command_line():
    """Messages name options as the user has to write them."""
    parent = main.make_context("p4sgd", ["train", "data"])  # without which click would keep a command without -h
    context = commands()["train"].make_context("train", ["data"], parent=parent)
    plain = {field.name for field in dataclasses.fields(TrainingOptions)}
    reading = {"file_format", "label_column", "weight_column", "ignore_columns"}
    reading |= {"header", "delimiter", "zero_based", "hash_bits"}
    found = {param.name: "/".join([*param.opts, *param.secondary_opts]) for param in context.command.params}
    for name in plain | reading:
        assert flag(name) == found[name]
