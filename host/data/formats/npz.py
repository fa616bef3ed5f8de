"""Archives of NumPy arrays (.npz): a dense or sparse matrix of features, and labels.

The features are a matrix under one of `FEATURE_KEYS`, or a sparse matrix as `scipy.sparse.save_npz` writes it. Labels
are under one of `LABEL_KEYS`, as numbers or texts; weights, offsets and exposures of samples, if there are any, under
one of `KEYS`. Of several keys the first that exists is used. Dense matrices in C order and sparse ones in CSR form are
stored by rows, and can be decompressed in blocks.
"""

import math
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy  # which imports scipy.sparse at its first use

from p4sgd.host.data.cells import RawLabels
from p4sgd.host.data.encoding import FeatureSpace
from p4sgd.host.data.formats.npy import check_numbers, load_numpy
from p4sgd.host.data.formats.source import BLOCK_VALUES, Rows, Source, check_finite
from p4sgd.host.data.matrix import checked
from p4sgd.host.data.sample_numbers import EXPOSURE, OFFSET, OFFSETS, WEIGHT
from p4sgd.host.errors import UserError

FEATURE_KEYS = ("features", "X", "x", "data")
LABEL_KEYS = ("labels", "y", "Y", "target")
KEYS = {WEIGHT: ("weights", "sample_weight"), OFFSET: ("offset", "offsets"), EXPOSURE: ("exposure", "exposures")}

_CHUNK_BYTES = 1 << 18
"""Size of the parts that are decompressed; larger ones are slower."""


class _StoredRows(NamedTuple):
    """Rows of a matrix in an open archive.

    ``rows`` gives those of a range, fastest in order; `EOFError` if the array is too short. ``end`` is that of a block
    of about `BLOCK_VALUES` values, but at least one row, that begins at a row.
    """

    shape: tuple[int, int]
    rows: Callable[[range], Any]
    end: Callable[[int], int]


class NpzSource(Source):
    """An .npz file. Labels, and the row pointers of a sparse matrix, are read as a whole.

    Read as a whole, a matrix may have any memory order and sparse format; sparse ones are converted to CSR. To be read
    in blocks it must be stored by rows.
    """

    def blocks(self, *, whole: bool = False) -> Iterator[Rows]:
        with self._open(), self._features(whole=whole) as stored:
            self._shape = samples, _ = stored.shape
            labels = self._labels(samples, several=whole) if self.options.labels_needed else None
            beside = self._beside(samples)
            first = 0
            while True:
                end = samples if whole else stored.end(first)
                features = checked(stored.rows(range(first, end)), self.name)
                check_finite(features, self.name, first)
                yield Rows(
                    features,
                    () if labels is None else (RawLabels(labels.values[first:end], labels.texts),),
                    {role: values[first:end] for role, values in beside.items()},
                )
                first, self._done = end, end / max(1, samples)
                if first >= samples:
                    return

    def settle(self) -> FeatureSpace:
        (samples, count), like = self._shape, self.options.like
        if samples == 0:
            raise self._refusal("there are no samples")
        if like is not None and count != like.count:
            raise self._refusal(f"there are {count} features, {like.count} are needed")
        return FeatureSpace(count)

    @contextmanager
    def _open(self) -> Iterator[None]:
        """Open the archive; `UserError` if it cannot be read or, also within the ``with`` block, is damaged."""
        self._file = load_numpy(self.path, mmap=False)
        if isinstance(self._file, np.ndarray):
            raise self._refusal("is an .npy file by its contents: name it so")
        try:
            with self._file:
                yield
        except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
            raise self._refusal(f"is damaged or holds something else than numbers: {error}") from error

    def _refusal(self, problem: str) -> UserError:
        return UserError(f"{self.name}: {problem}")

    def _damage(self, problem: str) -> UserError:
        return self._refusal(f"the sparse matrix is damaged: {problem}")

    def _no_matrix(self, shape: tuple[int, ...]) -> UserError:
        return self._refusal(f"features must be a matrix of samples and features, not of shape {shape}")

    def _find(self, keys: tuple[str, ...]) -> str | None:
        return next((key for key in keys if key in self._file), None)

    def _array(self, key: str) -> npt.NDArray[Any]:
        found = self._file[key]
        if not isinstance(found, np.ndarray):
            raise self._refusal(f"holds {key}, but not as a NumPy array")
        return found

    def _member(self, name: str, kinds: str) -> npt.NDArray[Any]:
        """An array of a sparse matrix, whose ``dtype.kind`` must be one of ``kinds``."""
        found = self._file[name]
        if not isinstance(found, np.ndarray) or found.dtype.kind not in kinds:
            raise self._damage(f"{name} is not what SciPy saves")
        return found

    # -- labels and numbers of samples ---------------------------------------------------------------------------------

    def _labels(self, samples: int, *, several: bool) -> RawLabels:
        """The labels of all samples; (samples, targets) only if there may be ``several`` targets."""
        key = self._find(LABEL_KEYS)
        if key is None:
            raise self._refusal("has no labels: an array 'labels' or 'y' is needed")
        labels = self._array(key)
        if labels.ndim == 2 and 1 in labels.shape:
            labels = labels.reshape(-1)
        targets = labels.ndim == 2 and labels.shape[0] == samples
        if targets and not several:
            raise self._refusal(f"has {labels.shape[1]} targets, here one is needed: train from the file as a whole")
        if labels.shape != (samples,) and not targets:
            raise self._refusal(f"there are {samples} samples, but labels of shape {labels.shape}")
        if labels.dtype.kind not in "US":
            check_numbers(labels.dtype, f"{self.name}, labels")
            return RawLabels(labels)
        if targets:
            raise self._refusal(f"the labels of several targets must be numbers, not {labels.dtype}")
        distinct, which = np.unique(labels, return_inverse=True)
        try:
            return RawLabels(which, [text.decode() if isinstance(text, bytes) else text for text in distinct.tolist()])
        except UnicodeDecodeError:
            raise UserError(f"{self.name}, labels: hold bytes that are not UTF-8 text") from None

    def _beside(self, samples: int) -> dict[str, npt.NDArray[np.float64]]:
        """Weights, offsets and exposures. A model that knows no offsets leaves them alone, as other arrays."""
        like = self.options.like
        roles = [*OFFSETS] if like is None else [like.offset] if like.offset is not None else []
        roles += [WEIGHT] if self.options.labels_needed else []
        keys = {role: key for role in roles if (key := self._find(KEYS[role])) is not None}
        if like is not None and like.offset is not None and like.offset not in keys:
            raise self._refusal(f"has no array {like.offset}, with which the model was trained")
        if all(kind in keys for kind in OFFSETS):
            raise self._refusal("has offsets and exposures: add the logarithms of these to the offsets")
        found = {}
        for role, key in keys.items():
            values = self._array(key)
            check_numbers(values.dtype, f"{self.name}, {key}")
            if values.size != samples or values.ndim > 2:
                raise self._refusal(f"there are {samples} samples, but {key} of shape {values.shape}")
            found[role] = values.reshape(-1).astype(np.float64)
        return found

    # -- features ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _features(self, *, whole: bool) -> Iterator[_StoredRows]:
        """Open the features, without reading them if they are stored by rows.

        ``whole`` says that all rows will be read at once, which is possible for any matrix.
        """
        if not ("format" in self._file and "shape" in self._file):
            key = self._find(FEATURE_KEYS)
            if key is None:
                there = ", ".join(self._file) or "none"
                raise self._refusal(f"has no features: an array 'features' or 'X' is needed; there are {there}")
            with closing(self._stored(key)) as array:
                yield self._dense_rows(array, key, whole=whole)
            return
        kind, shape = self._member("format", "SU"), self._member("shape", "iu")
        if kind.shape != ():
            raise self._damage("format is not what SciPy saves")
        if shape.shape != (2,):
            raise self._no_matrix(tuple(np.atleast_1d(shape).tolist()))
        name = kind.item() if kind.dtype.kind == "U" else kind.item().decode()
        if name == "csr":
            with closing(self._stored("data")) as data, closing(self._stored("indices")) as indices:
                yield self._sparse_rows(data, indices, (int(shape[0]), int(shape[1])))
        elif whole:
            try:
                matrix: Any = scipy.sparse.load_npz(self.path)
            except (NotImplementedError, TypeError, AttributeError, IndexError) as error:
                raise self._refusal(f"holds no sparse matrix that SciPy could read: {error}") from error
            yield _StoredRows(matrix.shape, lambda which: matrix, lambda first: int(matrix.shape[0]))
        else:
            raise self._refusal(f"the sparse matrix is {name}, which cannot be read by rows: save it as csr")

    def _stored(self, key: str) -> "_StoredArray":
        if f"{key}.npy" not in self._file.zip.namelist():
            self._array(key)  # which refuses it
        return _StoredArray(self._file.zip.open(f"{key}.npy"))

    def _dense_rows(self, array: "_StoredArray", key: str, *, whole: bool) -> _StoredRows:
        if len(array.shape) != 2:
            raise self._no_matrix(array.shape)
        check_numbers(array.dtype, f"{self.name}, array {key}")
        samples, columns = array.shape
        if array.columns_first and columns > 1 and not whole:
            raise self._refusal(f"array {key} is stored column by column: save numpy.ascontiguousarray({key})")
        step = max(1, BLOCK_VALUES // max(1, columns))
        return _StoredRows(array.shape, array.part, lambda first: min(first + step, samples))

    def _sparse_rows(self, data: "_StoredArray", indices: "_StoredArray", shape: tuple[int, int]) -> _StoredRows:
        pointers = self._member("indptr", "iu")
        if pointers.shape != (shape[0] + 1,) or pointers[0] != 0 or (pointers[1:] < pointers[:-1]).any():
            raise self._damage("its row pointers are invalid")
        if len(data.shape) != 1 or data.shape != indices.shape:
            raise self._damage("it does not have one index per value")
        # As in `scipy.sparse.load_npz`. Only csr_matrix reduces its indices to the smallest possible type.
        form: Any = scipy.sparse.csr_array if "_is_array" in self._file else scipy.sparse.csr_matrix

        def rows(which: range) -> Any:
            own = pointers[which.start : which.stop + 1]
            stored = range(int(own[0]), int(own[-1]))
            return form((data.part(stored), indices.part(stored), own - own[0]), shape=(len(which), shape[1]))

        def end(first: int) -> int:
            last = int(np.searchsorted(pointers, int(pointers[first]) + BLOCK_VALUES, side="right")) - 1
            return min(max(last, first + 1), shape[0], first + BLOCK_VALUES)

        return _StoredRows(shape, rows, end)


class _StoredArray:
    """An array in an archive, which is decompressed from front to back; ``file`` is open at its beginning."""

    def __init__(self, file: Any) -> None:
        self._file, self.close = file, file.close
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        self.shape, self.columns_first, self.dtype = read(file)
        if self.dtype.hasobject:
            raise ValueError("Object arrays cannot be loaded")
        self._start = file.tell()

    def part(self, which: range) -> npt.NDArray[Any]:
        """Consecutive items along the first axis, which are contiguous in C order."""
        each = math.prod(self.shape[1:])
        begin = self._start + which.start * each * self.dtype.itemsize
        if self._file.tell() != begin:
            self._file.seek(begin)
        values = np.empty(len(which) * each, self.dtype)
        left = values.view(np.uint8).data
        while left:
            count = self._file.readinto(left[:_CHUNK_BYTES])
            if not count:
                raise EOFError("an array is cut off")
            left = left[count:]
        return values.reshape(len(which), *self.shape[1:], order="F" if self.columns_first else "C")
