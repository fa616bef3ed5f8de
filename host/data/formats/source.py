"""Data files as sources of samples: read in blocks, or whole."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from p4sgd.host.data.columns import ReadOptions
from p4sgd.host.data.dataset import Dataset, Features, FeatureSpace, check_labels, find_not_finite, join_shares
from p4sgd.host.data.formats.text_file import check_compression
from p4sgd.host.data.labels import RawLabels
from p4sgd.host.errors import UserError

__all__ = ["BLOCK_VALUES", "GrowingArray", "RowSource", "Source", "TextSource", "check_finite"]

BLOCK_VALUES = 1 << 19
"""Values in a block of dense samples, about; 4 MB of float64."""


class Source(ABC):
    """A data file.

    `blocks` gives all samples a block at a time, as often as needed and in bounded memory; `read` puts them together.
    A format is a subclass.

    Parameters
    ----------
    path
        The file.
    options
        How to read it.
    guessed
        Its format, if that was only guessed.
    """

    def __init__(self, path: Path, options: ReadOptions, guessed: str | None = None) -> None:
        self.path = path
        self.options = options
        self._guessed = guessed
        self._space: FeatureSpace | None = None

    @property
    def name(self) -> str:
        """Its name, for messages."""
        return str(self.path)

    @property
    def size(self) -> int:
        """Its bytes on the disk."""
        return self.path.stat().st_size

    @property
    @abstractmethod
    def position(self) -> int:
        """Bytes of it that were read so far, about."""

    @property
    def space(self) -> FeatureSpace:
        """The features of the samples; known after all blocks were read once."""
        assert self._space is not None, "not all blocks were read"
        return self._space

    def blocks(self, space: FeatureSpace | None = None) -> Iterator[Dataset]:
        """All samples, in the order of the file, as data sets of some samples each.

        Labels that are texts are numbered anew in every block.

        Parameters
        ----------
        space
            What `space` was after an earlier reading. Without it the blocks of a LIBSVM file have as many features as
            are known so far, numbered as in the file.

        Raises
        ------
        UserError
            When the reader comes to a mistake; the message names file and line, or row and column.
        """
        with self._explained():
            yield from self._blocks(space)

    def read(self) -> Dataset:
        """All samples as one data set; of several ranks each reads its share.

        Raises
        ------
        UserError
            As `blocks`.
        """
        with self._explained():
            return self._read()

    @abstractmethod
    def _blocks(self, space: FeatureSpace | None) -> Iterator[Dataset]:
        """As `blocks`; sets ``_space``."""

    @abstractmethod
    def _read(self) -> Dataset:
        """As `read`."""

    def _block(self, features: Features, labels: RawLabels | None, first: int, **about: Any) -> Dataset:
        """A data set of some samples; ``first`` samples of the file come before them."""
        if labels is None:
            return Dataset(features, np.zeros(features.shape[0]), self.name, labelled=False, **about)
        values, names = labels.encode(self.name, first)
        check_labels(values, self.name, first)
        return Dataset(features, values, self.name, names, **about)

    def _join(self, features: Features, labels: RawLabels | None, **about: Any) -> Dataset:
        """The data set of all ranks, of whose samples this one has read those."""
        ranks = self.options.communicator
        if labels is None:
            unlabelled = np.zeros(sum(ranks.all_gather(features.shape[0])))
            return join_shares(features, unlabelled, self.name, ranks, labelled=False, **about)
        values, names = RawLabels.join(ranks.all_gather(labels)).encode(self.name)
        return join_shares(features, values, self.name, ranks, label_names=names, **about)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Add to an error what the user may not know: that the format was guessed.

        Damaged compressed data may look like a mistake in the text before the checksum is reached, so they are looked
        for first.
        """
        try:
            yield
        except UserError as error:
            if self.path.is_file():
                check_compression(self.path)
            if self._guessed is not None:
                raise UserError(
                    f"{error} (it looks like {self._guessed}; if it is not, say so with --format)"
                ) from error
            raise


class TextSource(Source):
    """A file that is read from its beginning on, compressed or not."""

    _raw: BinaryIO | None = None

    @property
    def position(self) -> int:
        """Bytes of it that were read so far, compressed ones if it is."""
        return 0 if self._raw is None or self._raw.closed else self._raw.tell()

    def _watch(self, raw: BinaryIO) -> None:
        """Note the file as it is on the disk, when it is opened."""
        self._raw = raw


class RowSource(Source):
    """A file that knows how many samples it has; ``_done`` is the fraction of them that was read."""

    _done = 0.0

    @property
    def position(self) -> int:
        """Bytes of it that were read so far, by the fraction of the samples."""
        return int(self._done * self.size)


class GrowingArray:
    """A vector that blocks are appended to.

    It is enlarged in place, which for large arrays moves pages and copies nothing. So memory holds the values once;
    collecting blocks and concatenating them would hold them twice.

    Parameters
    ----------
    dtype
        Type of the values.
    """

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._values: npt.NDArray[Any] = np.empty(0, dtype)
        self._size = 0

    def append(self, values: npt.NDArray[Any]) -> None:
        """Append the values of an array of any shape."""
        end = self._size + values.size
        if end > self._values.size:
            self._values.resize(max(end, self._values.size * 9 // 8), refcheck=False)
        self._values[self._size : end] = values.reshape(-1)
        self._size = end

    def finish(self) -> npt.NDArray[Any]:
        """All values; nothing may be appended any more."""
        self._values.resize(self._size, refcheck=False)
        return self._values


def check_finite(dataset: Dataset, first: int = 0) -> Dataset:
    """A data set, refused if a feature is not finite; ``first`` rows of the file come before those that are held here.

    Raises
    ------
    UserError
        For the first one, with row and column.
    """
    strange = find_not_finite(dataset.features)
    if strange is not None:
        row, column = strange
        value, place = dataset.features[row, column], f"row {first + row + 1}, feature {column + 1}"
        raise UserError(f"{dataset.name}, {place}: the value is {value}: it must be finite")
    return dataset
