"""CSV and Parquet files, in the blocks that they are read in anyway."""

import contextlib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from p4sgd.host.data.dataset import Dataset, FeatureSpace, check_labels
from p4sgd.host.data.formats.csv_file import Form, RefusedError, detect, fast_blocks, find_label_mistake, slow_blocks
from p4sgd.host.data.formats.parquet import open_parquet, parquet_blocks, parquet_labels
from p4sgd.host.data.formats.source import RowSource, TextSource
from p4sgd.host.data.labels import encode_labels, index_column, index_texts
from p4sgd.host.errors import UserError

__all__ = ["CsvSource", "ParquetSource"]


class CsvSource(TextSource):
    """A CSV file, compressed or not; see `p4sgd.host.data.formats.csv_file`."""

    def _blocks(self, space: FeatureSpace | None) -> Iterator[Dataset]:
        form = detect(self.path, self.options)
        named: bool | None = None
        for features, texts, which in self._parts(form):
            try:
                labels, names = encode_labels(texts, which, self.name)
                block = Dataset(features, labels, self.name, names, feature_names=form.columns.feature_names)
                mixed = named is not None and named != bool(names)
            except UserError:
                find_label_mistake(self.path, form)
                raise
            if mixed:
                find_label_mistake(self.path, form)
            named = bool(names)
            yield block
        if named is None:
            raise UserError(f"{self.name}: there are no samples")
        self._space = FeatureSpace(len(form.columns.features), form.columns.feature_names)

    def _parts(self, form: Form) -> Iterator[tuple[npt.NDArray[np.float64], list[str], npt.NDArray[np.intp]]]:
        """Features, distinct label texts and which of them: read fast as far as that goes, and slowly from there on."""
        import pyarrow as pa

        done = 0
        with contextlib.suppress(pa.ArrowInvalid, RefusedError):
            for features, column in fast_blocks(self.path, form, self._watch):
                yield features, *index_column(pa.chunked_array([column]))
                done += features.shape[0]
            return
        for features, texts in slow_blocks(self.path, form, self._watch):
            known = min(done, features.shape[0])
            done -= known
            if known < features.shape[0]:
                yield features[known:], *index_texts(texts[known:])


class ParquetSource(RowSource):
    """A Parquet file; what is held of it at once is some columns of a row group, too."""

    def _blocks(self, space: FeatureSpace | None) -> Iterator[Dataset]:
        import pyarrow as pa

        with open_parquet(self.path, self.options) as table:
            names = table.columns.feature_names
            first = 0
            for features, column in parquet_blocks(table, range(table.samples)):
                labels, label_names = parquet_labels(pa.chunked_array([column]), self.name, first=first)
                check_labels(labels, self.name, first)
                yield Dataset(features, labels, self.name, label_names, feature_names=names)
                first += features.shape[0]
                self._done = first / table.samples
            if first == 0:
                raise UserError(f"{self.name}: there are no samples")
            self._space = FeatureSpace(len(table.columns.features), names)
