"""Ranks that train on a folder, and norms of samples wherever these are."""

import dataclasses
import os
import shutil

import numpy as np
import pytest
import scipy.sparse
from support.data_files import make_samples, use_small_blocks, write_data
from support.ranks import run_ranks
from support.results import assert_same

from p4sgd.host.data import Scaling, read_dataset, statistics
from p4sgd.host.data.read import open_source
from p4sgd.host.distributed.overlap import MergedSums
from p4sgd.host.errors import UserError
from p4sgd.host.image.file import image_file
from p4sgd.host.streaming import folder as streaming
from p4sgd.host.streaming import make
from p4sgd.host.streaming.folder import PreparedFolder
from p4sgd.host.streaming.make import make_folder
from p4sgd.host.training import TrainingOptions, train
from p4sgd.host.training.dealing.units import deal_units
from p4sgd.host.training.hardware_features import reading_errors, square_norms
from p4sgd.host.training.preparation import prepare
from p4sgd.host.training.prepared import Placement
from p4sgd.hw.spec.config import PRESETS
from p4sgd.sim.emulator import EmulatedDevice, RemoteWorkers

CONFIG = PRESETS["tiny"]()
OPTIONS = TrainingOptions(workers=3, precision=3, planes=5, batch=24, validation_fraction=0.2, epochs=3)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    use_small_blocks(monkeypatch)
    monkeypatch.setattr(make, "bucket_rows", lambda found, memory, **more: 16)
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def deal_to(options, config=CONFIG):
    return deal_units(40, options, [config] * options.workers)


@pytest.mark.parametrize("more", [{"scaling": "robust"}, {"precondition": "block"}])
def test_images_are_the_same_whichever_way_they_are_made(tmp_path, monkeypatch, more):
    """By a process, by ranks or from buckets; with quantiles of the first 37 samples, whoever has them."""
    monkeypatch.setattr(statistics, "_QUANTILE_VALUES", 40 * 37)
    path, options = write_data(tmp_path, "data.npz", *make_samples(7, 101, 40)), dataclasses.replace(OPTIONS, **more)
    process, ranks, buckets = (tmp_path / each for each in ("process", "ranks", "buckets"))
    prepare(read_dataset(path), options, Placement(deal_to(options), process))
    run_ranks(
        options.workers,
        lambda own: prepare(read_dataset(path, communicator=own), options, Placement(deal_to(options), ranks)),
    )
    make_folder(open_source(path), options, CONFIG, buckets)
    for worker in range(options.workers):
        first, *others = (image_file(folder, worker).read_bytes() for folder in (process, ranks, buckets))
        assert others == [first] * 2


@pytest.fixture
def folder(tmp_path):
    path = write_data(tmp_path, "data.libsvm", *make_samples(8, 150, 40))
    make_folder(open_source(path), OPTIONS, CONFIG, tmp_path / "made")
    return tmp_path / "made"


def test_ranks_train_on_a_folder_as_one_process(tmp_path, folder):
    options = dataclasses.replace(OPTIONS, loss="hinge", l2=0.001, staleness=1)
    path = write_data(tmp_path, "test.libsvm", *make_samples(9, 30, 40))
    one = train(PreparedFolder(folder), options, EmulatedDevice(CONFIG, options.workers), test=read_dataset(path))

    def run(ranks):
        data = PreparedFolder(folder, ranks)
        data.verify()
        test = read_dataset(path, like=data.space, communicator=ranks)
        remote = RemoteWorkers(ranks.rank, ranks.size, MergedSums(ranks).start)
        return train(data, options, EmulatedDevice(CONFIG, 1, remote=remote), test=test)

    for result in run_ranks(options.workers, run):
        assert_same(result, one)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("scaling", ["none", "minmax", "standard"])
def test_norms_depend_on_the_sample_alone(kind, scaling):
    """Not on the samples beside it, nor on the format: zeros may become other numbers."""
    sparse = scipy.sparse.random_array((300, 99), density=0.1, rng=np.random.default_rng(5), dtype=kind, format="csr")
    dense = sparse.toarray()
    fitted = Scaling.fit(dense, scaling)
    whole = square_norms(dense, fitted)
    assert whole == pytest.approx((np.clip(fitted.apply(dense), -1, 1) ** 2).sum(axis=1))
    parts = [square_norms(dense[first : first + 7], fitted) for first in range(0, 300, 7)]
    for other in (square_norms(sparse, fitted), square_norms(np.asfortranarray(dense), fitted), np.concatenate(parts)):
        assert other.tobytes() == whole.tobytes()
    assert reading_errors(sparse, fitted, 3) == pytest.approx(reading_errors(dense, fitted, 3))


def test_ranks_share_the_files_to_check_and_all_tell_of_damage(folder):
    path = image_file(folder, 1)
    path.write_bytes(path.read_bytes()[:-1] + b"?")

    def verify(ranks):
        steps = []
        with pytest.raises(UserError) as error:
            PreparedFolder(folder, ranks).verify(lambda *step: steps.append(step))
        return str(error.value), steps[-1][2]

    told, sizes = zip(*run_ranks(3, verify), strict=True)
    images = sum(image_file(folder, worker).stat().st_size for worker in range(3))
    assert sum(sizes) < 3 * images
    assert len(set(told)) == 1
    assert "worker1.p4sgd: is damaged: prepare the data again" in told[0]


@pytest.mark.parametrize("config", [CONFIG, PRESETS["small"]()])
def test_a_copy_of_a_rank_is_compared_as_far_as_it_is_read(tmp_path, folder, config):
    """With images for other workers, each rank reads those of all."""
    copies = [shutil.copytree(folder, tmp_path / f"copy{rank}") for rank in range(3)]
    path = image_file(copies[0], 1)
    path.write_bytes(path.read_bytes()[:-1] + b"?")

    def run(ranks):
        data = PreparedFolder(copies[ranks.rank], ranks)
        data.verify()
        placement = Placement(deal_to(OPTIONS, config))
        if config is CONFIG:
            return data.load(OPTIONS, placement)
        with pytest.raises(UserError, match=f"^{path}: is damaged: prepare the data again"):
            data.load(OPTIONS, placement)

    run_ranks(3, run)


def test_ranks_deal_columns_by_the_same_samples(folder, monkeypatch):
    """They are those of rank 0, because copies of images of others may be damaged."""
    copies = iter(range(3))
    monkeypatch.setattr(streaming, "first_values", lambda images, samples: next(copies))
    first, *others = run_ranks(3, lambda ranks: PreparedFolder(folder, ranks)._first_values(8))
    assert others == [first] * 2
