"""Images: from a data set to lines and back, in memory and as files."""

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load

from p4sgd.host.data import Dataset, Scaling
from p4sgd.host.data.quantization import quantize, steps
from p4sgd.host.errors import UserError
from p4sgd.host.image import open_image, packing, prepare_images, store
from p4sgd.host.image.file import ImageWriter, is_image_file
from p4sgd.host.image.packing import PackedBlocks
from p4sgd.host.training.dealing.partition import partition
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.fixed import LABEL
from p4sgd.hw.spec.run import UNITS

CONFIG = WorkerConfig(engines=2, ports=2, lanes=8, chunks=16)
SPARSE = dataclasses.replace(CONFIG, sparse=True)


def make(rng, samples=37, features=50, *, sparse=False, negative=True, density=0.3):
    dense = rng.normal(size=(samples, features)) * 10.0 ** rng.integers(-5, 5, features)
    dense[rng.random(dense.shape) > density] = 0
    if not negative:
        dense = np.abs(dense)
    labels = rng.choice([-1.0, 1.0], samples)
    return Dataset(scipy.sparse.csr_array(dense) if sparse else dense, labels, "made")


def deal(features, workers, unit, config=CONFIG):
    return partition(features, [config] * workers, bias=True, unit=unit)


def read_entries(image):
    """A sparse worker's features as integers of 8 bits, with the padding of features."""
    starts, keys, values = image.lines(0).view("<i8"), image.lines(1).view("<u4"), image.lines(2)
    assert [image.lines(number).size for number in range(3, image.layout.config.labels_memory)] == [0]
    assert starts.shape == (image.layout.micro_batches + 1,)
    assert starts[0] == 0
    assert starts[-1] == keys.size == values.size
    q = np.zeros((image.layout.samples, image.layout.padded_features), np.int64)
    for micro_batch in range(image.layout.micro_batches):
        own = slice(starts[micro_batch], starts[micro_batch + 1])
        assert (np.diff(keys[own].astype(np.int64)) > 0).all(), "ascending, each once"
        q[8 * micro_batch + keys[own] % 8, keys[own] // 8] = values[own]
    assert np.count_nonzero(q) == values.size, "no zeros"
    assert q.max(initial=0) < 1 << image.layout.stored
    return q - ((q >> (image.layout.stored - 1) & image.signed) << image.layout.stored)


def read_back(images, precision=None):
    """All workers' features as integers, without the padding of features."""
    parts = []
    for image in images:
        if image.shard.config.sparse:
            q = read_entries(image)
            parts.append(image.layout.unpad(q))
            assert np.array_equal(q, image.layout.pad(parts[-1])), "missing features must be zero"
            expected = image.layout.memories(parts[-1])
            for number, content in enumerate(expected):
                assert np.array_equal(image.lines(number), content)
            continue
        lines = np.stack([image.lines(engine) for engine in range(image.layout.config.labels_memory)])
        q = image.layout.unpack_lines(lines, precision or image.layout.stored, image.signed)
        parts.append(image.layout.unpad(q))
        assert np.array_equal(q, image.layout.pad(parts[-1])), "missing features must be zero"
    return np.concatenate(parts, axis=1)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 1 << 30),
    samples=st.integers(1, 70),
    features=st.integers(20, 90),
    sparse=st.booleans(),
    negative=st.booleans(),
    kind=st.sampled_from(["minmax", "maxabs"]),
    workers=st.integers(1, 3),
    stored=st.integers(1, 8),
    batch=st.sampled_from([8, 16, 24]),
    bias=st.booleans(),
    unit=st.sampled_from(UNITS),
    config=st.sampled_from([CONFIG, SPARSE]),
    density=st.sampled_from([0.02, 0.3]),
)
def test_every_feature_is_in_its_place(
    seed, samples, features, sparse, negative, kind, workers, stored, batch, bias, unit, config, density
):
    rng = np.random.default_rng(seed)
    workers = min(workers, -(-(features + bias) // unit))
    data = make(rng, samples, features, sparse=sparse, negative=negative, density=density)
    scaling = Scaling.fit(data.features, kind)
    labels = LABEL.from_real(data.labels)
    shards = partition(features, [config] * workers, bias=bias, unit=unit)
    if config.sparse and quantize(scaling.zero, stored, scaling.signed).any():
        with pytest.raises(UserError, match="the scaling minmax makes zeros other numbers"):
            prepare_images(data, labels, scaling, shards, stored=stored, batch=batch)
        return
    images = prepare_images(data, labels, scaling, shards, stored=stored, batch=batch)
    padded = -(-samples // batch) * batch
    expected = np.zeros((padded, features + bias), np.int64)
    expected[:samples, :features] = quantize(scaling.apply(data.features), stored, scaling.signed)
    if bias:
        expected[:samples, -1] = steps(stored, scaling.signed) * (-1 if scaling.signed else 1)
    assert np.array_equal(read_back(images), expected)
    assert [image.shard.worker for image in images] == list(range(workers))
    for image in images:
        assert image.layout.samples == padded
        assert image.samples == samples
        assert image.signed == scaling.signed
        assert image.labels.dtype == np.int32
        assert image.labels[:samples].tolist() == labels.tolist()
        assert not image.labels[samples:].any()
        part = slice(image.shard.columns.start, min(features, image.shard.columns.stop))
        assert np.array_equal(image.scale, scaling.scale[part])
        assert np.array_equal(image.offset, scaling.offset[part])


@pytest.mark.parametrize("config", [CONFIG, SPARSE], ids=["dense", "sparse"])
@pytest.mark.parametrize("least", [0, 1 << 30], ids=["compiled", "small"])
def test_many_blocks(monkeypatch, least, config):
    monkeypatch.setattr("p4sgd.host.image.packing.COMPILED_VALUES", least)
    monkeypatch.setattr("p4sgd.host.image.packing._BLOCK_VALUES", 8 * 51 * 2)  # two micro-batches a block
    rng = np.random.default_rng(3)
    for sparse in (False, True):
        data = make(rng, 75, 50, sparse=sparse)
        scaling = Scaling.fit(data.features, "maxabs")
        shards = deal(50, 2, 16, config)
        images = prepare_images(data, LABEL.from_real(data.labels), scaling, shards, stored=5, batch=24)
        q = read_back(images)
        assert q.shape == (96, 51)
        assert np.array_equal(q[:75, :50], quantize(scaling.apply(data.features), 5, scaling.signed))
        assert not q[75:].any()


@pytest.fixture(params=[CONFIG, SPARSE], ids=["dense", "sparse"])
def prepared(tmp_path, request):
    rng = np.random.default_rng(5)
    data = make(rng, 40, 60)
    scaling = Scaling.fit(data.features, "maxabs")
    arguments = (data, LABEL.from_real(data.labels), scaling, deal(60, 2, 16, request.param))
    options = {"stored": 6, "batch": 16}
    return prepare_images(*arguments, **options), prepare_images(*arguments, **options, directory=tmp_path)


def test_files_hold_the_same(prepared, tmp_path):
    in_memory, in_files = prepared
    assert sorted(path.name for path in tmp_path.iterdir()) == ["worker0.p4sgd", "worker1.p4sgd"]
    for here, there in zip(in_memory, in_files, strict=True):
        again = open_image(there.path)
        for image in (there, again):
            for name in ("layout", "signed", "workers", "samples", "bias"):
                assert getattr(image, name) == getattr(here, name), name
            for name in ("worker", "unit", "total"):
                assert getattr(image.shard, name) == getattr(here.shard, name), name
            assert image.shard.units.tolist() == here.shard.units.tolist()
            for name in ("labels", "offset", "scale"):
                assert np.array_equal(getattr(image, name), getattr(here, name)), name
            for number in range(4):
                lines = image.lines(number)
                if not image.shard.config.sparse:
                    assert lines.shape == image.layout.lines_shape
                assert lines.flags.c_contiguous
                assert not lines.flags.writeable or not lines.size
                assert np.array_equal(lines, here.lines(number))


def test_arrays_are_pages_in_the_words_of_safetensors(prepared):
    _, (image, _) = prepared
    raw = image.path.read_bytes()
    data = 8 + int.from_bytes(raw[:8], "little")
    arrays, fields = load(raw), json.loads(raw[8:data])
    sparse = image.shard.config.sparse
    lists = ["starts", "keys", "values"] if sparse else ["lines0", "lines1", "lines2", "lines3"]
    names = [name for name in fields if not name.startswith(("padding", "_"))]
    assert names == [*lists, "labels", "offset", "scale", "units"]
    assert all((data + fields[name]["data_offsets"][0]) % 4096 == 0 for name in names)
    for number, name in enumerate(lists):
        assert arrays[name].tobytes() == image.lines(number).tobytes()


def test_damage_is_seen(prepared):
    """Of lines, keys and values only on request, because it takes to read them."""
    _, (image, other) = prepared
    whole = image.path.read_bytes()
    data = 8 + int.from_bytes(whole[:8], "little")
    fields = json.loads(whole[8:data])
    for name in fields.keys() - {"__metadata__"}:
        damaged = bytearray(whole)
        damaged[data + fields[name]["data_offsets"][0]] ^= 1
        image.path.write_bytes(damaged)
        if not name.startswith(("lines", "keys", "values", "padding")):
            with pytest.raises(UserError, match=f"^{image.path}: .*{name}.*: prepare the data again"):
                open_image(image.path, verify=False)
        elif not name.startswith("padding"):
            open_image(image.path, verify=False)
            with pytest.raises(UserError, match=f"^{image.path}: .*{name}.*: prepare the data again"):
                open_image(image.path)
    for content in (whole[:-4096], b"", whole[:30], b"P4SGDIMG\x05" + bytes(99)):
        image.path.write_bytes(content)
        with pytest.raises(UserError, match=f"^{image.path}: .*: prepare the data again"):
            open_image(image.path)
    assert is_image_file(image.path), "of an earlier version, which may be replaced"
    assert open_image(other.path).shard.worker == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch": 12}, "batch must be a multiple of 8, not 12"),
        ({"batch": 0}, "batch must be a multiple of 8"),
        ({"stored": 9}, "stored planes must be 1 to 8"),
    ],
)
def test_refused(change, message):
    data = make(np.random.default_rng(0))
    with pytest.raises(UserError, match=message):
        prepare_images(data, LABEL.from_real(data.labels), Scaling.fit(data.features), deal(50, 1, 8), **change)


def test_images_larger_than_memory_are_refused(tmp_path, monkeypatch):
    """A few sparse samples of very many features make a large image; files may hold it."""
    monkeypatch.setattr(store, "available_memory", lambda: 10_000)
    data = make(np.random.default_rng(0), samples=300, sparse=True)
    arguments = data, LABEL.from_real(data.labels), Scaling.fit(data.features, "maxabs"), deal(50, 1, 8)
    sparse = *arguments[:3], deal(50, 1, 8, SPARSE)
    where = "--images DIR.*data prepare.*--planes"
    with pytest.raises(UserError, match=f"300 samples of 50 features .* GB, zeros included, and .*{where}"):
        prepare_images(*arguments)
    with pytest.raises(UserError, match=f"300 samples of 50 features .* GB and .*{where}"):
        prepare_images(*sparse)
    assert prepare_images(*arguments, directory=tmp_path)[0].samples == 300
    monkeypatch.setattr(store, "available_memory", lambda: None)
    assert prepare_images(*arguments)[0].samples == 300


def test_files_do_not_depend_on_blocks(tmp_path):
    data = make(np.random.default_rng(2), 64, 60, sparse=True, density=0.1)
    data.features.data[::3] = 0  # stored, but 0
    scaling, labels = Scaling.fit(data.features, "maxabs"), LABEL.from_real(data.labels)
    for config in (CONFIG, SPARSE):
        shards = deal(60, 1, 16, config)
        (expected,) = prepare_images(data, labels, scaling, shards, batch=16, directory=tmp_path)
        counts = np.count_nonzero(data.features.toarray(), axis=0)
        (planned,) = packing.plan_images(labels, scaling, shards, batch=16, counts=counts)
        with (tmp_path / "again").open("w+b") as file, pytest.MonkeyPatch.context() as patch:
            patch.setattr(packing, "_BLOCK_VALUES", 64)
            writer = ImageWriter(planned).begin(file)
            for (part,) in PackedBlocks(data.parts, data.samples, [planned], scaling):
                writer.append(part)
            writer.finish()
        assert (tmp_path / "again").read_bytes() == expected.path.read_bytes()
        assert expected.path.stat().st_size <= writer.size


def test_sparse_workers_without_values(tmp_path):
    """One worker's columns and one sample are all zeros; the file of that worker has empty sections."""
    x = np.zeros((9, 20))
    x[3, 2], x[4, 2] = 1, -1
    shards = partition(20, [SPARSE] * 2, bias=False, unit=8)
    for features in (x, scipy.sparse.csr_array(x)):
        data = Dataset(features, np.ones(9), "made")
        for directory in (None, tmp_path):
            arguments = data, LABEL.from_real(data.labels), Scaling.fit(features, "maxabs"), shards
            images = prepare_images(*arguments, directory=directory)
            assert [image.lines(2).tolist() for image in images] == [[127, 129], []]
            assert not read_back(images)[:, 3:].any()
    assert open_image(images[1].path).lines(1).size == 0


def test_available_memory():
    assert 1 << 20 < store.available_memory() < 1 << 50


@pytest.mark.parametrize("kind", [KeyboardInterrupt, MemoryError])
def test_interrupted_nothing_is_left(tmp_path, monkeypatch, kind):
    def fail(block, shard, layout):
        raise kind

    data = make(np.random.default_rng(0))
    (tmp_path / "worker0.p4sgd").write_text("older")
    monkeypatch.setattr("p4sgd.host.image.packing._pack", fail)
    with pytest.raises(kind):
        prepare_images(
            data,
            LABEL.from_real(data.labels),
            Scaling.fit(data.features),
            deal(50, 2, 8),
            directory=tmp_path,
        )
    assert [path.name for path in tmp_path.iterdir()] == ["worker0.p4sgd"]
    assert (tmp_path / "worker0.p4sgd").read_text() == "older"


FULL_DISK = """
import resource, sys
import numpy as np
from pathlib import Path
from p4sgd.host.data import Dataset, Scaling
from p4sgd.host.errors import UserError
from p4sgd.host.image import prepare_images
from p4sgd.host.training.dealing.partition import partition
from p4sgd.hw.spec.config import WorkerConfig
x = np.random.default_rng(0).random((4000, 100))
data = Dataset(x, np.zeros(4000), "made")
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    shards = partition(100, [WorkerConfig()], bias=True, unit=64)
    prepare_images(data, np.zeros(4000, np.int64), Scaling.fit(x), shards, directory=Path(sys.argv[1]))
except UserError as error:
    print(error)
"""


def test_no_room_for_the_file(tmp_path):
    """The system refuses more than 100 kB a file."""
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"{tmp_path}/worker0.p4sgd: cannot write: the disk is full, ")
    assert "MB are needed: free some space or choose another folder" in done.stdout
    assert list(tmp_path.iterdir()) == []
