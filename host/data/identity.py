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
    """Identity of a data set.

    ``name`` is its source, for messages; it is not compared, because files may be moved. ``sha256`` is the checksum of
    everything that a model depends on: features, labels and their names, weights of samples.
    """

    name: str = field(compare=False)
    samples: int
    features: int
    sha256: str


def identify(data: Dataset) -> DataIdentity:
    """The identity of a data set, from all its values.

    It does not depend on the division of the samples among ranks, as long as they are in the order of the ranks.
    """
    about: list[Any] = [data.sparse, str(data.features.dtype), data.labelled, data.label_names, data.feature_names]
    about += [data.target_names] if data.target_names else []
    digest = hashlib.sha256(json.dumps([*about, data.zero_based, data.samples, data.feature_count]).encode())
    digest.update(np.ascontiguousarray(data.labels).data)
    if data.sample_weights is not None:
        digest.update(b"weights")
        digest.update(np.ascontiguousarray(data.sample_weights).data)
    for part in _parts(data):
        for block in _in_turn(data.communicator, part):
            digest.update(block.data)
    return DataIdentity(data.name, data.samples, data.feature_count, broadcast(data.communicator, digest.hexdigest()))


def _parts(data: Dataset) -> list[npt.NDArray[Any]]:
    """The arrays that make up the local features. Those of all ranks, joined, are those of the whole data set."""
    features = data.features
    if isinstance(features, np.ndarray):
        return [features]
    stored, rank = data.communicator.all_gather(features.nnz), data.communicator.rank
    kind = features.indptr.dtype if sum(stored) <= np.iinfo(np.int32).max else np.int64
    ends = features.indptr[min(1, rank) :].astype(np.int64) + sum(stored[:rank])
    return [ends.astype(kind), features.indices, features.data]


def _in_turn(communicator: Communicator, part: npt.NDArray[Any]) -> Iterator[ByteArray]:
    """Bytes of an array that is distributed over the ranks, block by block, sent to rank 0; other ranks get nothing."""
    step = max(1, _BLOCK_VALUES // int(np.prod(part.shape[1:])))
    nothing = np.empty(0, np.uint8)
    for source, count in enumerate(communicator.all_gather(-(-part.shape[0] // step))):
        for first in range(0, count * step, step):
            own = part[first : first + step] if source == communicator.rank else nothing
            sent = [np.ascontiguousarray(own).reshape(-1).view(np.uint8), *[nothing] * (communicator.size - 1)]
            yield communicator.all_to_all(sent)[source]
