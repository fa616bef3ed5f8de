"""The container: what is written comes back, in the words of safetensors, and every damage is an error."""

import json
import os
import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as of_numpy
from safetensors.numpy import load

from p4sgd.host.errors import UserError
from p4sgd.host.tensor_file import FileKind

KIND = FileKind("p4sgd-thing", 3, "thing", "make one", "make it again")
ALIGNED = FileKind("p4sgd-thing", 3, "thing", "make one", "make it again", alignment=64)
HEADER = {"text": 'Größe "crc32":"00000000"', "numbers": [1, 0.1, None]}
ARRAYS = {"bytes": np.uint8([1, 2, 3]), "none": np.empty((0, 2)), "floats": np.full((2, 3), 0.1)}
TYPES = st.sampled_from([np.uint8, np.int32, np.uint32, np.int64, np.float32, np.float64])


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    arrays=st.dictionaries(st.sampled_from("abcd"), of_numpy.arrays(TYPES, of_numpy.array_shapes(min_side=0))),
    kind=st.sampled_from([KIND, ALIGNED]),
)
def test_arrays_come_back(tmp_path, arrays, kind):
    path = tmp_path / "file"
    kind.save(path, arrays, HEADER)
    loaded, header = kind.load(path)
    mapped, same_header, _ = kind.map(path, lambda name: True)
    theirs = load(path.read_bytes())
    assert header == same_header == HEADER
    assert loaded.keys() == mapped.keys() == arrays.keys() == {name for name in theirs if "padding" not in name}
    for name, array in arrays.items():
        for found in (loaded[name], mapped[name], theirs[name]):
            assert (found.dtype, found.shape, found.tobytes()) == (array.dtype, array.shape, array.tobytes())
        assert loaded[name].flags.writeable
        assert not mapped[name].flags.writeable
        assert mapped[name].ctypes.data % kind.alignment == 0
    assert kind.is_of(path)


def test_a_flipped_bit_is_seen_anywhere(tmp_path):
    path = tmp_path / "file"
    KIND.save(path, ARRAYS, HEADER)
    content = path.read_bytes()
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=f"^{path}: "):
            KIND.load(path)


def test_a_flipped_bit_of_a_text_is_seen(tmp_path):
    path = tmp_path / "file"
    KIND.save_text(path, HEADER)
    content = path.read_bytes()
    assert KIND.load_text(path) == (HEADER, content)
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=f"^{path}: "):
            KIND.load_text(path)


@pytest.mark.parametrize("length", [0, 1, 7, 1 << 20, 100_000_001, 1 << 63, (1 << 64) - 1])
def test_forged_sizes_of_the_header(tmp_path, length):
    path = tmp_path / "file"
    KIND.save(path, ARRAYS, HEADER)
    path.write_bytes(struct.pack("<Q", length) + path.read_bytes()[8:])
    with pytest.raises(UserError, match=f"^{path}: not a thing of p4sgd, or damaged: make one"):
        KIND.load(path)
    assert not KIND.is_of(path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not a thing .*damaged"),
        (b"\2\0\0\0\0\0\0\0[]", "not a thing .*damaged"),
        (b"\x10\0\0\0\0\0\0\0" + b"[" * 16, "not a thing .*damaged"),
        (b"1,2,3\n" * 100, "not a thing .*damaged"),
    ],
)
def test_files_that_are_none(tmp_path, content, says):
    path = tmp_path / "file"
    path.write_bytes(content)
    for read in (KIND.load, KIND.load_text, lambda path: KIND.map(path, bool)):
        with pytest.raises(UserError, match=f"^{path}: "):
            read(path)
    with pytest.raises(UserError, match=says):
        KIND.load(path)
    assert not KIND.is_of(path)


def test_cut_off_longer_or_missing(tmp_path):
    path = tmp_path / "file"
    KIND.save(path, ARRAYS, HEADER)
    content = path.read_bytes()
    for keep in range(len(content)):
        path.write_bytes(content[:keep])
        with pytest.raises(UserError, match=f"^{path}: "):
            KIND.load(path)
    path.write_bytes(content + b"\0")
    with pytest.raises(UserError, match=f"^{path}: a damaged thing: .* bytes: make it again"):
        KIND.load(path)
    with pytest.raises(UserError, match=f"{tmp_path}/no: cannot read the thing: No such file .*: make one"):
        KIND.load(tmp_path / "no")
    with pytest.raises(UserError, match="cannot read: Is a directory"):
        KIND.is_of(tmp_path)


def test_other_versions(tmp_path):
    KIND.save(tmp_path / "now", {}, {})
    later = FileKind("p4sgd-thing", 4, "", "")
    later.save(tmp_path / "later", {}, {})
    later.save_text(tmp_path / "text", {})
    KIND.load(tmp_path / "now")
    for read, name in ((KIND.load, "later"), (KIND.load_text, "text")):
        with pytest.raises(UserError, match=f"{name}: a thing of version 4, .* reads version 3: make it again"):
            read(tmp_path / name)
    assert KIND.is_of(tmp_path / "later")


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    KIND.save(path, ARRAYS, HEADER)
    before = path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="the disk is full"):
        KIND.save(path, {}, {})
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [path.name]


def test_what_is_decoded_names_the_file(tmp_path):
    for error in (
        KeyError("x"),
        json.JSONDecodeError("x", "", 0),
        UserError("x"),
        IndexError("x"),
        RecursionError("x"),
    ):
        with pytest.raises(UserError, match=r"^file: a damaged thing: .*x.*: make it again"), KIND.decoding("file"):
            raise error
