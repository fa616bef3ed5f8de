"""Files for rows that do not fit into memory: buckets for sorting, and arrays that are written in parts.

Sorting is a bucket sort: every row is appended to the file of the bucket that contains its destination, and later each
bucket is put in order in memory. Destinations count from 0; bucket b holds destinations b·R to (b+1)·R − 1. Files of
buckets only grow, so their sizes at some moment are enough to return to it. Held-out samples are stored unchanged, in
arrays that can be mapped.
"""

import io
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import scipy  # which imports scipy.sparse at its first use

from p4sgd.host.data.dataset import Features
from p4sgd.host.errors import UserError
from p4sgd.host.streaming.manifest import VALIDATION, VALIDATION_SPARSE

__all__ = ["ArrayFile", "Buckets", "stored_values", "sync_folder", "write_held_out"]


class ArrayFile:
    """A .npy file that is written in parts; see `_open_array_file`."""

    def __init__(self, file: BinaryIO, dtype: np.dtype[Any]) -> None:
        self._file = file
        self._dtype = dtype

    def append(self, values: npt.NDArray[Any]) -> None:
        """Append values."""
        self._file.write(np.ascontiguousarray(values, self._dtype).reshape(-1).view(np.uint8).data)


@contextmanager
def _open_array_file(path: Path, dtype: str, shape: tuple[int, ...], done: int) -> Iterator[ArrayFile]:
    """Open a .npy file that has ``done`` values so far. Leaving the block syncs what was appended to the disk."""
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
"""Size of the parts in which a dense bucket is read."""

_FRAME = struct.Struct("<qq")
"""Header of a group of sparse rows: number of rows and of stored values."""


def stored_values(features: Features) -> int:
    """Number of stored values; sparse rows store no zeros."""
    return features.size if isinstance(features, np.ndarray) else int(features.nnz)


class Buckets:
    """The bucket files of a matrix.

    Parameters
    ----------
    folder
        Folder of the files, for nothing else.
    features
        Number of columns.
    rows
        Rows of a bucket (R).
    dtype
        Type of the values, float64 or float32.
    sparse
        Whether rows come from a `csr_array`.
    """

    def __init__(self, folder: Path, features: int, rows: int, dtype: np.dtype[Any], *, sparse: bool) -> None:
        self._folder = folder
        self._features = features
        self._rows = rows
        self._sparse = sparse
        self._dtype = np.dtype(dtype)
        self._record = np.dtype([("destination", "<i8"), ("values", self._dtype, (features,))])
        self.sizes: dict[int, int] = {}
        """Size of each existing file in bytes, by bucket."""
        self.encode: Callable[[Any], Features] | None = None
        """What makes features of the columns of a table when rows are loaded."""

    def restore(self, sizes: Sequence[tuple[int, int]]) -> None:
        """Truncate the files to earlier sizes, and delete those that did not exist then.

        Raises
        ------
        UserError
            If a file is shorter than that.
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
        """Sync all files to the disk."""
        for bucket in self.sizes:
            with open(self._path(bucket), "rb") as file:
                os.fsync(file.fileno())

    def load(self, bucket: int, count: int) -> Features:
        """The ``count`` rows of a bucket, in the order of their destinations.

        Raises
        ------
        UserError
            If its file does not have its recorded size.
        """
        path = self._path(bucket)
        if not path.exists() or path.stat().st_size != self.sizes[bucket]:
            raise self._lost(path)
        with open(path, "rb") as file:
            rows = (self._load_sparse if self._sparse else self._load_dense)(file, bucket * self._rows, count)
        return rows if self.encode is None else self.encode(rows)

    def drop(self, bucket: int) -> None:
        """Delete the file of a bucket."""
        self._path(bucket).unlink(missing_ok=True)

    def _path(self, bucket: int) -> Path:
        return self._folder / str(bucket)

    def _lost(self, path: Path) -> UserError:
        return UserError(f"{path}: some of its rows are lost: delete {self._folder.parent} and start again")

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
    """Append a block of held-out samples to their arrays.

    Parameters
    ----------
    folder
        Folder of the arrays.
    features
        The block.
    shape
        Shape of all held-out samples: (samples, features).
    first
        Number of samples before the block.
    stored
        Number of stored values in all held-out samples.
    written
        Number of stored values before the block.
    """
    samples, columns = shape
    if isinstance(features, np.ndarray):
        with _open_array_file(folder / f"{VALIDATION}.npy", features.dtype.str, shape, first * columns) as file:
            file.append(features)
        return
    pointers = features.indptr.astype(np.int64) + written
    parts: tuple[tuple[npt.NDArray[Any], str, int, int], ...] = (
        (features.data, features.data.dtype.str, stored, written),
        (features.indices, "<i4", stored, written),
        (pointers[1:] if first else pointers, "<i8", samples + 1, first + 1 if first else 0),
    )
    for name, (values, dtype, size, before) in zip(VALIDATION_SPARSE, parts, strict=True):
        with _open_array_file(folder / f"{name}.npy", dtype, (size,), before) as file:
            file.append(values)


def sync_folder(folder: Path) -> None:
    """Sync the entries of a folder to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
