"""The labels of a source as numbers: read as such, or counted if they are texts."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.host.errors import UserError
from p4sgd.host.launch.communicator import Communicator

__all__ = ["EXACT", "MISSING", "check_exact", "encode_labels", "join_texts", "number", "real_labels"]

MISSING = frozenset(
    {"", "#N/A", "#NA", "-NaN", "-nan", "?", "N/A", "NA", "NULL", "NaN", "None", "n/a", "na", "nan", "null"}
)
"""Texts that stand for a value that is not there."""

EXACT = 1 << 53
"""From here on float64 does not have every whole number."""


def number(text: str) -> float | None:
    """The number that a text is, or ``None``. Underscores, which Python would take, make no number."""
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def real_labels(labels: npt.NDArray[Any], name: str) -> npt.NDArray[np.float64]:
    """Numbers as float64.

    Raises
    ------
    UserError
        If whole numbers are so large that different ones would become the same.
    """
    if labels.dtype.kind in "iu" and labels.size:
        check_exact(str(labels.min()), name)
        check_exact(str(labels.max()), name)
    return labels.astype(np.float64)


def check_exact(text: str, name: str) -> None:
    """Refuse a whole number that float64 may not tell from others; ``text`` is a number.

    Raises
    ------
    UserError
        If it is that large.
    """
    if re.fullmatch(r"[+-]?\d+", text) and abs(float(text)) >= EXACT:
        raise UserError(f"{name}: the label {text} is too large to be told from others: use labels below 2^53")


def join_texts(
    distinct: Sequence[str], which: npt.NDArray[np.intp], communicator: Communicator
) -> tuple[Sequence[str], npt.NDArray[np.intp]]:
    """From the label texts of every rank's share to those of all.

    Parameters
    ----------
    distinct, which
        The distinct texts of the own share, and for each of its samples the index of its text.
    communicator
        The ranks.

    Returns
    -------
    The same of all samples, one share after another.
    """
    places: dict[str, int] = {}
    joined = [
        np.array([places.setdefault(text, len(places)) for text in texts], np.intp)[indices]
        for texts, indices in communicator.all_gather((list(distinct), which))
    ]
    return list(places), np.concatenate(joined)


def encode_labels(
    distinct: Sequence[str], which: npt.NDArray[np.intp], name: str
) -> tuple[npt.NDArray[np.float64], tuple[str, ...]]:
    """Labels of a text source as numbers.

    Labels that all are numbers are taken as numbers. Labels of which none is a number are names of classes: they become
    their place, from 0, in the alphabetical order of all names.

    Parameters
    ----------
    distinct
        The distinct texts.
    which
        For each sample the index of its text.
    name
        Where the labels come from, for messages.

    Returns
    -------
    float64 (samples,) and the names of the classes, empty if the labels are numbers.

    Raises
    ------
    UserError
        If a label is missing, or too large a whole number, or if some are numbers and others are not.
    """
    texts = [text.strip() for text in distinct]
    missing = [place for place, text in enumerate(texts) if text in MISSING]
    if missing:
        sample = int(np.flatnonzero(np.isin(which, missing))[0])
        raise UserError(f"{name}: the label of sample {sample + 1} is missing: leave that sample out")
    numbers = [number(text) for text in texts]
    words = [text for text, value in zip(texts, numbers, strict=True) if value is None]
    if not words:
        for text in texts:
            check_exact(text, name)
        return np.array(numbers, dtype=np.float64)[which], ()
    if len(words) < len(texts):
        raise UserError(f"{name}: the label {words[0]!r} is not a number, unlike others: put it right or leave it out")
    known = sorted(set(words))
    places = {text: place for place, text in enumerate(known)}
    return np.array([places[text] for text in texts], dtype=np.float64)[which], tuple(known)
