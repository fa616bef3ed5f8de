"""Ranks that train together end with everything that a single process ends with: weights, metrics, files."""

import dataclasses

import numpy as np
import pytest
import scipy.sparse
from support.events import events
from support.ranks import run_ranks
from support.results import assert_same

from p4sgd.host.data import Dataset
from p4sgd.host.distributed.overlap import MergedSums
from p4sgd.host.precondition import stage
from p4sgd.host.training import CheckpointFile, TrainingOptions, load_checkpoint, train
from p4sgd.hw.spec.config import PRESETS
from p4sgd.sim.emulator import EmulatedDevice, RemoteWorkers
from p4sgd.sim.sparse.data_parallel import SampleRanks

CONFIG = PRESETS["tiny"]()
LISTING = dataclasses.replace(CONFIG, engines=3, sparse=True)


def make(samples, features, *, sparse, seed, kind=np.float64, weighted=False):
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(samples, features)).astype(kind)
    if sparse:
        matrix[rng.random(matrix.shape) < 0.8] = 0
        matrix = scipy.sparse.csr_array(matrix)
    labels = (rng.random(samples) < 0.4).astype(float)
    labels[:2] = 0, 1
    return Dataset(matrix, labels, "made", sample_weights=rng.integers(0, 5, samples) / 4 if weighted else None)


def several(data, *, targets):
    """The data with three classes, or with two targets."""
    scores = data.features @ np.random.default_rng(1).normal(size=(data.feature_count, 2))
    labels = scores if targets else np.digitize(scores[:, 0], [-1, 1])
    return dataclasses.replace(data, labels=labels, target_names=("a", "b") if targets else ())


@pytest.mark.parametrize(
    ("configs", "more"),
    [
        # Configurations of the workers, which take turns; if none, ranks divide the samples of a sparse worker.
        ((CONFIG,), {"loss": "squared", "bias": False, "schedule": "adaptive", "scaling": "maxabs"}),
        ((CONFIG,), {"validation_fraction": 0.3, "patience": 2, "precision": 3, "planes": 5}),
        ((CONFIG,), {"learning_rate": 3000.0, "l1": 1e-4}),  # diverges
        ((CONFIG,), {"class_weight": "balanced", "validation_fraction": 0.3}),
        ((CONFIG,), {"sparse": False, "precision": 1, "planes": 2}),  # with a remark on rounding
        ((LISTING, CONFIG), {"skip_zeros": "always", "scaling": "maxabs", "validation_fraction": 0.3}),
        ((LISTING,), {"rows": "classes", "scaling": "maxabs", "validation_fraction": 0.3}),
        (None, {"l1": 1e-4, "staleness": 1, "validation_fraction": 0.3, "precision": 3, "planes": 5, "batch": 24}),
        (None, {"batch": 40, "class_weight": "balanced"}),
        (None, {"learning_rate": 3000.0}),  # diverges
        (None, {"loss": "squared", "rows": "targets", "validation_fraction": 0.3}),
    ],
)
def test_training_is_that_of_one_process(configs, more, tmp_path):
    """With a checkpoint, from which one process goes on. More options are in the matrix."""
    size, more = 3, more | ({} if configs else {"parallel": "data", "scaling": "maxabs"})
    rows, sparse = more.pop("rows", None), more.pop("sparse", True)
    data = make(101, 60, sparse=sparse, seed=5, weighted="class_weight" in more)
    test = make(40, 60, sparse=sparse, seed=6)
    if rows:
        data, test = (several(each, targets=rows == "targets") for each in (data, test))
    workers = 1 if configs is None else size
    options = TrainingOptions(**{"epochs": 3, "workers": workers, **more})
    alone = (lambda count: EmulatedDevice(LISTING, count)) if configs is None else lambda n: EmulatedDevice(CONFIG, n)
    one = train(data, options, alone(workers), test=test)

    def run(ranks):
        file, told, shared = CheckpointFile(tmp_path / "state"), [], None
        if configs is None:
            shared = SampleRanks(ranks.rank, ranks.size, ranks.all_sum, ranks.all_to_all)
            device = EmulatedDevice(LISTING, 1, sample_ranks=shared)
        else:
            sums = MergedSums(ranks)
            remote = RemoteWorkers(ranks.rank, ranks.size, sums.start, times=lambda: sums.times)
            device = EmulatedDevice(configs[ranks.rank % len(configs)], 1, remote=remote)
        result = train(
            dataclasses.replace(data, communicator=ranks),
            options,
            device,
            test=dataclasses.replace(test, communicator=ranks),
            checkpoint=file,
            sample_ranks=shared,
            events=events(remark=told.append),
        )
        return result, file.last

    results = run_ranks(size, run)
    ignored = () if configs == (CONFIG,) else ("remarks",)
    assert any("above that in training" in remark for remark in one.remarks) == (not sparse)
    for result, _ in results:
        assert_same(result, one, *ignored)
    assert len({last for _, last in results}) == 1, "all ranks know what the first has written"
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    longer = dataclasses.replace(options, epochs=5, parallel="model")
    resumed = train(data, longer, alone(workers), test=test, resume=load_checkpoint(tmp_path / "state"))
    assert_same(resumed, train(data, longer, alone(workers), test=test), "remarks")


def test_a_planned_whitening_is_that_of_one_process_and_is_reported(monkeypatch):
    monkeypatch.setattr(stage, "_PLANNED_BLOCKS", 1)
    data, options = make(101, 70, sparse=False, seed=5), TrainingOptions(epochs=1, workers=2, precondition="block")
    one = train(data, options, EmulatedDevice(CONFIG, 2))
    assert one.summary["whitening_times"] is None

    def run(ranks):
        remote = RemoteWorkers(ranks.rank, ranks.size, MergedSums(ranks).start)
        return train(dataclasses.replace(data, communicator=ranks), options, EmulatedDevice(CONFIG, 1, remote=remote))

    for result in run_ranks(2, run):
        assert np.array_equal(result.model.weights, one.model.weights)
        times = result.to_json()["whitening_times"]
        assert times["blocks"] == 2
        assert 0 < times["lower_bound_s"] <= times["predicted_s"]
        line = str(stage.StageTimes(**times))
        for name in ("measured_s", "predicted_s", "lower_bound_s"):
            assert f"{times[name] * 1e3:.1f} ms" in line
