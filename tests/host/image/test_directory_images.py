"""Images with directories: the lines that the definition packs, from sparse and dense data, in memory and in files."""

import dataclasses
import itertools

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from p4sgd.host.data import Dataset, Scaling
from p4sgd.host.data.quantization import quantize, steps
from p4sgd.host.errors import UserError
from p4sgd.host.image import directories, open_image, packing, prepare_images, repartition, store
from p4sgd.host.image.entries import Values
from p4sgd.host.image.repartition import repartition_images
from p4sgd.host.training.dealing.partition import partition
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.fixed import LABEL
from p4sgd.hw.spec.run import UNITS

CONFIG = WorkerConfig(engines=2, ports=2, lanes=8, chunks=16)
SPARSE = dataclasses.replace(CONFIG, sparse=True)
FORMS = ("lines", "directories", "entries")


def make(samples=37, features=60, *, density=0.05, sparse=True, seed=3):
    rng = np.random.default_rng(seed)
    dense = rng.normal(size=(samples, features)) * (rng.random((samples, features)) < density)
    return Dataset(scipy.sparse.csr_array(dense) if sparse else dense, rng.choice([-1.0, 1.0], samples), "made")


def deal(workers, features=60, *, form="directories", config=CONFIG, bias=True, unit=8):
    config = dataclasses.replace(config, engines=3, sparse=True) if form == "entries" else config
    shards = partition(features, [config] * workers, bias=bias, unit=unit)
    return [dataclasses.replace(shard, directory=form == "directories") for shard in shards]


def prepare(data, shards, **options):
    scaling = Scaling.fit(data.features, "maxabs")
    return prepare_images(data, LABEL.from_real(data.labels), scaling, shards, **options)


def check(images, q):
    """Compare images with what the definition makes of quantised features: int (samples, features of the job)."""
    for image in images:
        parts, starts = image.layout.pack_directories(q[:, image.shard.columns])
        assert image.starts.tolist() == starts.tolist()
        assert image.starts.dtype == np.int64
        assert len(image.port_lines) == len(parts) == image.layout.config.labels_memory
        for number, part in enumerate(parts):
            assert image.lines(number).shape == part.shape
            assert image.lines(number).flags.c_contiguous
            assert np.array_equal(image.lines(number), part)
        assert image.lines_bytes == sum(part.nbytes for part in parts)


def check_same(images, others):
    """Compare images of the same workers."""
    for ours, theirs in zip(images, others, strict=True):
        assert ours.layout == theirs.layout
        assert np.array_equal(ours.starts, theirs.starts)  # also if there are none
        for here, there in zip(ours.port_lines, theirs.port_lines, strict=True):
            assert here.shape == there.shape
            assert np.array_equal(here, there)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 1 << 30),
    samples=st.integers(1, 70),
    features=st.integers(20, 200),
    sparse=st.booleans(),
    density=st.sampled_from([0.0, 0.003, 0.05, 1.0]),
    workers=st.integers(1, 3),
    stored=st.integers(1, 8),
    batch=st.sampled_from([8, 16, 24]),
    bias=st.booleans(),
    unit=st.sampled_from(UNITS),
    engines=st.integers(1, 3),
    ports=st.integers(1, 2),
    lanes=st.sampled_from([8, 16, 64]),
    values=st.sampled_from([64, 1 << 17]),
)
def test_lines_are_those_of_the_definition(
    seed, samples, features, sparse, density, workers, stored, batch, bias, unit, engines, ports, lanes, values
):
    config = WorkerConfig(engines=engines, ports=ports, lanes=lanes)
    workers = min(workers, -(-(features + bias) // unit))
    data = make(samples, features, density=density, sparse=sparse, seed=seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "_BLOCK_VALUES", values)
        shards = deal(workers, features, config=config, bias=bias, unit=unit)
        images = prepare(data, shards, stored=stored, batch=batch)
    scaling = Scaling.fit(data.features, "maxabs")
    q = np.zeros((images[0].layout.samples, features + bias), np.int64)
    q[:samples, :features] = quantize(scaling.apply(data.features), stored, scaling.signed)
    q[:samples, features:] = steps(stored, scaling.signed) * (-1 if scaling.signed else 1)
    check(images, q)


@pytest.mark.parametrize("values", [1, 1 << 17])
@pytest.mark.parametrize("block", [1, 1 << 24])
def test_files_hold_the_same(tmp_path, monkeypatch, block, values):
    data, shards = make(), deal(2)
    in_memory = prepare(data, shards)
    monkeypatch.setattr(directories, "_BLOCK_BYTES", block)
    monkeypatch.setattr(packing, "_BLOCK_VALUES", values)
    in_files = prepare(data, shards, directory=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["worker0.p4sgd", "worker1.p4sgd"]
    for images in (in_files, [open_image(image.path) for image in in_files]):
        check_same(images, in_memory)
        for image, before in zip(images, in_memory, strict=True):
            assert image.shard.directory
            assert image.exempt == before.exempt
            assert not any(lines.flags.writeable for lines in image.port_lines)


@pytest.mark.parametrize("before", FORMS)
@pytest.mark.parametrize("after", FORMS)
def test_other_workers_get_units(before, after):
    """From images of every form to images of every form: those that are prepared for the workers."""
    data = make(density=0.1)
    given = prepare(data, deal(3, form=before))
    check_same(repartition_images(given, deal(2, form=after), name="made"), prepare(data, deal(2, form=after)))


@pytest.mark.parametrize("files", [False, True], ids=["memory", "files"])
@pytest.mark.parametrize("before", ["data", *FORMS])
def test_entries_are_not_kept(tmp_path, monkeypatch, before, files):
    """A block is packed when it comes, so that images in files take no memory that grows with the data."""
    data, sizes = make(800, density=0.3), []
    given = [] if before == "data" else prepare(data, deal(3, form=before))
    expected = prepare(data, deal(2))

    class Counted(directories.DirectoryPacker):
        def __init__(self, block, layout):
            sizes.append(block.keys.size)
            super().__init__(block, layout)

    monkeypatch.setattr(store, "DirectoryPacker", Counted)
    monkeypatch.delattr(store, "_EntryStore")
    monkeypatch.setattr(packing, "_BLOCK_VALUES", 1024)
    monkeypatch.setattr(repartition, "_BLOCK_VALUES", 1024)
    folder = tmp_path / "made" if files else None
    got = (
        repartition_images(given, deal(2), name="made", directory=folder)
        if given
        else prepare(data, deal(2), directory=folder)
    )
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


def test_room_is_for_the_lines_that_there_are(monkeypatch):
    """Zeros of many columns take none."""
    data, shards = make(40, 4000, density=0.001), deal(1, 4000, config=WorkerConfig(ports=2, lanes=8, chunks=1024))
    (image,) = prepare(data, shards)
    assert image.lines_bytes < image.layout.lines_bytes * image.layout.config.labels_memory // 10
    monkeypatch.setattr(store, "available_memory", lambda: image.lines_bytes)
    prepare(data, shards)
    monkeypatch.setattr(store, "available_memory", lambda: image.lines_bytes - 1)
    with pytest.raises(UserError, match=r"made: the memory images of 40 samples of 4,000 features take .* GB and"):
        prepare(data, shards)


def test_zeros_must_stay_zeros():
    data = make(sparse=False)
    scaling = Scaling.fit(data.features, "minmax")
    with pytest.raises(UserError, match="scaling minmax makes zeros other numbers, so none can be skipped: use the"):
        prepare_images(data, LABEL.from_real(data.labels), scaling, deal(1))
