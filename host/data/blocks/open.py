"""From the name of a data set to its blocks."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from p4sgd.host.data.blocks.libsvm import LibsvmSource
from p4sgd.host.data.blocks.npy import NpySource
from p4sgd.host.data.blocks.npz import NpzSource
from p4sgd.host.data.blocks.source import Source
from p4sgd.host.data.blocks.tables import CsvSource, ParquetSource
from p4sgd.host.data.builtin import is_builtin, read_builtin
from p4sgd.host.data.columns import ReadOptions
from p4sgd.host.data.dataset import Dataset, FeatureSpace
from p4sgd.host.data.read import check_options, find_format
from p4sgd.host.errors import UserError

__all__ = ["open_source"]

_SOURCES: dict[str, type[Source]] = {
    "libsvm": LibsvmSource,
    "csv": CsvSource,
    "npz": NpzSource,
    "npy": NpySource,
    "parquet": ParquetSource,
}
"""By the name of the format, see `p4sgd.host.data.read.FORMATS`."""


class _Builtin(Source):
    """A data set that comes with scikit-learn: one block."""

    @property
    def size(self) -> int:
        return 0

    @property
    def position(self) -> int:
        return 0

    def _blocks(self, space: FeatureSpace | None) -> Iterator[Dataset]:
        dataset = read_builtin(self.name)
        self._space = dataset.space
        yield dataset


def open_source(
    source: str | Path,
    *,
    file_format: str | None = None,
    label_column: str | int | None = None,
    ignore_columns: Sequence[str | int] = (),
    header: bool | None = None,
    delimiter: str | None = None,
    zero_based: bool | None = None,
) -> Source:
    """Find a data set with labels; nothing but its first bytes is read.

    Parameters
    ----------
    source, file_format, label_column, ignore_columns, header, delimiter, zero_based
        See `p4sgd.host.data.read_dataset`.

    Raises
    ------
    UserError
        If there is no such source or format.
    """
    options = ReadOptions(label_column, tuple(ignore_columns), True, None, header, delimiter, zero_based)
    check_options(options)
    if isinstance(source, str) and file_format is None and is_builtin(source):
        return _Builtin(Path(source), options)
    path = Path(source)
    if path.exists() and not path.is_file() and not path.is_dir():
        raise UserError(f"{source}: is no ordinary file, which can be read twice: write the data to one")
    found, is_guess = find_format(source, file_format)
    return _SOURCES[found](path, options, found if is_guess else None)
