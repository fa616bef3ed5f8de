"""Ranks that train together end with everything that a single process ends with: images, weights, metrics, files."""

import dataclasses

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from support.events import events
from support.ranks import run_ranks
from support.results import assert_same

from p4sgd.host.data import Dataset, Scaling
from p4sgd.host.data.dataset import join_shares
from p4sgd.host.data.identity import identify
from p4sgd.host.distributed import share_of
from p4sgd.host.distributed.overlap import MergedSums
from p4sgd.host.image import prepare_images
from p4sgd.host.precondition import stage
from p4sgd.host.training import CheckpointFile, TrainingOptions, load_checkpoint, train
from p4sgd.host.training.dealing.partition import partition
from p4sgd.hw.spec.config import PRESETS
from p4sgd.hw.spec.fixed import LABEL
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


def spread(data, ranks):
    """The share of a data set that a rank would have read."""
    own = share_of(ranks, data.samples)
    about = {"target_names": data.target_names, "sample_weights": data.sample_weights}
    return join_shares(data.features[own.start : own.stop], data.labels, data.name, ranks, **about)


def device(ranks, configs=(CONFIG,), merge="auto"):
    """The worker of a rank, which take turns with the configurations."""
    config, sums = configs[ranks.rank % len(configs)], MergedSums(ranks, merge)
    remote = RemoteWorkers(ranks.rank, ranks.size, sums.start, times=lambda: sums.times)
    return EmulatedDevice(config, 1, remote=remote)


@settings(max_examples=40)
@given(
    samples=st.integers(2, 70),
    chunks=st.integers(1, 9),
    odd=st.integers(0, 7),
    size=st.integers(1, 5),
    sparse=st.booleans(),
    stored=st.integers(1, 8),
    batch=st.sampled_from([8, 24]),
    bias=st.booleans(),
    kind=st.sampled_from([np.float32, np.float64]),
    listing=st.sampled_from([(), (0,), (1, 2), (0, 1, 2, 3, 4)]),
    skipping=st.sampled_from([(), (0, 1), (0, 1, 2, 3, 4)]),
    seed=st.integers(0, 2**32),
)
def test_images_are_those_of_one_process(
    samples, chunks, odd, size, sparse, stored, batch, bias, kind, listing, skipping, seed
):
    """Also if some workers are sparse, or all, or leave out lines of zeros."""
    features = (chunks + size - 1) * CONFIG.lanes - odd
    configs = [LISTING if worker in listing else CONFIG for worker in range(size)]
    data = make(samples, features, sparse=sparse, seed=seed, kind=kind)
    rows = np.random.default_rng(seed).permutation(samples)[: max(1, samples - seed % 3)]  # some may be held out

    def images(data):
        data = data.take(rows)
        kind = "maxabs" if listing or skipping else "auto"
        scaling = Scaling.fit(data.features, kind, communicator=data.communicator)
        shards = [
            dataclasses.replace(shard, directory=shard.worker in skipping and not shard.config.sparse)
            for shard in partition(features, configs, bias=bias, unit=8)
        ]
        return prepare_images(
            data,
            LABEL.from_real(data.labels),
            scaling,
            shards,
            stored=stored,
            batch=batch,
        )

    expected = images(data)
    got = [image for rank in run_ranks(size, lambda ranks: images(spread(data, ranks))) for image in rank]
    for one, other in zip(expected, got, strict=True):
        for name in ("layout", "signed", "workers", "samples", "bias"):
            assert getattr(one, name) == getattr(other, name), name
        assert (one.shard.worker, one.shard.units.tolist()) == (other.shard.worker, other.shard.units.tolist())
        for name in ("labels", "offset", "scale"):
            assert getattr(one, name).tobytes() == getattr(other, name).tobytes(), name
        assert [lines.tobytes() for lines in one.port_lines] == [lines.tobytes() for lines in other.port_lines]


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("size", [2, 3, 7])
def test_the_identity_is_that_of_one_process(sparse, size):
    data = make(6, 40, sparse=sparse, seed=3, weighted=size > 2)
    assert set(run_ranks(size, lambda ranks: identify(spread(data, ranks)))) == {identify(data)}


@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize(
    ("sparse", "more"),
    [
        (True, {"loss": "hinge", "l2": 0.001, "staleness": 1}),
        (False, {"loss": "squared", "bias": False, "schedule": "adaptive", "scaling": "maxabs"}),
        (True, {"validation_fraction": 0.3, "patience": 2, "precision": 3, "planes": 5}),
        (False, {"precondition": "block", "l2": 0.001}),
        (False, {"learning_rate": 3000.0, "l1": 1e-4}),  # diverges
        (True, {"loss": "poisson", "alpha": 0.01, "l1_ratio": 0.5}),
        (True, {"class_weight": "balanced", "validation_fraction": 0.3}),
    ],
)
def test_training_is_that_of_one_process(size, sparse, more, tmp_path):
    data = make(101, 30, sparse=sparse, seed=5, weighted="class_weight" in more)
    test = make(20, 30, sparse=sparse, seed=6)
    options = TrainingOptions(**{"epochs": 4, "workers": size, **more})
    one = train(data, options, EmulatedDevice(CONFIG, size), test=test)

    def run(ranks):
        file = CheckpointFile(tmp_path / "state")
        told = []
        result = train(
            spread(data, ranks),
            options,
            device(ranks),
            test=spread(test, ranks),
            directory=tmp_path,
            checkpoint=file,
            events=events(remark=told.append),
        )
        return result, file.last

    results = run_ranks(size, run)
    for result, _ in results:
        assert_same(result, one)
    epochs = [last for _, last in results]
    assert epochs == [f"epoch {len(one.history)}"] * size, "all ranks know what the first has written"
    assert {path.name for path in tmp_path.iterdir()} == {"state", *(f"worker{rank}.p4sgd" for rank in range(size))}


@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.slow), 4])
@pytest.mark.parametrize(
    ("configs", "more"),
    [
        ((LISTING,), {"precision": 3, "planes": 5}),
        ((LISTING, CONFIG), {"skip_zeros": "always"}),
    ],
    ids=["sparse", "mixed with directories"],
)
def test_training_on_sparse_workers_is_that_of_one_process(size, configs, more, tmp_path):
    data = make(101, 60, sparse=True, seed=5)
    more = {"scaling": "maxabs", "l1": 1e-4, "staleness": 1, "validation_fraction": 0.3, **more}
    options = TrainingOptions(epochs=3, workers=size, **more)
    one = train(data, dataclasses.replace(options, skip_zeros="never"), EmulatedDevice(CONFIG, size))

    def run(ranks):
        return train(spread(data, ranks), options, device(ranks, configs), directory=tmp_path)

    for result in run_ranks(size, run):
        assert_same(result, one, "remarks")


def sample_ranks(ranks):
    return SampleRanks(ranks.rank, ranks.size, ranks.all_sum, ranks.all_sum, ranks.all_to_all)


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("sparse", "more"),
    [
        (True, {"l1": 1e-4, "staleness": 1, "validation_fraction": 0.3, "precision": 3, "planes": 5, "batch": 24}),
        (True, {"loss": "squared", "l2": 1e-3, "split": "24", "unit": 8, "batch": 64}),
        (False, {"batch": 40, "class_weight": "balanced"}),
        (True, {"learning_rate": 3000.0}),  # diverges
    ],
)
def test_ranks_with_samples_of_one_worker_train_as_one_process(size, sparse, more, tmp_path):
    data = make(101, 60, sparse=sparse, seed=5, weighted="class_weight" in more)
    test = make(20, 60, sparse=sparse, seed=6)
    options = TrainingOptions(**{"epochs": 4, "parallel": "data", "scaling": "maxabs", **more})
    one = train(data, options, EmulatedDevice(LISTING, 1), test=test)

    def run(ranks):
        shared, file = sample_ranks(ranks), CheckpointFile(tmp_path / "state")
        opened = EmulatedDevice(LISTING, 1, sample_ranks=shared)
        others = {"test": spread(test, ranks), "checkpoint": file, "sample_ranks": shared}
        return train(spread(data, ranks), options, opened, **others)

    for result in run_ranks(size, run):
        assert_same(result, one, "remarks")
    longer = dataclasses.replace(options, epochs=6, parallel="model", workers=2)
    resumed = train(data, longer, EmulatedDevice(CONFIG, 2), test=test, resume=load_checkpoint(tmp_path / "state"))
    whole = train(data, dataclasses.replace(longer, workers=1), EmulatedDevice(LISTING, 1), test=test)
    if not whole.history[-1].flags:  # a clamp depends on the number of workers
        assert_same(resumed, whole, "remarks")


@pytest.mark.parametrize(
    ("targets", "parallel"),
    [
        (False, "model"),
        (True, "data"),
        pytest.param(False, "data", marks=pytest.mark.slow),
        pytest.param(True, "model", marks=pytest.mark.slow),
    ],
)
def test_rows_are_those_of_one_process(parallel, targets, tmp_path):
    """Several classes or several targets, with a checkpoint from which one process goes on."""
    about = {"target_names": ("a", "b")} if targets else {}

    def several(data):
        scores = data.features @ np.random.default_rng(1).normal(size=(60, 2))
        labels = scores if targets else np.digitize(scores[:, 0], [-1, 1])
        return dataclasses.replace(data, labels=labels, **about)

    data, test = several(make(101, 60, sparse=True, seed=5)), several(make(40, 60, sparse=True, seed=6))
    more = {"parallel": parallel, "scaling": "maxabs", "validation_fraction": 0.3}
    options = TrainingOptions(loss="squared" if targets else "logistic", epochs=2, **more)
    one = train(data, options, EmulatedDevice(LISTING, 1), test=test)

    def run(ranks):
        file, shared = CheckpointFile(tmp_path / "state"), sample_ranks(ranks) if parallel == "data" else None
        opened = device(ranks, [LISTING]) if shared is None else EmulatedDevice(LISTING, 1, sample_ranks=shared)
        own = [spread(each, ranks) for each in (data, test)]
        chosen = dataclasses.replace(options, workers=1 if shared else ranks.size)
        return train(own[0], chosen, opened, test=own[1], checkpoint=file, sample_ranks=shared)

    for result in run_ranks(2, run):
        assert_same(result, one, "remarks")
    longer = dataclasses.replace(options, epochs=4, parallel="model")
    resumed = train(data, longer, EmulatedDevice(LISTING, 1), test=test, resume=load_checkpoint(tmp_path / "state"))
    whole = train(data, longer, EmulatedDevice(LISTING, 1), test=test)
    assert_same(resumed, whole, "remarks")


def test_a_planned_whitening_is_that_of_one_process_and_is_reported(monkeypatch):
    monkeypatch.setattr(stage, "_PLANNED_BLOCKS", 1)
    data, options = make(101, 70, sparse=False, seed=5), TrainingOptions(epochs=1, workers=2, precondition="block")
    one = train(data, options, EmulatedDevice(CONFIG, 2))
    assert one.summary["whitening_times"] is None
    for result in run_ranks(2, lambda ranks: train(spread(data, ranks), options, device(ranks))):
        assert np.array_equal(result.model.weights, one.model.weights)
        times = result.to_json()["whitening_times"]
        assert times["blocks"] == 2
        assert 0 < times["lower_bound_s"] <= times["predicted_s"]
        line = str(stage.StageTimes(**times))
        for name in ("measured_s", "predicted_s", "lower_bound_s"):
            assert f"{times[name] * 1e3:.1f} ms" in line
