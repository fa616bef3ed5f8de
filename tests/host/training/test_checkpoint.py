"""A run that goes on from a checkpoint ends as if it had never stopped, bit for bit; other files are refused."""

import dataclasses
import itertools
import json
import os

import numpy as np
import pytest
from support.events import events
from support.failing_device import FailingDevice
from support.results import assert_same
from support.tensor_file import read, rewrite

from p4sgd.host.data import Dataset
from p4sgd.host.devices import open_device
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.host.training import CheckpointFile, StopReason, TrainingOptions, load_checkpoint, train
from p4sgd.host.training.checkpoint import Weights, epochs_done
from p4sgd.hw.spec.config import WorkerConfig

CONFIG = WorkerConfig(engines=2, lanes=8, chunks=8, line_fifo_depth=64, slots=4)


def dataset(loss="logistic", samples=96, features=40, seed=1, name="made"):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(samples, features))
    z = x @ rng.normal(size=features) + rng.normal(size=samples) * 4
    return Dataset(x, z if loss == "squared" else np.where(z > 0, 1.0, 0.0), name)


def rates(result):
    return [record.learning_rate for record in result.history]


PATIENCE = {"schedule": "constant", "validation_fraction": 0.3, "learning_rate": 1.0, "batch": 8, "seed": 2}
STALE = {"loss": "squared", "workers": 4, "l1": 1e-3, "staleness": 1, "precision": 3}
CASES = {
    "plain": ({"epochs": 5}, lambda result: True),
    "invscaling": (
        {"epochs": 5, "schedule": "invscaling", "power": 0.75, **STALE},
        lambda result: len(set(rates(result))) == 5,
    ),
    "adaptive": (
        {"epochs": 14, "schedule": "adaptive", "tolerance": 0.2, "precision": 2, "planes": 5},
        lambda result: any(after > before for before, after in itertools.pairwise(rates(result))),
    ),
    "adaptive, stops": (
        {"epochs": 60, "schedule": "adaptive", "patience": 1, "tolerance": 0.3, "workers": 2},
        lambda result: result.stopped is StopReason.PATIENCE and len(set(rates(result))) >= 2,
    ),
    "patience": (
        {"epochs": 60, "patience": 4, **PATIENCE},
        lambda result: result.stopped is StopReason.PATIENCE and 1 < result.best_epoch < len(result.history),
    ),
    "remarks": (
        {"epochs": 6, "learning_rate": 60.0, "batch": 8, "l1": 1e-10, "bias": False, "loss": "squared"},
        lambda result: len(result.remarks) >= 3 and any(record.flags for record in result.history),
    ),
    "diverges": (
        {"epochs": 7, "learning_rate": 4000.0, "workers": 2},
        lambda result: len(set(rates(result))) >= 2 and "too large" in result.remarks[0],
    ),
    "diverges for ever": (
        {"epochs": 4, "learning_rate": 4000.0, "l2": 3e-6},
        lambda result: any("too large" in remark for remark in result.remarks),
    ),
    "remarks in later epochs": (
        {"epochs": 6, "learning_rate": 4e-5, "schedule": "invscaling", "power": 1.0, "l1": 5e-4},
        lambda result: len(result.remarks) == 6,
    ),
}
"""Options of a run, and what must have happened in it for the case to be worth its name."""


def run(options, device=None, *, test=True, **more):
    chosen = TrainingOptions(**options)
    device = device or open_device("emulator", CONFIG, chosen.workers)
    test = dataset(chosen.loss, seed=7, name="test") if test else None
    return train(dataset(chosen.loss), chosen, device, test=test, **more)


def assert_equal(one, other):
    """That everything in two results is the same but times and counters."""
    assert_same(one, other)
    for mine, theirs in zip(getattr(one, "rows", [one]), getattr(other, "rows", [other]), strict=True):
        assert mine.summary == theirs.summary
        assert facts(mine) == facts(theirs)


def facts(result):
    """What a model says of its training, but for times."""
    training = result.model.training
    timed = {"seconds", "samples_per_second"}
    return {**training, "metrics": {name: training["metrics"][name] for name in training["metrics"].keys() - timed}}


def stop(options, path, epochs, **more):
    """Train until the device fails in the epoch after so many."""
    device = FailingDevice(CONFIG, options.get("workers", 1), epochs + 1)
    with pytest.raises(P4sgdError, match="memory error"):
        run(options, device, checkpoint=CheckpointFile(path), **more)


def content(path):
    """What a checkpoint has, but for times."""
    arrays, header, _ = read(path)
    epochs = [json.loads(line) for line in arrays.pop("history").tobytes().splitlines()]
    epochs = [{**epoch, "seconds": 0, "samples_per_second": 0} for epoch in epochs]
    return {name: array.tolist() for name, array in arrays.items()}, epochs, header


# -- going on --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_a_failure_in_every_epoch(name, tmp_path):
    """Each epoch is done by another cluster, and the file at the end is that of a run on one."""
    (options, happened), path = CASES[name], tmp_path / "c"
    whole = run(options, checkpoint=CheckpointFile(tmp_path / "whole"))
    assert happened(whole)
    assert_equal(run(options), whole)
    stop(options, path, 1)
    for epoch in range(2, len(whole.history)):
        stop(options, path, 1, resume=load_checkpoint(path))
        assert set(os.listdir(tmp_path)) == {"c", "whole"}
        assert load_checkpoint(path).states[0].epoch == epoch
    saved, heard = load_checkpoint(path), []
    resumed = run(options, checkpoint=CheckpointFile(path), resume=saved, events=events(epoch=heard.append))
    assert_equal(resumed, whole)
    assert tuple(heard) == resumed.history
    assert resumed.history[:-1] == tuple(saved.states[0].history), "times of what was done are those of then"
    assert content(path) == content(tmp_path / "whole")


def test_more_or_fewer_epochs(tmp_path):
    options, _ = CASES["adaptive"]
    run(options, checkpoint=CheckpointFile(tmp_path / "c"))
    stop(options, tmp_path / "d", 3)
    for path, epochs in (("c", 14), ("c", 20), ("d", 3)):
        done = load_checkpoint(tmp_path / path).states[0].epoch
        saved, other = load_checkpoint(tmp_path / path), options | {"epochs": epochs}
        assert_equal(run(other, resume=saved), run(other))
        assert saved.states[0].epoch == done > (2 if path == "d" else 4), "what was read stays as it is"


def test_numbers_come_back_as_they_were(tmp_path):
    """Awkward floats and the largest weights; a metric may have no value."""
    rng = np.random.default_rng(0)
    flat = Dataset(rng.normal(size=(40, 20)), np.full(40, 3.0), "flat")
    options = TrainingOptions(loss="squared", epochs=2, learning_rate=0.1 + 0.2)
    result = train(flat, options, open_device("emulator", CONFIG, 1), checkpoint=CheckpointFile(tmp_path / "c"))
    saved = load_checkpoint(tmp_path / "c")
    assert np.isnan(saved.states[0].history[0].metrics["train_r2"])
    assert repr(saved.states[0].history) == repr(list(result.history))
    assert saved.states[0].first_rate == 0.1 + 0.2
    weights = Weights(np.resize(np.int32([-(1 << 31), (1 << 31) - 1]), 21))
    state = dataclasses.replace(saved.states[0], weights=weights, divisor=5.0**30)
    state.best = dataclasses.replace(state.best, score=-5e-324)
    CheckpointFile(tmp_path / "d").save(saved.run, [state])
    (again,) = load_checkpoint(tmp_path / "d").states
    assert again.weights.values.tolist() == state.weights.values.tolist()
    assert again.weights.values.dtype == np.int32
    assert (again.divisor, again.best.score) == (5.0**30, -5e-324)


def test_weights_of_workers_are_put_together_once_and_when_somebody_asks():
    shards, parts, made = [object()], [[np.int32([1, 2])]], []
    weights = Weights(lambda: made.append(np.int32([2, 1])) or made[-1], (shards, parts))
    assert weights.of(shards) is parts
    assert not weights.of(list(shards)), "columns have been dealt to others"
    assert weights.values is weights.values is made[0]
    assert not weights.of(shards)


def test_rows_go_on_after_every_epoch(tmp_path):
    """In the middle of a row or at its end: rows that are done stay, the one under way goes on, others begin."""
    data = dataset()
    data = Dataset(data.features, np.digitize(data.features @ np.ones(40), [-3, 3]), "made")

    def run_rows(device=None, workers=1, **more):
        options = TrainingOptions(epochs=9, patience=1, tolerance=0.05, workers=workers, **PATIENCE | {"seed": 0})
        return train(data, options, device or open_device("emulator", CONFIG, workers), **more)

    whole, file, kept = run_rows(), CheckpointFile(tmp_path / "c"), []
    epochs = [len(row.history) for row in whole.rows]
    assert len(set(epochs)) > 1, "some stop earlier"
    keep = events(epoch=lambda _: kept.append(load_checkpoint(tmp_path / "c")))
    assert_equal(run_rows(checkpoint=file, events=keep), whole)
    assert file.last == f"epoch {epochs[2]} of row 3 of 3"
    assert [epochs_done(saved.states) for saved in kept] == list(range(1, sum(epochs) + 1))
    for done, saved in enumerate(kept, 1):
        device = FailingDevice(CONFIG, 2, 0)
        resumed = run_rows(device, workers=2, resume=saved)
        assert -device.run == sum(epochs) - done, "no epoch is trained twice"
        for row, other in zip(resumed.rows, whole.rows, strict=True):
            assert row.model.weights.tolist() == other.model.weights.tolist()
            assert row.metrics == other.metrics
        assert_equal(run_rows(resume=saved), whole)


# -- when it is written ----------------------------------------------------------------------------------------------


def test_a_checkpoint_that_is_not_replaced(tmp_path):
    """Whoever repeats the command, and forgets --resume, would lose it."""
    options, _ = CASES["plain"]
    ended, stopped, damaged, earlier = (tmp_path / name for name in ("ended", "stopped", "damaged", "earlier"))
    run(options, checkpoint=CheckpointFile(ended))
    stop(options, stopped, 3)
    stop(options, earlier, 1)
    damaged.write_text("damaged")
    for path, other, more, says in (
        (ended, {"learning_rate": 0.25}, {}, "has epoch 5 of another run: .*another file.*delete"),
        (ended, {}, {"test": False}, "has epoch 5 of another run"),
        (ended, {}, {}, "has this run to its end, epoch 5: --resume .*--overwrite"),
        (ended, {"epochs": 2}, {"overwrite": True}, "has epoch 5 of this run: --resume .*another file.*delete"),
        (stopped, {}, {"resume": load_checkpoint(earlier)}, "has epoch 3 of this run: --resume .*another file.*delete"),
        (damaged, {}, {}, ".*another file.*delete"),
    ):
        before, file = path.read_bytes(), CheckpointFile(path, overwrite=more.pop("overwrite", False))
        with pytest.raises(UserError, match=f"^{path}: {says}"):
            run(options | other, checkpoint=file, **more)
        assert path.read_bytes() == before


def test_a_checkpoint_that_has_ended_is_replaced_on_request(tmp_path):
    path, (options, _) = tmp_path / "c", CASES["plain"]
    first = run(options, checkpoint=CheckpointFile(path))
    before = content(path)
    assert_equal(run(options, checkpoint=CheckpointFile(path, overwrite=True)), first)
    assert content(path) == before


# -- what is refused -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_epochs(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "c"
    stop(CASES["plain"][0], path, 2)
    return path


def test_another_run(two_epochs):
    """Changed files and options of the command line are in tests/host/cli/test_resume.py and test_errors.py."""
    tested = dataset(seed=7, name="test")
    weighted = dataclasses.replace(dataset(), sample_weights=np.ones(96))
    for data, test, options, says in (
        (dataset(), tested, {"l2": 0.5}, "options of this checkpoint are others"),
        (dataset(), tested, {"seed": 9}, "options of this checkpoint are others"),
        (weighted, tested, {}, "made .*values or labels"),
        (dataset(), None, {}, "test data .*: test, not none"),
    ):
        options = TrainingOptions(**CASES["plain"][0] | options)
        device, saved = open_device("emulator", CONFIG, 1), load_checkpoint(two_epochs)
        with pytest.raises(UserError, match=f"^{two_epochs}: .*{says}"):
            train(data, options, device, test=test, resume=saved)


@pytest.mark.parametrize(
    "changes",
    [
        {"run": {}},
        {"run": []},
        {"rows": []},
        {"rows": [{}]},
        {"rows": [{"remarks": 3}]},
        {"rows": [{"remarks": [], "first_rate": 1, "best_epoch": 9}]},
        {"origin": 3},
        {"drop": ["weights"]},
        {"drop": ["history"]},
        {"replace": {"weights": np.zeros(4, np.int32)}},
        {"replace": {"best_weights": np.zeros(4, np.int32)}},
        {"replace": {"history": np.frombuffer(b"{}", np.uint8)}},
        {"replace": {"history": np.frombuffer(b"\n", np.uint8)}},
    ],
)
def test_damaged_files(two_epochs, tmp_path, changes):
    rewrite(two_epochs, to=tmp_path / "c", **changes)
    with pytest.raises(UserError, match=f"^{tmp_path / 'c'}: a damaged checkpoint: .*: train again"):
        load_checkpoint(tmp_path / "c")
