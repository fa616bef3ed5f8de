"""What is read block by block."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from p4sgd.host.data.columns import ReadOptions
from p4sgd.host.data.dataset import Dataset, FeatureSpace
from p4sgd.host.data.formats.opening import explained

__all__ = ["RowSource", "Source", "TextSource"]


class Source(ABC):
    """A data file.

    Blocks are data sets with some of the samples each, in the order of the file and with the values that
    `p4sgd.host.data.read_dataset` gives. Labels that are texts are numbered anew in every block.

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
        """The features of the samples; known when all blocks were read once."""
        assert self._space is not None, "not all blocks were read"
        return self._space

    def blocks(self, space: FeatureSpace | None = None) -> Iterator[Dataset]:
        """All samples.

        Parameters
        ----------
        space
            What `space` was after they had been read before. Without it the blocks of a LIBSVM file have as many
            features as can be known so far, numbered as in the file.

        Raises
        ------
        UserError
            As `p4sgd.host.data.read_dataset`, when the reader comes to the mistake.
        """
        with explained(self.path, self._guessed):
            yield from self._blocks(space)

    @abstractmethod
    def _blocks(self, space: FeatureSpace | None) -> Iterator[Dataset]:
        """As `blocks`; sets ``_space``."""


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
    """A file that knows how many samples it has; ``_done`` is the share of those that were read."""

    _done = 0.0

    @property
    def position(self) -> int:
        """Bytes of it that were read so far, by the share of the samples."""
        return int(self._done * self.size)
