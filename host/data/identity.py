"""Fingerprints of data sets, to detect that data have changed."""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from p4sgd.host.data.dataset import Dataset

_BLOCK_VALUES = 1 << 18
"""Values that are hashed at once."""


@dataclass(frozen=True)
class DataIdentity:
    """Identity of a data set: ``sha256`` is that of all that a model depends on, features, labels and their names, and
    weights and offsets of samples. ``name`` is its source, for messages; it is not compared, as files may be moved."""

    name: str = field(compare=False)
    samples: int
    features: int
    sha256: str


def identify(data: Dataset) -> DataIdentity:
    """The identity of a data set whose samples are in order."""
    about: list[Any] = [data.sparse, str(data.features.dtype), data.labelled, data.label_names, data.space.names]
    about += [data.target_names] if data.target_names else []
    digest = hashlib.sha256(json.dumps([*about, data.space.zero_based, data.samples, data.feature_count]).encode())
    digest.update(np.ascontiguousarray(data.labels).data)
    if data.sample_weights is not None:
        digest.update(b"weights")
        digest.update(np.ascontiguousarray(data.sample_weights).data)
    if data.offsets is not None:
        digest.update(b"offsets")
        digest.update(np.ascontiguousarray(data.offsets).data)
    features: Any = data.features
    dense = isinstance(features, np.ndarray)
    for part in (features,) if dense else (features.indptr, features.indices, features.data):
        step = max(1, _BLOCK_VALUES // int(np.prod(part.shape[1:])))
        for first in range(0, part.shape[0], step):  # of which copies are small
            digest.update(np.ascontiguousarray(part[first : first + step]).data)
    return DataIdentity(data.name, data.samples, data.feature_count, digest.hexdigest())
