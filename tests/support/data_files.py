"""Data files of every format, and readers that read them in blocks of a few samples."""

import bz2
import gzip
import lzma

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.sparse
from sklearn.datasets import dump_svmlight_file

from p4sgd.host.data import Dataset, read_dataset
from p4sgd.host.data.dataset import with_features
from p4sgd.host.data.formats import csv_file, npy, npz, parquet, sparse_text
from p4sgd.host.data.formats.source import scan
from p4sgd.host.data.matrix import join_rows
from p4sgd.host.data.read import open_source
from p4sgd.host.data.synth import make_source
from p4sgd.host.training.preparation import encode

FORMATS = ("data.libsvm", "data.libsvm.gz", "data.csv", "data.csv.xz", "data.tsv.bz2", "data.npy", "columns.npy")
FORMATS += ("data.npz", "packed.npz", "sparse.npz", "data.parquet")
"""Names of files that `write_data` can make; in packed.npz samples have weights."""

WITHOUT_TEXTS = tuple(name for name in FORMATS if name.split(".")[1] in ("libsvm", "npy"))
"""Those whose labels can only be numbers."""

_COMPRESSED = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


X, Y = np.array([[1.0, 2], [3, 4], [5, 6]]), np.array([0.0, 1, 1])
SPARSE = {
    "format": np.array(b"csr"),
    "shape": np.array([3, 2]),
    "data": np.ones(3),
    "indices": np.array([0, 1, 0]),
    "indptr": np.array([0, 1, 2, 3]),
    "y": Y,
}
"""As `scipy.sparse.save_npz` would save it, with labels."""


def use_small_blocks(patch):
    """Have every reader read a few samples at a time; ``patch`` is a `pytest.MonkeyPatch`."""
    patch.setattr(sparse_text, "_BLOCK_BYTES", 200)
    patch.setattr(csv_file, "_BLOCK_BYTES", 300)
    for module in (parquet, npy, npz):
        patch.setattr(module, "BLOCK_VALUES", 40)


def make_dataset(name, **choices):
    """What `p4sgd.host.data.synth.make_source` makes, all in memory."""
    made = make_source(name, **choices)
    return made if isinstance(made, Dataset) else made.dataset(*map(np.concatenate, zip(*made.blocks(), strict=True)))


def make_samples(seed, samples=60, features=7, *, texts=False):
    """Features with zeros among them, and labels of two classes."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(samples, features)) * (rng.random((samples, features)) < 0.6)
    x[0, [0, -1]] = 1.5  # a LIBSVM file does not show features that no sample has
    labels = np.where(np.arange(samples) % 2, 1.0, -1.0)
    rng.shuffle(labels)
    return x, np.where(labels > 0, "spam", "ham") if texts else labels


def write_data(folder, name, features, labels, numbers=None, kind="weights"):
    """Write a data file of one of `FORMATS`, or .vw; ``numbers`` of samples, weights, offset or exposure, are the
    column before the label of a table."""
    path = folder / name
    plain = name.split(".")[1]
    beside = {} if numbers is None else {kind: numbers}
    columns = [*features.T, *beside.values(), labels]
    if plain == "libsvm":
        dump_svmlight_file(features, labels, str(path), zero_based=False)
    elif plain == "vw":
        rows = [" ".join(f"{place}:{value}" for place, value in enumerate(row)) for row in features]
        lines, importance = zip(labels, numbers, rows, strict=True), "" if kind == "weights" else "1 "
        path.write_text("".join(f"{label} {importance}{number} | {row}\n" for label, number, row in lines))
    elif plain in ("csv", "tsv"):
        delimiter = "," if plain == "csv" else "\t"
        texts = zip(*(map(str, column.tolist()) for column in columns), strict=True)
        path.write_text("".join(delimiter.join(line) + "\n" for line in texts))
    elif plain == "npy":
        matrix = np.column_stack(columns).astype(np.float32)
        np.save(path, np.asfortranarray(matrix) if name == "columns.npy" else matrix)
    elif name == "sparse.npz":
        matrix = scipy.sparse.csr_array(features)
        parts = {"data": matrix.data, "indices": matrix.indices, "indptr": matrix.indptr, "shape": matrix.shape}
        np.savez(path, format=np.array(b"csr"), **parts, y=labels, **beside)
    elif name == "packed.npz":
        np.savez_compressed(path, X=features, y=labels, sample_weight=np.arange(len(labels)) % 5 / 2)
    elif plain == "npz":
        np.savez(path, X=features, y=labels, **beside)
    else:
        names = [*(f"c{place}" for place in range(features.shape[1])), *beside, "label"]
        pq.write_table(pa.table(dict(zip(names, columns, strict=True))), path)
    if path.suffix in _COMPRESSED:
        path.write_bytes(_COMPRESSED[path.suffix](path.read_bytes()))
    return path


def read_in_blocks(path, **reading):
    """A file as it is prepared for training in a folder: labels in a first pass, features in a second one.

    Returns the data set and the number of its blocks.
    """
    source = open_source(path, **reading)
    found = scan(source)
    with source.explained():
        parts = [rows.features for rows in source.blocks()]
    data = with_features(found.samples, join_rows(parts), source.space, table=source.table, remarks=source.remarks)
    assert (found.stored, found.sparse, found.dtype) == (data.stored, data.sparse, data.features.dtype)
    return data, len(parts)


def encoded(source, missing="error", **reading):
    """A table with the features that all its rows call for."""
    data = read_dataset(source, missing=missing, **reading)
    return encode(data, np.ones(data.samples, bool), missing)
