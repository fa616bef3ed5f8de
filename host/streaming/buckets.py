"""Files for rows that do not fit into memory: buckets to sort them, and arrays that are written in parts.

Rows are first appended to the file of the bucket that their destination is in; then each bucket is put in order in
memory. Destinations are counted from 0; bucket b takes destinations b·R to (b+1)·R − 1. A bucket's file has its rows in
the order in which they came. It only grows, so its size at some moment is enough to go on from there. Held-out samples
stay as they are, in arrays that can be mapped.
"""

import io
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import scipy.sparse

from p4sgd.host.data.dataset import Features
from p4sgd.host.errors import UserError
from p4sgd.host.streaming.manifest import VALIDATION, VALIDATION_SPARSE

__all__ = ["ArrayFile", "Buckets", "open_array_file", "stored_values", "write_held_out"]


class ArrayFile:
    """The file; see `open_array_file`."""

    def __init__(self, file: BinaryIO, dtype: np.dtype[Any]) -> None:
        self._file = file
        self._dtype = dtype

    def append(self, values: npt.NDArray[Any]) -> None:
        """Write the next values."""
        self._file.write(np.ascontiguousarray(values, self._dtype).reshape(-1).view(np.uint8).data)


@contextmanager
def open_array_file(path: Path, dtype: str, shape: tuple[int, ...], done: int) -> Iterator[ArrayFile]:
    """Open a file of which ``done`` values are written; at the end of the block what was appended is on the disk."""
    kind = np.dtype(dtype)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": kind.str, "fortran_order": False, "shape": shape})
    start = header.getbuffer().nbytes
    with open(path, "r+b" if done else "w+b") as file:
        if not done:
            file.write(header.getvalue())
        file.seek(start + done * kind.itemsize)
        yield ArrayFile(file, kind)
        file.flush()
        os.fsync(file.fileno())


_PART_BYTES = 1 << 24
"""What is read of a dense bucket at once."""

_FRAME = struct.Struct("<qq")
"""Rows and stored values of some sparse rows that follow."""


def stored_values(features: Features) -> int:
    """How many values rows store; sparse ones store no zeros."""
    return features.size if isinstance(features, np.ndarray) else int(features.nnz)


class Buckets:
    """Bucket files of one matrix.

    Parameters
    ----------
    folder
        Where they are; nobody else writes there.
    features
        Columns.
    rows
        Rows of a bucket (R).
    dtype
        Type of the values, float64 or float32.
    sparse
        Whether rows are those of a `csr_array`.
    """

    def __init__(self, folder: Path, features: int, rows: int, dtype: np.dtype[Any], *, sparse: bool) -> None:
        self._folder = folder
        self._features = features
        self._rows = rows
        self._sparse = sparse
        self._dtype = np.dtype(dtype)
        self._record = np.dtype([("destination", "<i8"), ("values", self._dtype, (features,))])
        self.sizes: dict[int, int] = {}
        """Bytes of each file that there is."""

    def restore(self, sizes: Sequence[tuple[int, int]]) -> None:
        """Cut the files to the sizes that they had once; others are deleted.

        Raises
        ------
        UserError
            If a file is shorter than it was.
        """
        self.sizes = dict(sizes)
        self._folder.mkdir(exist_ok=True)
        for path in self._folder.iterdir():
            if int(path.name) not in self.sizes:
                path.unlink()
        for bucket, size in self.sizes.items():
            path = self._path(bucket)
            if not path.exists() or path.stat().st_size < size:
                raise self._lost(path)
            os.truncate(path, size)

    def add(self, features: Features, destinations: npt.NDArray[np.intp]) -> None:
        """Append rows to the files of their buckets."""
        bucket_of = destinations // self._rows
        order = np.argsort(bucket_of, kind="stable")
        buckets, begins = np.unique(bucket_of[order], return_index=True)
        for bucket, which in zip(buckets.tolist(), np.split(order, begins[1:]), strict=True):
            parts = self._sparse_parts if self._sparse else self._dense_parts
            with open(self._path(bucket), "ab") as file:
                for part in parts(features[which], destinations[which]):
                    file.write(part)
                self.sizes[bucket] = file.tell()

    def sync(self) -> None:
        """Have everything on the disk."""
        for bucket in self.sizes:
            with open(self._path(bucket), "rb") as file:
                os.fsync(file.fileno())

    def load(self, bucket: int, count: int) -> Features:
        """The ``count`` rows of a bucket, in the order of their destinations.

        Raises
        ------
        UserError
            If its file is not as long as it was.
        """
        path = self._path(bucket)
        if not path.exists() or path.stat().st_size != self.sizes[bucket]:
            raise self._lost(path)
        with open(path, "rb") as file:
            return (self._load_sparse if self._sparse else self._load_dense)(file, bucket * self._rows, count)

    def drop(self, bucket: int) -> None:
        """Delete the file of a bucket."""
        self._path(bucket).unlink(missing_ok=True)

    def _path(self, bucket: int) -> Path:
        return self._folder / str(bucket)

    def _lost(self, path: Path) -> UserError:
        return UserError(f"{path}: has lost some of its rows: delete {self._folder.parent} and begin anew")

    def _dense_parts(self, rows: Any, destinations: npt.NDArray[np.intp]) -> list[memoryview]:
        records = np.empty(rows.shape[0], self._record)
        records["destination"] = destinations
        records["values"] = rows
        return [records.view(np.uint8).data]

    def _load_dense(self, file: BinaryIO, first: int, count: int) -> Features:
        result = np.empty((count, self._features), self._dtype)
        step = max(1, _PART_BYTES // self._record.itemsize)
        for _ in range(0, count, step):
            records = np.fromfile(file, self._record, step)
            result[records["destination"] - first] = records["values"]
        return result

    def _sparse_parts(self, rows: Any, destinations: npt.NDArray[np.intp]) -> list[Any]:
        return [
            _FRAME.pack(rows.shape[0], rows.nnz),
            destinations.astype("<i8").data,
            np.diff(rows.indptr).astype("<i8").data,
            rows.indices.astype("<i4").data,
            np.ascontiguousarray(rows.data).data,
        ]

    def _load_sparse(self, file: BinaryIO, first: int, count: int) -> Features:
        destinations, lengths, indices, data = [], [], [], []
        while frame := file.read(_FRAME.size):
            rows, stored = _FRAME.unpack(frame)
            destinations.append(np.fromfile(file, "<i8", rows))
            lengths.append(np.fromfile(file, "<i8", rows))
            indices.append(np.fromfile(file, "<i4", stored))
            data.append(np.fromfile(file, self._dtype, stored))
        pointers = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
        parts = (np.concatenate(data), np.concatenate(indices), pointers)
        del data, indices
        came = scipy.sparse.csr_array(parts, shape=(count, self._features))
        return came[np.argsort(np.concatenate(destinations) - first)]


def write_held_out(
    folder: Path, features: Features, shape: tuple[int, int], *, first: int, stored: int, written: int
) -> None:
    """Write some of the samples.

    Parameters
    ----------
    folder
        Where to.
    features
        The samples.
    shape
        Of all samples that are held out.
    first
        How many of them came before.
    stored
        Values that all of them store.
    written
        Values that those before store.
    """
    samples, columns = shape
    if isinstance(features, np.ndarray):
        with open_array_file(folder / f"{VALIDATION}.npy", features.dtype.str, shape, first * columns) as file:
            file.append(features)
        return
    pointers = features.indptr.astype(np.int64) + written
    parts: tuple[tuple[npt.NDArray[Any], str, int, int], ...] = (
        (features.data, features.data.dtype.str, stored, written),
        (features.indices, "<i4", stored, written),
        (pointers[1:] if first else pointers, "<i8", samples + 1, first + 1 if first else 0),
    )
    for name, (values, dtype, size, before) in zip(VALIDATION_SPARSE, parts, strict=True):
        with open_array_file(folder / f"{name}.npy", dtype, (size,), before) as file:
            file.append(values)
