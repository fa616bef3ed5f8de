"""The labels of a source as numbers: read as such, or counted if they are texts."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.host.errors import UserError

__all__ = [
    "EXACT",
    "MISSING",
    "check_exact",
    "encode_labels",
    "index_column",
    "index_texts",
    "join_texts",
    "number",
    "real_labels",
]

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


def index_texts(texts: Iterable[str]) -> tuple[list[str], npt.NDArray[np.intp]]:
    """The distinct ones of some texts, and for each text the index of its like."""
    places: dict[str, int] = {}
    which = np.array([places.setdefault(text, len(places)) for text in texts], np.intp)
    return list(places), which


def index_column(column: Any) -> tuple[list[str], npt.NDArray[np.intp]]:
    """The same of a chunked array of pyarrow."""
    encoded = column.combine_chunks().dictionary_encode()
    if not hasattr(encoded, "dictionary"):  # more text than one array holds
        encoded = encoded.combine_chunks()
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.intp)


def join_texts(
    parts: Iterable[tuple[Sequence[str], npt.NDArray[np.intp]]],
) -> tuple[list[str], npt.NDArray[np.intp]]:
    """What `index_texts` gives of all samples, from what it gives of parts of them.

    Parameters
    ----------
    parts
        One part after another.
    """
    places: dict[str, int] = {}
    joined = [
        np.array([places.setdefault(text, len(places)) for text in texts], np.intp)[which] for texts, which in parts
    ]
    return list(places), np.concatenate([np.empty(0, np.intp), *joined])


def encode_labels(
    distinct: Sequence[str], which: npt.NDArray[np.intp], name: str, *, first: int = 0
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
    first
        Samples of the source that came before these, for messages.

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
        raise UserError(f"{name}: the label of sample {first + sample + 1} is missing: leave that sample out")
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
