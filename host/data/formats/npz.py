"""Archives of NumPy arrays (.npz): a dense or sparse matrix of features, and labels.

The features are a matrix under one of `FEATURE_KEYS`, or a sparse matrix as `scipy.sparse.save_npz` writes it. Labels
are under one of `LABEL_KEYS`, as numbers or texts; weights, offsets and exposures of samples, if there are any, under
one of `KEYS`. Of several keys the first that exists is used. Arrays are read as a whole.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy  # which imports scipy.sparse at its first use

from p4sgd.host.data.cells import RawLabels
from p4sgd.host.data.encoding import FeatureSpace
from p4sgd.host.data.formats.npy import DAMAGE, check_numbers, load_numpy
from p4sgd.host.data.formats.source import BLOCK_VALUES, Rows, Source, check_finite
from p4sgd.host.data.matrix import checked
from p4sgd.host.data.sample_numbers import EXPOSURE, OFFSET, OFFSETS, WEIGHT
from p4sgd.host.errors import UserError

FEATURE_KEYS = ("features", "X", "x", "data")
LABEL_KEYS = ("labels", "y", "Y", "target")
KEYS = {WEIGHT: ("weights", "sample_weight"), OFFSET: ("offset", "offsets"), EXPOSURE: ("exposure", "exposures")}


class NpzSource(Source):
    """An .npz file, whose matrix may have any memory order and sparse format; sparse ones are converted to CSR."""

    def blocks(self, *, whole: bool = False) -> Iterator[Rows]:
        with self._open():
            features = checked(self._features(), self.name)
            check_finite(features, self.name)
            self._shape = samples, _ = features.shape
            labels = self._labels(samples, several=whole) if self.options.labels_needed else None
            beside = self._beside(samples)
            step = max(1, samples if whole else samples * BLOCK_VALUES // max(1, features.size))
            for first in range(0, samples, step) or (0,):
                rows = slice(first, first + step)
                yield Rows(
                    features if whole else features[rows],
                    () if labels is None else (RawLabels(labels.values[rows], labels.texts),),
                    {role: values[rows] for role, values in beside.items()},
                )
                self._done = min(1.0, rows.stop / max(1, samples))

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
        except (*DAMAGE, OSError) as error:
            raise self._refusal(f"is damaged or holds something else than numbers: {error}") from error

    def _refusal(self, problem: str) -> UserError:
        return UserError(f"{self.name}: {problem}")

    def _find(self, keys: tuple[str, ...]) -> str | None:
        return next((key for key in keys if key in self._file), None)

    def _array(self, key: str) -> npt.NDArray[Any]:
        found = self._file[key]
        if not isinstance(found, np.ndarray):
            raise self._refusal(f"holds {key}, but not as a NumPy array")
        return found

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

    def _features(self) -> Any:
        if "format" in self._file and "shape" in self._file:
            try:
                matrix: Any = scipy.sparse.load_npz(self.path)
                return matrix.tocsr()
            except (NotImplementedError, TypeError, AttributeError, IndexError) as error:
                raise self._refusal(f"holds no sparse matrix that SciPy could read: {error}") from error
        key = self._find(FEATURE_KEYS)
        if key is None:
            there = ", ".join(self._file) or "none"
            raise self._refusal(f"has no features: an array 'features' or 'X' is needed; there are {there}")
        return self._array(key)
