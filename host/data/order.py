"""Shuffle and split of samples."""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from p4sgd.host.errors import UserError

Order: TypeAlias = npt.NDArray[np.intp]
"""Indices of samples."""


def held_out(samples: int, fraction: float) -> int:
    """Number of samples out of ``samples`` that `split` holds out, at least one."""
    return max(1, round(fraction * samples))


def shuffle(samples: int, seed: int) -> Order:
    """Indices of all samples in random order; the same seed gives the same order."""
    return np.random.default_rng(seed).permutation(samples)


def split(
    labels: npt.NDArray[np.float64], fraction: float, *, seed: int, stratified: bool, name: str
) -> tuple[Order, Order]:
    """Shuffle samples and hold out a part of them: indices of the others and of these, both in random order.

    ``labels`` are (samples,), or (samples, targets) if not ``stratified``, which holds out the same fraction of every
    class, to within one sample. ``fraction`` is above 0 and below 1. The same seed and data give the same split.

    Raises `UserError` if one part would be empty; ``name`` is the source of the samples.
    """
    order = shuffle(len(labels), seed)
    count = held_out(len(labels), fraction)
    if not 0 < fraction < 1 or count >= len(labels):
        raise UserError(f"{name}: holding out {fraction:g} of {len(labels)} samples leaves none of one part")
    if not stratified:
        return order[count:], order[:count]
    _, member, sizes = np.unique(labels[order], return_inverse=True, return_counts=True)
    wanted = sizes * (count / sizes.sum())
    shares = np.floor(wanted).astype(int)
    shares[np.argsort(shares - wanted, kind="stable")[: count - shares.sum()]] += 1  # those with the largest remainders
    held = np.zeros(len(labels), dtype=bool)
    for label, share in enumerate(shares):
        held[np.flatnonzero(member == label)[:share]] = True
    return order[~held], order[held]
