"""Fingerprints of data sets, to detect that data have changed."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.host.data.dataset import Dataset
from p4sgd.host.distributed.communicator import Communicator, broadcast
from p4sgd.hw.spec.fixed import ByteArray

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
    """The identity of a data set, however its samples are divided among ranks, as long as they are in order."""
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
    features, ranks = data.features, data.communicator
    parts: list[npt.NDArray[Any]] = [features] if isinstance(features, np.ndarray) else []
    if not isinstance(features, np.ndarray):  # row pointers as those of the whole matrix
        stored = ranks.all_gather(features.nnz)
        kind = features.indptr.dtype if sum(stored) <= np.iinfo(np.int32).max else np.int64
        ends = features.indptr[min(1, ranks.rank) :].astype(np.int64) + sum(stored[: ranks.rank])
        parts = [ends.astype(kind), features.indices, features.data]
    for part in parts:
        for block in _in_turn(ranks, part):
            digest.update(block.data)
    return DataIdentity(data.name, data.samples, data.feature_count, broadcast(ranks, digest.hexdigest()))


def _in_turn(ranks: Communicator, part: npt.NDArray[Any]) -> Iterator[ByteArray]:
    """Bytes of an array that is distributed over the ranks, block by block, sent to rank 0; other ranks get nothing."""
    step = max(1, _BLOCK_VALUES // int(np.prod(part.shape[1:])))
    nothing = np.empty(0, np.uint8)
    for source, count in enumerate(ranks.all_gather(-(-part.shape[0] // step))):
        for first in range(0, count * step, step):
            own = part[first : first + step] if source == ranks.rank else nothing
            sent = [np.ascontiguousarray(own).reshape(-1).view(np.uint8), *[nothing] * (ranks.size - 1)]
            yield ranks.all_to_all(sent)[source]
