"""Labels as they are in a file, numbers or texts: which texts are numbers, and which mean a missing value."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from p4sgd.host.errors import UserError

MISSING = frozenset(
    {"", "#N/A", "#NA", "-NaN", "-nan", "?", "N/A", "NA", "NULL", "NaN", "None", "n/a", "na", "nan", "null"}
)
"""Texts that mean a missing value."""

EXACT = 1 << 53
"""From here on float64 does not represent every integer."""


def number(text: str | bytes) -> float | None:
    """The number that a text stands for, also NaN or infinite; ``None`` if it is none, such as ``1_0``."""
    underscored = "_" in text if isinstance(text, str) else b"_" in text
    try:
        return None if underscored else float(text)
    except ValueError:
        return None


def check_exact(text: str, name: str = "") -> None:
    """Refuse an integer of 2^53 or more, which float64 may not tell from others; ``text`` is any number."""
    if re.fullmatch(r"[+-]?\d+", text) and abs(float(text)) >= EXACT:
        place = f"{name}: " if name else ""
        raise UserError(f"{place}the label {text} is too large to be told from others: use labels below 2^53")


@dataclass(frozen=True, eq=False)
class RawLabels:
    """Labels of some samples, as in a file.

    Parameters
    ----------
    values
        (samples,): numeric labels of any type; if the labels are texts, indices into ``texts``, intp.
    texts
        The distinct texts in order of appearance; ``None`` if the labels are numbers.
    """

    values: npt.NDArray[Any]
    texts: Sequence[str] | None = None

    @classmethod
    def from_column(cls, column: Any) -> Self:
        encoded = column.dictionary_encode()
        # Not to_numpy, which imports pandas where that is installed, for a second.
        return cls(np.from_dlpack(encoded.indices).astype(np.intp), encoded.dictionary.to_pylist())

    @classmethod
    def join(cls, parts: Iterable[Self]) -> Self:
        """Concatenate labels, which must be all numbers or all texts."""
        parts = [part for part in parts if part.values.size]
        if not parts:
            return cls(np.empty(0))
        if parts[0].texts is None:
            return cls(np.concatenate([part.values for part in parts]))
        places: dict[str, int] = {}
        joined = []
        for part in parts:
            assert part.texts is not None
            joined.append(np.array([places.setdefault(text, len(places)) for text in part.texts], np.intp)[part.values])
        return cls(np.concatenate(joined), list(places))

    def encode(self, name: str) -> tuple[npt.NDArray[np.float64], tuple[str, ...]]:
        """Labels as float64 (samples,), and the names of the classes, empty if all labels are numbers.

        Names are numbered from 0 in alphabetical order. Raises `UserError`, with the ``name`` of the source, if a label
        is missing or is too large an integer, or if some are numbers and others are not.
        """
        if self.texts is None:
            if self.values.dtype.kind in "iu" and self.values.size:
                check_exact(str(self.values.min()), name)
                check_exact(str(self.values.max()), name)
            return self.values.astype(np.float64), ()
        texts = [text.strip() for text in self.texts]
        missing = [place for place, text in enumerate(texts) if text in MISSING]
        if missing:
            sample = int(np.isin(self.values, missing).argmax())
            raise UserError(f"{name}: the label of sample {sample + 1} is missing: leave that sample out")
        numbers = [number(text) for text in texts]
        words = [text for text, value in zip(texts, numbers, strict=True) if value is None]
        if not words:
            for text in texts:
                check_exact(text, name)
            return np.array(numbers, dtype=np.float64)[self.values], ()
        if len(words) < len(texts):
            raise UserError(f"{name}: the label {words[0]!r} is not a number, unlike others: correct it")
        known = {text: float(place) for place, text in enumerate(sorted(set(words)))}
        return np.array([known[text] for text in texts])[self.values], tuple(known)
