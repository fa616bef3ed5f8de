"""A data file read in blocks is what is read as a whole, mistakes included."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.data_files import FORMATS, WITHOUT_TEXTS, make_samples, read_in_blocks, use_small_blocks, write_data

from p4sgd.host.data import read_dataset
from p4sgd.host.data.formats.text_file import line_blocks, open_data


@pytest.fixture
def small_blocks(monkeypatch):
    use_small_blocks(monkeypatch)


def dense(features):
    return features if isinstance(features, np.ndarray) else features.toarray()


def check_blocks(path, **options):
    """Read a file whole and in blocks, and compare; returns their number."""
    whole, (blocks, count) = read_dataset(path, **options), read_in_blocks(path, **options)
    assert dense(blocks.features).tobytes() == dense(whole.features).tobytes()
    assert blocks.features.dtype == whole.features.dtype
    assert (blocks.sparse, blocks.space, blocks.remarks) == (whole.sparse, whole.space, whole.remarks)
    assert (blocks.labels.tolist(), blocks.label_names) == (whole.labels.tolist(), whole.label_names)
    return count


@pytest.mark.parametrize(
    ("name", "texts"),
    [(name, texts) for name in FORMATS for texts in (False, True) if not (texts and name in WITHOUT_TEXTS)],
)
def test_every_format(tmp_path, small_blocks, name, texts):
    path = write_data(tmp_path, name, *make_samples(5, texts=texts))
    assert check_blocks(path) > 3


@pytest.mark.parametrize("kind", ["float32", "int8", "compressed", "row groups", "iris", "signs", "from 0", "words"])
def test_other_types_and_sets(tmp_path, small_blocks, kind):
    x, labels = make_samples(3, 41, 13)
    path = tmp_path / "made.npz"
    if kind == "row groups":
        path = tmp_path / "made.parquet"
        columns = {f"x{place}": column for place, column in enumerate(x.T)}
        pq.write_table(pa.table({**columns, "label": labels}), path, row_group_size=7)
        assert np.array_equal(read_dataset(path).features, x)
    elif kind == "signs":  # which pyarrow refuses, in the middle
        path = tmp_path / "made.csv"
        path.write_text("".join(f"{i}.25,{'+' * (i == 30)}{i + 1},{i % 2}\n" for i in range(41)))
    elif kind == "from 0":  # which the last line tells
        path = tmp_path / "made.libsvm"
        path.write_text("1 2:1 5:3\n0 7:1\n" * 20 + "1 0:1\n")
    elif kind == "words":  # values in the same column are added in the same order
        path, values = tmp_path / "made.vw", np.random.default_rng(3).normal(size=(41, 40)).tolist()
        rows = (" ".join(f"w{place % 30}:{value!r}" for place, value in enumerate(row)) for row in values)
        path.write_text("".join(f"{place % 2} |n {row}\n" for place, row in enumerate(rows)))
    elif kind == "compressed":
        np.savez_compressed(path, X=(100 * x).round(), y=labels)
    else:
        np.savez(path, X=x if kind == "iris" else (10 * x).astype(kind), y=labels)
    source, options = kind if kind == "iris" else path, {"hash_bits": 6} if kind == "words" else {}
    check_blocks(source, **options)


@settings(max_examples=100)
@given(
    lines=st.lists(st.binary(max_size=9).map(lambda line: line.replace(b"\n", b"")), max_size=20),
    ended=st.booleans(),
    block_size=st.integers(1, 30),
    mark=st.sampled_from([b"", b"\xef\xbb\xbf"]),
)
def test_blocks_have_whole_lines(lines, ended, block_size, mark, tmp_path_factory):
    path = tmp_path_factory.mktemp("lines") / "file.txt"
    text = b"\n".join(lines) + b"\n" * ended
    if text.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\xef\xbb\xbf")):
        text = b"." + text
    path.write_bytes(mark + text)
    with open_data(path) as file:
        blocks = list(line_blocks(file, block_size))
    assert [line for block in blocks for line in io.BytesIO(block)] == list(io.BytesIO(text))
    assert all(block.endswith(b"\n") for block in blocks[:-1])
