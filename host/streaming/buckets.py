"""Files for rows that do not fit into memory: buckets for sorting, and arrays of held-out samples.

Every row is appended to the file of the bucket that contains its destination, and later each bucket is put in order in
memory. Destinations count from 0; bucket b holds destinations b·R to (b+1)·R − 1.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
import numpy.typing as npt
import scipy  # which imports scipy.sparse at its first use

from p4sgd.host.data.dataset import Dataset
from p4sgd.host.data.matrix import Features, join_rows, pick_columns
from p4sgd.host.distributed.communicator import SINGLE_PROCESS, Communicator
from p4sgd.host.streaming.manifest import Array
from p4sgd.hw.spec.fixed import IntArray


class Buckets:
    """The bucket files of a matrix, in a new folder of their own, with so many ``rows`` each (R).

    Values are float64 or float32. ``encode`` makes features of the columns of a table when rows are loaded.
    """

    def __init__(self, folder: Path, features: int, rows: int, dtype: np.dtype[Any], *, sparse: bool) -> None:
        folder.mkdir()
        self.rows = rows
        self.encode: Callable[[Any], Features] = lambda rows: rows
        self._folder = folder
        self._features = features
        self._sparse = sparse
        self._dtype = np.dtype(dtype)

    def add(self, features: Features, destinations: npt.NDArray[np.intp]) -> None:
        bucket_of = destinations // self.rows
        order = np.argsort(bucket_of, kind="stable")
        buckets, begins = np.unique(bucket_of[order], return_index=True)
        for bucket, which in zip(buckets.tolist(), np.split(order, begins[1:]), strict=True):
            rows: Any = features[which]
            parts = [np.diff(rows.indptr), rows.indices, rows.data] if self._sparse else [rows]
            with open(self._folder / str(bucket), "ab") as file:
                # As np.save, whose error on a full disk does not say so.
                for part in map(np.ascontiguousarray, (destinations[which], *parts)):
                    np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(part))
                    file.write(part.reshape(-1).data)

    def load(self, bucket: int, count: int) -> Features:
        """The ``count`` rows of a bucket, in the order of their destinations."""
        first, groups = bucket * self.rows, []
        with open(self._folder / str(bucket), "rb") as file:
            if not self._sparse:
                result = np.empty((count, self._features), self._dtype)
                while file.peek(1):
                    destinations = np.load(file)
                    result[destinations - first] = np.load(file)
                return self.encode(result)
            while file.peek(1):
                groups.append([np.load(file) for _ in range(4)])
        destinations, lengths, indices, data = (np.concatenate(parts) for parts in zip(*groups, strict=True))
        del groups
        came = scipy.sparse.csr_array((data, indices, np.append(0, np.cumsum(lengths))), shape=(count, self._features))
        return self.encode(came[np.argsort(destinations - first)])


@dataclass(frozen=True, eq=False)
class SortedRows:
    """The samples of some buckets in order, from bucket ``first`` on: `p4sgd.host.data.dataset.TrainingRows`.

    ``on_read`` is called with the number of samples read in a pass.
    """

    buckets: Buckets
    name: str
    samples: int
    feature_count: int
    first: int = 0
    on_read: Callable[[int], None] = lambda done: None

    communicator: ClassVar[Communicator] = SINGLE_PROCESS

    def feature_blocks(self) -> Iterator[Features]:
        for number, begin in enumerate(range(0, self.samples, self.buckets.rows)):
            count = min(self.buckets.rows, self.samples - begin)
            yield self.buckets.load(self.first + number, count)
            self.on_read(begin + count)

    def parts(self) -> Iterator[Dataset]:
        return map(self._as_dataset, self.feature_blocks())  # which keeps none while the next one is read

    def _as_dataset(self, features: Features) -> Dataset:
        return Dataset(features, np.zeros(features.shape[0]), self.name)

    def local_features(self, which: slice, columns: IntArray | None = None) -> Features:
        parts: list[Features] = []
        for begin in range(0, which.stop, self.buckets.rows):
            count = min(self.buckets.rows, self.samples - begin)
            part = self.buckets.load(self.first + len(parts), count)[: which.stop - begin]
            parts.append(pick_columns(part, columns))
        return join_rows(parts)


def write_held_out(folder: Path, blocks: Iterable[Features], shape: tuple[int, int], stored: int) -> None:
    """Write held-out samples as arrays that can be mapped: blocks of so many samples and stored values in all."""
    data, indices, ends = Array.VALIDATION_SPARSE
    shapes = {Array.VALIDATION: shape, data: (stored,), indices: (stored,), ends: (shape[0] + 1,)}
    arrays: dict[str, BinaryIO] = {}
    written = 0
    with contextlib.ExitStack() as files:
        for features in blocks:
            parts: dict[str, npt.NDArray[Any]]
            if isinstance(features, np.ndarray):
                parts = {Array.VALIDATION: features}
            else:
                pointers = features.indptr.astype(np.int64)[bool(arrays) :] + written
                parts = {data: features.data, indices: features.indices.astype(np.int32), ends: pointers}
                written += features.nnz
            for name, values in parts.items():
                if name not in arrays:
                    arrays[name] = files.enter_context(open(folder / f"{name}.npy", "wb"))
                    header = {"descr": values.dtype.str, "fortran_order": False, "shape": shapes[name]}
                    np.lib.format.write_array_header_1_0(arrays[name], header)
                arrays[name].write(np.ascontiguousarray(values).reshape(-1).data)
            del features, parts  # before the next ones are read
