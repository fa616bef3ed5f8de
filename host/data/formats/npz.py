"""Archives of NumPy arrays, by rows as they are unpacked."""

from collections.abc import Iterator

from p4sgd.host.data.dataset import Dataset, FeatureSpace, check_labels
from p4sgd.host.data.formats.archive import archive_labels, open_rows
from p4sgd.host.data.formats.arrays import check_finite, load_archive
from p4sgd.host.data.formats.opening import BLOCK_VALUES
from p4sgd.host.data.formats.source import RowSource
from p4sgd.host.errors import UserError

__all__ = ["NpzSource"]


class NpzSource(RowSource):
    """Named arrays; see `p4sgd.host.data.formats.arrays.read_npz`.

    Labels, and the row pointers of a sparse matrix, are held as a whole.
    """

    def _blocks(self, space: FeatureSpace | None) -> Iterator[Dataset]:
        with load_archive(self.path) as archive:
            labels, names = archive_labels(self.path, archive)
            with open_rows(self.path, archive) as stored:
                samples, features = stored.shape
                if samples != labels.size:
                    raise UserError(f"{self.name}: there are {samples} samples and {labels.size} labels")
                check_labels(labels, self.name)
                if samples == 0:
                    raise UserError(f"{self.name}: there are no samples")
                first = 0
                while first < samples:
                    end = stored.end(first, BLOCK_VALUES)
                    part = Dataset(stored.rows(range(first, end)), labels[first:end], self.name, names)
                    yield check_finite(part, first)
                    first, self._done = end, end / samples
        self._space = FeatureSpace(features)
