"""Units dealt to other workers: the images are those that the data make for them."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.ranks import run_ranks

from p4sgd.host.data import Dataset, Scaling
from p4sgd.host.image import prepare_images, repartition
from p4sgd.host.image.image import Shard
from p4sgd.host.image.lines import unpack_lines
from p4sgd.host.image.repartition import repartition_images
from p4sgd.host.training.dealing.partition import partition
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.fixed import LABEL
from p4sgd.hw.spec.run import UNITS

lanes = st.sampled_from([8, 16, 64])
dense = st.builds(WorkerConfig, engines=st.integers(1, 3), ports=st.integers(1, 2), lanes=lanes)
sparse = st.builds(WorkerConfig, engines=st.integers(3, 4), ports=st.integers(1, 2), lanes=lanes, sparse=st.just(True))
clusters = st.tuples(st.integers(1, 4), dense | sparse)


@settings(max_examples=60)
@given(
    before=clusters,
    after=clusters,
    unit=st.sampled_from(UNITS),
    features=st.integers(1, 300),
    stored=st.integers(1, 8),
    bias=st.booleans(),
    kind=st.sampled_from(["minmax", "maxabs"]),
    density=st.sampled_from([0.0, 0.05, 1.0]),
    values=st.sampled_from([1, 1 << 20]),
    seed=st.integers(0, 1 << 30),
)
def test_as_prepared_for_them(before, after, unit, features, stored, bias, kind, density, values, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(20, features)) * (rng.random((20, features)) < density)
    if kind == "minmax" and (before[1].sparse or after[1].sparse):
        x[0], x = 0, np.abs(x)  # so that zeros stay zeros
    data = Dataset(x, rng.choice([-1.0, 1.0], 20), "made")
    scaling, most = Scaling.fit(data.features, kind), -(-(features + bias) // unit)

    def prepare(cluster):
        return prepare_images(
            data,
            LABEL.from_real(data.labels),
            scaling,
            deal(cluster),
            stored=stored,
        )

    def deal(cluster):
        workers, config = cluster
        return partition(features, [config] * min(workers, most), bias=bias, unit=unit)

    images, expected = prepare(before), prepare(after)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repartition, "_BLOCK_VALUES", values)
        got = repartition_images(images, deal(after), name="made")
    check_same(got, expected)


def check_same(images, expected):
    assert len(images) == len(expected)
    for ours, theirs in zip(images, expected, strict=True):
        assert (ours.layout, ours.workers, ours.samples) == (theirs.layout, theirs.workers, theirs.samples)
        assert (ours.signed, ours.bias, ours.shard.worker) == (theirs.signed, theirs.bias, theirs.shard.worker)
        assert ours.shard.units.tolist() == theirs.shard.units.tolist()
        for name in ("labels", "offset", "scale"):
            assert getattr(ours, name).tolist() == getattr(theirs, name).tolist()
        for here, there in zip(ours.port_lines, theirs.port_lines, strict=True):
            assert np.array_equal(here, there)


@pytest.mark.parametrize("largest", [1, 2])
def test_images_of_one_scale_each(tmp_path, largest):
    """In a file it is a view of one number for all features of a worker: another worker may have another."""
    x = np.eye(64)
    x[:, 32:] *= largest
    data = Dataset(x, np.ones(64), "made")
    scaling = Scaling.fit(data.features, "maxabs")

    def prepare(workers, folder=None):
        shards = partition(64, [CONFIG] * workers, bias=False, unit=8)
        return prepare_images(data, LABEL.from_real(data.labels), scaling, shards, directory=folder), shards

    images, _ = prepare(2, tmp_path)
    assert [image.scale.strides for image in images] == [(0,), (0,)]
    expected, shards = prepare(1)
    check_same(repartition_images(images, shards, name="made"), expected)


CONFIG = WorkerConfig(engines=2, ports=1, lanes=8)
SPARSE = WorkerConfig(engines=3, ports=1, lanes=16, sparse=True)


def prepare_for(workers, features=75, config=CONFIG, directory=None):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(40, features)) * (rng.random((40, features)) < 0.3)
    data = Dataset(x, rng.choice([-1.0, 1.0], 40), "made")
    scaling, labels = Scaling.fit(data.features, "maxabs"), LABEL.from_real(data.labels)
    return prepare_images(data, labels, scaling, deal_to(workers, features, config), directory=directory)


def deal_to(workers, features=75, config=CONFIG):
    return partition(features, [config] * workers, bias=True, unit=8)


@pytest.mark.parametrize("after", [CONFIG, SPARSE], ids=["dense", "sparse"])
@pytest.mark.parametrize(
    "before", [(CONFIG, CONFIG), (SPARSE, CONFIG), (SPARSE, SPARSE)], ids=["dense", "both", "sparse"]
)
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_units_need_not_be_consecutive(workers, before, after):
    (whole,) = prepare_for(1)
    values = whole.layout.unpad(unpack_lines(np.stack(whole.port_lines), whole.layout))

    def image(worker, units):
        shard = Shard(worker, before[worker], np.array(units), whole.shard.unit, whole.shard.total)
        layout = shard.layout(whole.layout.samples, whole.layout.stored)
        lines = layout.memories(values[:, shard.columns])
        offset, scale = shard.take(whole.offset), shard.take(whole.scale)
        return dataclasses.replace(
            whole, layout=layout, shard=shard, workers=2, offset=offset, scale=scale, port_lines=tuple(lines)
        )

    images = [image(0, [0, 3, 4, 9]), image(1, [1, 2, 5, 6, 7, 8])]
    check_same(
        repartition_images(images, deal_to(workers, config=after), name="made"), prepare_for(workers, config=after)
    )


@pytest.mark.parametrize("after", [CONFIG, SPARSE], ids=["dense", "sparse"])
@pytest.mark.parametrize("before", [CONFIG, SPARSE], ids=["dense", "sparse"])
def test_a_rank_reads_only_images_that_have_its_units(before, after):
    """The eight units of four workers are dealt to two; the other rank's images are without lines here."""
    images, expected = prepare_for(4, 63, before), prepare_for(2, 63, after)
    empty = [dataclasses.replace(image, port_lines=()) for image in images]
    given, shards = [[*images[:2], *empty[2:]], [*empty[:2], *images[2:]]], deal_to(2, 63, after)
    got = run_ranks(2, lambda ranks: repartition_images(given[ranks.rank], shards, name="made", communicator=ranks))
    check_same([image for images in got for image in images], expected)


def test_files_of_sparse_workers(tmp_path):
    """Dealt to files, they have the bytes of those that are prepared: room for as many values as there are."""
    prepare_for(2, config=SPARSE, directory=tmp_path / "expected")
    for before in (CONFIG, SPARSE):
        images = prepare_for(3, config=before)
        repartition_images(images, deal_to(2, config=SPARSE), name="made", directory=tmp_path / "made")
        for worker in range(2):
            made, expected = (tmp_path / name / f"worker{worker}.p4sgd" for name in ("made", "expected"))
            assert made.read_bytes() == expected.read_bytes()
