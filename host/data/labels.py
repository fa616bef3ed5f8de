"""The labels of a source as numbers: read as such, or counted if they are texts."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from p4sgd.host.errors import UserError

__all__ = ["MISSING", "encode_labels", "number"]

MISSING = frozenset(
    {"", "#N/A", "#NA", "-NaN", "-nan", "?", "N/A", "NA", "NULL", "NaN", "None", "n/a", "na", "nan", "null"}
)
"""Texts that stand for a value that is not there."""

_SHOWN = 5


def number(text: str) -> float | None:
    """The number that a text is, or ``None``. Underscores, which Python would take, make no number."""
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def encode_labels(
    distinct: Sequence[str], which: npt.NDArray[np.intp], names: Sequence[str] | None, name: str
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
    names
        Names of the classes, if they are known from other data: a text gets its place among them. Empty if labels must
        be numbers; ``None`` if nothing is known.
    name
        Where the labels come from, for messages.

    Returns
    -------
    float64 (samples,) and the names of the classes, empty if the labels are numbers.

    Raises
    ------
    UserError
        If some labels are numbers and others are not, or if a label does not suit ``names``.
    """
    texts = [text.strip() for text in distinct]
    numbers = [number(text) for text in texts]
    words = [text for text, value in zip(texts, numbers, strict=True) if value is None]
    if not words:
        if names:
            raise UserError(f"{name}: the labels are numbers, where {_listed(names)} are expected")
        return np.array(numbers, dtype=np.float64)[which], ()
    if names is not None and not names:
        raise UserError(f"{name}: the label {words[0]!r} is not a number")
    if len(words) < len(texts):
        raise UserError(f"{name}: the label {words[0]!r} is not a number, unlike others: put it right or leave it out")
    known = sorted(set(words)) if names is None else list(names)
    places = {text: place for place, text in enumerate(known)}
    strange = [text for text in words if text not in places]
    if strange:
        raise UserError(f"{name}: the label {strange[0]!r} is none of {_listed(known)}, those of the training data")
    return np.array([places[text] for text in texts], dtype=np.float64)[which], tuple(known)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
