"""What `partial_fit` knows of the stream of its samples: how it began, and whether later ones are still like that."""

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy  # which imports scipy.sparse at its first use

from p4sgd.host.data import Dataset, Scaling
from p4sgd.host.data.encoding import TableEncoding
from p4sgd.host.data.matrix import Features, join_rows, to_dense
from p4sgd.host.errors import listed
from p4sgd.host.estimators.frames import Rows

if TYPE_CHECKING:
    from p4sgd.host.precondition import Whitening

ENOUGH = 256
"""Samples after which the scaling is left as it is."""

HANDFUL = 32
"""Of fewer samples ranges and means are guesses."""

_SEEN = 1024
"""Samples, however often each, that a model of few should have seen."""

_FEW = 8
"""Of fewer samples one may be an outlier, so that they have to be twice as far away to have drifted."""

_NAMED = 5
"""Most columns that a remark names."""


@dataclass(frozen=True, eq=False)
class Beginning:
    """The first samples of a stream; ``fitted`` of them have made the scaling. ``columns`` are those of pyarrow if all
    samples are from frames with texts or gaps, of which more samples may have others."""

    data: Dataset
    columns: Any = None
    fitted: int = 0

    @property
    def due(self) -> bool:
        """Whether the model is to be made anew: whenever the samples have doubled, and when they are enough."""
        return self.complete or self.data.samples >= 2 * self.fitted

    @property
    def epochs(self) -> int:
        """Number of epochs in which few samples are seen as often as many later on."""
        return max(1, _SEEN // self.data.samples) if self.data.samples < ENOUGH else 1

    @property
    def complete(self) -> bool:
        return self.data.samples >= ENOUGH

    def joined(self, more: Dataset, columns: Any) -> "Beginning":
        """With the samples of one more call."""
        parts = (self.data, more)
        features: list[Features] = [each.features for each in parts]
        if not all(map(scipy.sparse.issparse, features)):
            features = [to_dense(each) for each in features]
        weights = None
        if any(each.sample_weights is not None for each in parts):
            weights = np.concatenate([_weights(each) for each in parts])
        labels = np.concatenate([each.labels for each in parts])
        data = dataclasses.replace(more, features=join_rows(features), labels=labels, sample_weights=weights)
        if columns is not None and self.columns is not None:
            import pyarrow as pa

            columns = pa.concat_tables([self.columns, columns], promote_options="permissive")
        return dataclasses.replace(self, data=data, columns=None if self.columns is None else columns)

    def surveyed(self, rows: Rows, names: tuple[str, ...]) -> "Beginning":
        """With these rows of all samples, and the names of their columns, in place of features."""
        space = dataclasses.replace(self.data.space, names=names, encoding=None)
        data = dataclasses.replace(self.data, features=rows.rows, space=space, table=rows.table)
        return dataclasses.replace(self, data=data)

    def trained(self, encoding: TableEncoding | None) -> "Beginning":
        """After the model was made anew, with this encoding of a table."""
        data = self.data
        if encoding is not None and data.table is not None:
            data = data.encoded(encoding)
        return dataclasses.replace(self, data=data, fitted=data.samples)


def _weights(data: Dataset) -> Any:
    return np.ones(data.samples) if data.sample_weights is None else data.sample_weights


def drift_remark(fitted: "Scaling | Whitening | None", data: Dataset) -> str | None:
    """A remark if values have drifted far out of the range of a scaling, so that most of them are clamped."""
    assert fitted is not None
    scaling = fitted if isinstance(fitted, Scaling) else fitted.scaling
    rows, count = data.features, data.samples
    farthest = 1.0 if count >= _FEW else 2.0
    if scipy.sparse.issparse(rows):
        outside = np.abs(scaling.apply_stored(rows)) > farthest
        beyond = np.bincount(rows.indices[outside], minlength=data.feature_count)
        zeros = count - np.bincount(rows.indices, minlength=data.feature_count)
        beyond += np.where(np.abs(scaling.zero) > farthest, zeros, 0)
    else:
        scaled = scaling.apply(rows)
        if not scaling.signed:  # from [0, 1]
            scaled = 2 * scaled - 1
        beyond = np.count_nonzero(np.abs(scaled) > farthest, axis=0)
    drifted = np.flatnonzero(2 * beyond > count)
    if not drifted.size:
        return None
    names = listed([data.space.name(column) for column in drifted.tolist()], _NAMED)
    return (
        f"most values of {drifted.size} of {data.feature_count} features lie outside the range of the scaling, which "
        f"the first samples have made, and are clamped ({names}): fit a new model to samples like these"
    )
