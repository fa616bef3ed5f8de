"""Data sets whose samples several processes have together."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

from p4sgd.host.data.dataset import Dataset, Features
from p4sgd.host.errors import UserError
from p4sgd.host.launch.communicator import ByteArray, Communicator

__all__ = ["SpreadDataset", "join_shares"]

_Value = TypeVar("_Value", bound=np.generic)


@dataclass(frozen=True, eq=False, kw_only=True)
class SpreadDataset(Dataset):
    """Samples of which every rank has the features of some and the labels of all.

    Parameters
    ----------
    features
        As those of `Dataset`, but of the samples of this rank only, (samples held, features).
    owners
        The rank that has each sample, (samples,).
    ranks
        The ranks; all have the same labels, names and owners.
    """

    owners: npt.NDArray[np.uint8]
    ranks: Communicator

    def _check_shapes(self) -> None:
        if self.samples == 0:
            raise UserError(f"{self.name}: there are no samples")
        if self.feature_count == 0:
            raise UserError(f"{self.name}: the samples have no features")
        if self.owners.shape != self.labels.shape or self._places.size != self.features.shape[0]:
            raise ValueError(
                f"{self._places.size} of {self.labels.size} samples are of this rank, not {self.features.shape}"
            )

    @property
    def communicator(self) -> Communicator:
        """The ranks."""
        return self.ranks

    @cached_property
    def _places(self) -> npt.NDArray[np.intp]:
        """Where the own samples are among all, ascending."""
        return np.flatnonzero(self.owners == self.ranks.rank)

    def take(self, rows: npt.NDArray[np.intp], name: str | None = None) -> Self:
        """Some of the samples, in the given order, which is the same in all ranks. None changes its rank."""
        owners = self.owners[rows]
        own = np.searchsorted(self._places, rows[owners == self.ranks.rank])
        return replace(
            self, features=self.features[own], labels=self.labels[rows], owners=owners, name=name or self.name
        )

    def held(self, which: slice) -> Features:
        """See `Dataset.held`."""
        first, last = np.searchsorted(self._places, which.indices(self.samples)[:2])
        return self.features[first:last]

    def in_order(self, values: npt.NDArray[_Value], which: slice = slice(None)) -> npt.NDArray[_Value]:
        """See `Dataset.in_order`; every rank gets all."""
        owners = self.owners[which]
        result = np.empty(owners.size, values.dtype)
        for rank, part in enumerate(self.ranks.all_gather(values)):
            result[owners == rank] = part
        return result

    def deal(self, parts: Sequence[ByteArray], which: slice) -> Sequence[ByteArray]:
        """See `Dataset.deal`; the worker of a rank is the one of the same number."""
        owners = self.owners[which]
        block = np.empty((owners.size, parts[self.ranks.rank].shape[1]), np.uint8)
        for rank, part in enumerate(self.ranks.exchange(parts)):
            block[owners == rank] = part.reshape(-1, block.shape[1])
        return [block]


def join_shares(
    features: Features, labels: npt.NDArray[np.float64], name: str, communicator: Communicator, **about: Any
) -> Dataset:
    """The data set whose samples every rank has read a share of, one share after another.

    Parameters
    ----------
    features
        Of the own share.
    labels
        Of all samples.
    name, about
        As those of `Dataset`; the same in all ranks.
    communicator
        The ranks.
    """
    if communicator.size == 1:
        return Dataset(features, labels, name, **about)
    counts = communicator.all_gather(features.shape[0])
    owners = np.repeat(np.arange(communicator.size, dtype=np.uint8), counts)
    return SpreadDataset(features, labels, name, owners=owners, ranks=communicator, **about)
