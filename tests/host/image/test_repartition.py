"""Units dealt to other workers: the images are those that the data make for them."""

import dataclasses
import itertools

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from support.images import FORMS, check_same, deal, make, prepare
from support.ranks import run_ranks

from p4sgd.host.data import Dataset
from p4sgd.host.image import directories, packing, repartition
from p4sgd.host.image.contents import Values, unpack_lines
from p4sgd.host.image.image import Shard
from p4sgd.host.image.repartition import repartition_images
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.run import UNITS

configs = st.builds(
    WorkerConfig, engines=st.integers(1, 4), ports=st.integers(1, 2), lanes=st.sampled_from([8, 16, 64])
)
clusters = st.tuples(st.integers(1, 4), st.sampled_from(FORMS), configs)


@settings(max_examples=80)
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
    if kind == "minmax" and {before[1], after[1]} != {"lines"}:
        x[0], x = 0, np.abs(x)  # so that zeros stay zeros
    data = Dataset(x, rng.choice([-1.0, 1.0], 20), "made")

    def shards(cluster):
        workers, form, config = cluster
        workers = min(workers, -(-(features + bias) // unit))
        return deal(workers, features, form=form, config=config, bias=bias, unit=unit)

    given = prepare(data, shards(before), kind, stored=stored)
    expected = prepare(data, shards(after), kind, stored=stored)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repartition, "_BLOCK_VALUES", values)
        check_same(repartition_images(given, shards(after), name="made"), expected)


@pytest.mark.parametrize("largest", [1, 2])
def test_images_of_one_scale_each(tmp_path, largest):
    """In a file it is a view of one number for all features of a worker: another worker may have another."""
    x = np.eye(64)
    x[:, 32:] *= largest
    data, shards = Dataset(x, np.ones(64), "made"), deal(1, 64, bias=False)
    images = prepare(data, deal(2, 64, bias=False), directory=tmp_path)
    assert [image.scale.strides for image in images] == [(0,), (0,)]
    check_same(repartition_images(images, shards, name="made"), prepare(data, shards))


@pytest.mark.parametrize("after", FORMS)
@pytest.mark.parametrize("before", list(itertools.product(("lines", "entries"), repeat=2)))
@pytest.mark.parametrize("workers", [1, 3])
def test_units_need_not_be_consecutive(workers, before, after):
    data = make(40, 75)
    (whole,) = prepare(data, deal(1, 75))
    values = unpack_lines(np.stack(whole.port_lines), whole.layout)

    def image(worker, units):
        config = deal(1, 75, form=before[worker])[0].config
        shard = Shard(worker, config, np.array(units), whole.shard.unit, whole.shard.total)
        layout = shard.layout(whole.layout.samples, whole.layout.stored)
        lines = layout.memories(values[:, shard.columns])
        offset, scale = shard.take(whole.offset), shard.take(whole.scale)
        return dataclasses.replace(
            whole, layout=layout, shard=shard, workers=2, offset=offset, scale=scale, port_lines=tuple(lines)
        )

    images, shards = [image(0, [0, 3, 4, 9]), image(1, [1, 2, 5, 6, 7, 8])], deal(workers, 75, form=after)
    check_same(repartition_images(images, shards, name="made"), prepare(data, shards))


@pytest.mark.parametrize("after", FORMS)
@pytest.mark.parametrize("before", FORMS)
def test_a_rank_reads_only_images_that_have_its_units(before, after):
    """The eight units of four workers are dealt to two; the other rank's images are without lines here."""
    data, shards = make(40, 63), deal(2, 63, form=after)
    images = prepare(data, deal(4, 63, form=before))
    empty = [dataclasses.replace(image, port_lines=()) for image in images]
    given = [[*images[:2], *empty[2:]], [*empty[:2], *images[2:]]]
    got = run_ranks(2, lambda ranks: repartition_images(given[ranks.rank], shards, name="made", communicator=ranks))
    check_same([image for images in got for image in images], prepare(data, shards))


@pytest.mark.parametrize("files", [False, True], ids=["memory", "files"])
@pytest.mark.parametrize("before", ["data", *FORMS])
def test_entries_are_not_kept(tmp_path, monkeypatch, before, files):
    """A block is packed when it comes, so that images in files take no memory that grows with the data."""
    data, sizes, shards = make(800, density=0.3), [], deal(2, form="directories")
    given = [] if before == "data" else prepare(data, deal(3, form=before))
    expected = prepare(data, shards)

    class Counted(directories.DirectoryPacker):
        def __init__(self, block, layout):
            sizes.append(block.keys.size)
            super().__init__(block, layout)

    monkeypatch.setattr(directories, "DirectoryPacker", Counted)
    monkeypatch.setattr(packing, "_BLOCK_VALUES", 1024)
    monkeypatch.setattr(repartition, "_BLOCK_VALUES", 1024)
    if given:
        got = repartition_images(given, shards, name="made")
    else:
        got = prepare(data, shards, directory=tmp_path / "made" if files else None)
    assert max(sizes) <= 1024
    assert sum(sizes) > 10 * 1024
    check_same(got, expected)


@pytest.mark.parametrize("stored", [1, 8])
@pytest.mark.parametrize(
    ("before", "after"), [pair for pair in itertools.product(FORMS, FORMS) if set(pair) != {"lines"}]
)
def test_so_many_values_are_dealt_at_once(monkeypatch, before, after, stored):
    """Also if lines are full, or if some samples have all values and others none."""
    config, dealt = WorkerConfig(engines=2, ports=2, lanes=64), []
    dense = np.ones((800, 200))
    dense[300:600] = 0
    data = Dataset(scipy.sparse.csr_array(dense), np.ones(800), "made")
    given = prepare(data, deal(2, 200, form=before, config=config, unit=64), stored=stored)
    join = Values.join

    def counted(parts):
        dealt.append(sum(part.rows.size for part in parts))
        return join(parts)

    monkeypatch.setattr(Values, "join", counted)
    monkeypatch.setattr(repartition, "_BLOCK_VALUES", 8 * 8 * 201)
    shards = deal(1, 200, form=after, config=config, unit=64)
    check_same(repartition_images(given, shards, name="made"), prepare(data, shards, stored=stored))
    assert max(dealt) <= 8 * 8 * 201
    assert sum(dealt) >= 500 * 201
