"""Images of all forms: those of the definition, in memory and as files."""

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load
from support.disk import small_disk
from support.images import FORMS, check_same, deal, make, prepare

from p4sgd.host.data import Scaling
from p4sgd.host.data.quantization import quantize, steps
from p4sgd.host.errors import UserError
from p4sgd.host.image import directories, file, open_image, packing
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.fixed import LABEL
from p4sgd.hw.spec.run import UNITS


def check(images, data, scaling):
    """Compare images with what the definition makes of the quantised features."""
    layout, bias = images[0].layout, images[0].bias
    q = np.zeros((layout.samples, data.feature_count + bias), np.int64)
    q[: data.samples, : data.feature_count] = quantize(scaling.apply(data.features), layout.stored, scaling.signed)
    q[: data.samples, data.feature_count :] = steps(layout.stored, scaling.signed) * (-1 if scaling.signed else 1)
    for image in images:
        own = q[:, image.shard.columns]
        expected, starts = image.layout.memories(own), None
        if image.shard.directory:
            expected, starts = image.layout.pack_directories(own)
            assert image.starts.dtype == np.int64
            assert image.lines_bytes == sum(part.nbytes for part in expected)
        assert np.array_equal(image.starts, starts)  # also if there are none
        assert len(image.port_lines) == len(expected) == image.layout.config.labels_memory
        for here, there in zip(image.port_lines, expected, strict=True):
            assert here.flags.c_contiguous
            assert np.array_equal(here.reshape(-1), there.reshape(-1))
        assert image.labels.dtype == np.int32
        assert image.labels[: data.samples].tolist() == LABEL.from_real(data.labels).tolist()
        assert not image.labels[data.samples :].any()
        part = slice(image.shard.columns.start, min(data.feature_count, image.shard.columns.stop))
        assert np.array_equal(image.scale, scaling.scale[part])
        assert np.array_equal(image.offset, scaling.offset[part])


@settings(max_examples=100)
@given(
    form=st.sampled_from(FORMS),
    seed=st.integers(0, 1 << 30),
    samples=st.integers(1, 70),
    features=st.integers(20, 200),
    sparse=st.booleans(),
    negative=st.booleans(),
    kind=st.sampled_from(["minmax", "maxabs"]),
    density=st.sampled_from([0.0, 0.003, 0.05, 0.3, 1.0]),
    workers=st.integers(1, 3),
    stored=st.integers(1, 8),
    batch=st.sampled_from([8, 16, 24]),
    bias=st.booleans(),
    unit=st.sampled_from(UNITS),
    config=st.builds(
        WorkerConfig, engines=st.integers(1, 3), ports=st.integers(1, 2), lanes=st.sampled_from([8, 16, 64])
    ),
    least=st.sampled_from([0, 1 << 30]),
    values=st.sampled_from([1, 64, 1 << 17]),
)
def test_as_defined(
    form, seed, samples, features, sparse, negative, kind, density, workers, stored, batch, bias, unit, config, least,
    values,
):  # fmt: skip
    """In memory and in files, however data are divided into blocks; of stored zeros there is no entry, but room."""
    workers = min(workers, -(-(features + bias) // unit))
    data = make(samples, features, density=density, sparse=sparse, negative=negative, seed=seed)
    shards = deal(workers, features, form=form, config=config, bias=bias, unit=unit)
    if sparse:
        data.features.data[::3] = 0
    scaling = Scaling.fit(data.features, kind)
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(packing, "_BLOCK_VALUES", values)
        patch.setattr(directories, "_BLOCK_BYTES", values)
        patch.setattr("p4sgd.host.data.statistics.COMPILED_VALUES", least)
        if form != "lines" and quantize(scaling.zero, stored, scaling.signed).any():
            with pytest.raises(UserError, match="the scaling minmax makes zeros other numbers"):
                prepare(data, shards, kind, stored=stored, batch=batch)
            return
        images = prepare(data, shards, kind, stored=stored, batch=batch)
        in_files = prepare(data, shards, kind, stored=stored, batch=batch, directory=Path(folder))
        check_same(in_files, images)
        names = [f"worker{number}.p4sgd" for number in range(workers)]
        check_same([open_image(Path(folder, name)) for name in names], images)
        assert sorted(path.name for path in Path(folder).iterdir()) == names
        assert not any(lines.flags.writeable and lines.size for image in in_files for lines in image.port_lines)
    assert [image.shard.worker for image in images] == list(range(workers))
    assert all(image.labels is images[0].labels for image in images), "there may be many samples"
    assert {image.layout.samples for image in images} == {-(-samples // batch) * batch}
    check(images, data, scaling)


@pytest.mark.parametrize("form", FORMS)
def test_files(tmp_path, form):
    """In the words of safetensors, arrays begin with pages; damage of lines, keys and values is seen on request."""
    (image,), path = prepare(make(), deal(1, form=form), directory=tmp_path), tmp_path / "worker0.p4sgd"
    whole = path.read_bytes()
    data, arrays = 8 + int.from_bytes(whole[:8], "little"), load(whole)
    fields = {
        name: field for name, field in json.loads(whole[8:data]).items() if not name.startswith(("__", "padding"))
    }
    lists = ["starts", "keys", "values"] if form == "entries" else [f"lines{number}" for number in range(4)]
    assert list(fields) == [*lists, "labels", "offset", "scale", "units", *["starts"] * image.shard.directory]
    for number, name in enumerate(lists):
        assert arrays[name].tobytes() == image.port_lines[number].tobytes()
    for name, field in fields.items():
        first = data + field["data_offsets"][0]
        assert first % 4096 == 0
        path.write_bytes(whole[:first] + bytes([whole[first] ^ 1]) + whole[first + 1 :])
        large = name.startswith(("lines", "keys", "values"))
        if large:
            open_image(path, verify=False)
        with pytest.raises(UserError, match=f"^{path}: .*{name}.*: prepare the data again"):
            open_image(path, verify=large)
    for content in (whole[:-4096], b"", whole[:30]):
        path.write_bytes(content)
        with pytest.raises(UserError, match=f"^{path}: .*: prepare the data again"):
            open_image(path)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, MemoryError])
def test_interrupted_nothing_is_left(tmp_path, monkeypatch, kind):
    def fail(q, layout, samples):
        raise kind

    (tmp_path / "worker0.p4sgd").write_text("older")
    monkeypatch.setattr(packing, "pack_lines", fail)
    with pytest.raises(kind):
        prepare(make(), deal(2), directory=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["worker0.p4sgd"]
    assert (tmp_path / "worker0.p4sgd").read_text() == "older"


def test_no_room_for_the_file(tmp_path):
    with (
        small_disk(100_000),
        pytest.raises(UserError, match=f"^{tmp_path}/worker0.p4sgd: cannot write: the disk is full"),
    ):
        prepare(make(4000, 100, sparse=False), deal(1, 100), directory=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("form", "zeros"), [("lines", ", zeros included,"), ("entries", ""), ("directories", "")])
def test_images_larger_than_memory_are_refused(tmp_path, monkeypatch, form, zeros):
    """A few sparse samples of very many features make a large image; files may hold it. Skipped zeros take no room."""
    assert 1 << 20 < file.available_memory() < 1 << 50
    data = make(40, 4000, density=0.001)
    shards = deal(1, 4000, form=form, config=WorkerConfig(ports=2, lanes=8, chunks=1024))
    (image,) = prepare(data, shards)
    whole = image.layout.lines_bytes * image.layout.config.labels_memory
    assert (image.lines_bytes < whole // 10) == (form != "lines")
    least = 1 << 20 if form == "entries" else image.lines_bytes  # of entries there is room for more
    monkeypatch.setattr(file, "available_memory", lambda: 100 if form == "entries" else least - 1)
    where = "data prepare.*--planes"
    with pytest.raises(UserError, match=f"made: .*40 samples of 4,000 features .* GB{zeros} and .*{where}"):
        prepare(data, shards)
    assert prepare(data, shards, directory=tmp_path)[0].samples == 40
    for available in (least, None):
        monkeypatch.setattr(file, "available_memory", lambda available=available: available)
        prepare(data, shards)
