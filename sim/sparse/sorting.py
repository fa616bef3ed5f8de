"""Sorting of the words of entries, digit by digit: NumPy's sort takes four times as long on some processors."""

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.sim.compiled import compiled

__all__ = ["sort_words"]

_VALUE_BITS = 8
"""The lowest bits, which do not matter, because no two entries agree in all others."""

_DIGIT_BITS = 11
"""Bits of a digit: the counters of a pass fit into the first-level cache."""

Words = npt.NDArray[np.uint64]


def sort_words(words: Words) -> Words:
    """`p4sgd.hw.spec.image.entry_words` in ascending order, uint64 (entries,); the given array is overwritten."""
    sorted_words, spare, shift = words, np.empty_like(words), _VALUE_BITS
    places = np.empty((1 << _DIGIT_BITS) + 1, np.int64)
    # Only digits in which words differ.
    differ = int(np.bitwise_or.reduce(words) ^ np.bitwise_and.reduce(words))
    while differ >> shift:
        if differ >> shift & 1:
            _sort_by_digit(sorted_words, shift, places, spare)
            sorted_words, spare, shift = spare, sorted_words, shift + _DIGIT_BITS
        else:
            shift += 1
    return sorted_words


_compiled = functools.partial(compiled, "the sorting of sparse data")


@_compiled(nogil=True)
def _sort_by_digit(words: Any, shift: int, places: Any, target: Any) -> None:
    """Copy words in the order of a digit; those with equal ones keep their order."""
    places[:] = 0
    low, mask = np.uint64(shift), np.uint64((1 << _DIGIT_BITS) - 1)
    for word in words:
        places[((word >> low) & mask) + np.uint64(1)] += 1
    for digit in range(1, places.size):
        places[digit] += places[digit - 1]
    for word in words:
        digit = (word >> low) & mask
        target[places[digit]] = word
        places[digit] += 1
