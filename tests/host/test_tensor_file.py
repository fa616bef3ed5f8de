"""The container: what is written comes back, in the words of safetensors, and every damage is an error."""

import struct
from functools import partial

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


@pytest.mark.parametrize("text", [False, True])
def test_every_damage_is_seen(tmp_path, text):
    """A flipped bit anywhere, and an end that comes too early or too late."""
    path, read = tmp_path / "file", KIND.load_text if text else KIND.load
    if text:
        KIND.save_text(path, HEADER)
        assert read(path) == (HEADER, path.read_bytes())
    else:
        KIND.save(path, ARRAYS, HEADER)
    content = path.read_bytes()
    flipped = [
        content[:place] + bytes([each ^ 1 << place % 8]) + content[place + 1 :] for place, each in enumerate(content)
    ]
    for damaged in (*flipped, *(content[:keep] for keep in range(len(content) - text)), content + b"\0"):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=f"^{path}: .*: make (one|it again)$"):
            read(path)


@pytest.mark.parametrize("length", [0, 1, 7, 1 << 20, 100_000_001, 1 << 63, (1 << 64) - 1])
def test_forged_sizes_of_the_header(tmp_path, length):
    path = tmp_path / "file"
    KIND.save(path, ARRAYS, HEADER)
    path.write_bytes(struct.pack("<Q", length) + path.read_bytes()[8:])
    with pytest.raises(UserError, match=f"^{path}: not a thing of p4sgd, or damaged: make one"):
        KIND.load(path)
    assert not KIND.is_of(path)


@pytest.mark.parametrize("content", [b"", b"\2\0\0\0\0\0\0\0[]", b"\x10\0\0\0\0\0\0\0" + b"[" * 16, b"1,2,3\n" * 100])
def test_files_that_are_none(tmp_path, content):
    path = tmp_path / "file"
    path.write_bytes(content)
    for read in (KIND.load, KIND.load_text, lambda path: KIND.map(path, bool)):
        with pytest.raises(UserError, match=f"^{path}: (not a thing .*damaged|cannot read)"):
            read(path)
        with pytest.raises(UserError, match=f"{tmp_path}/no: cannot read the thing: No such file .*: make one"):
            read(tmp_path / "no")
    assert not KIND.is_of(path)
    with pytest.raises(UserError, match=r"cannot read: Is a directory$"):
        KIND.is_of(tmp_path)


def test_what_is_nested_too_deeply(tmp_path):
    """Also where Python could read it, but not all who use it."""
    deep = []
    for _ in range(64):
        deep = [deep]
    path = tmp_path / "file"
    for save, read in ((partial(KIND.save, path, {}), KIND.load), (partial(KIND.save_text, path), KIND.load_text)):
        save({"header": deep[0][0]})
        read(path)
        save({"header": deep})
        with pytest.raises(UserError, match=r"/file: .*damaged"):
            read(path)


def test_other_versions(tmp_path):
    later = FileKind("p4sgd-thing", 4, "", "")
    later.save(tmp_path / "later", {}, {})
    later.save_text(tmp_path / "text", {})
    for read, name in ((KIND.load, "later"), (KIND.load_text, "text")):
        with pytest.raises(UserError, match=f"{name}: a thing of version 4, .* reads version 3: make it again"):
            read(tmp_path / name)
    assert KIND.is_of(tmp_path / "later")


def test_what_is_decoded_names_the_file():
    for error in (KeyError("x"), ValueError("x"), UserError("x"), IndexError("x"), RecursionError("x"), TypeError("x")):
        with pytest.raises(UserError, match=r"^file: a damaged thing: .*x.*: make it again"), KIND.decoding("file"):
            raise error
