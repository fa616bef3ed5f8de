"""What is read block by block."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

from p4sgd.host.data.columns import ReadOptions
from p4sgd.host.data.dataset import Dataset, FeatureSpace
from p4sgd.host.data.read import explained

__all__ = ["BLOCK_VALUES", "Source"]

BLOCK_VALUES = 1 << 19
"""Values of a block, about; 4 MB of float64."""


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
