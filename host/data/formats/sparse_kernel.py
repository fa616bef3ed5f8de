"""The compiled loop over plain lines of sparse text, of which the parsers of its formats know what is plain.

At any other line it stops, and the reader in Python, which defines the format, parses it or says what is wrong with it.
"""

from typing import Any

from p4sgd.host.data.formats.libsvm_kernel import blank
from p4sgd.host.data.formats.libsvm_kernel import parse_line as parse_numbers
from p4sgd.host.data.formats.vw_kernel import parse_line as parse_names
from p4sgd.sim.compiled import compiled

_LINE_FEED, _COMMENT = b"\n#"


@compiled("the reader of sparse text")
def parse_plain(
    text: Any,
    at: int,
    row: int,
    stored: int,
    limits: Any,
    names: Any,
    mask: Any,
    labels_needed: bool,
    values: Any,
    indices: Any,
    ends: Any,
    labels: Any,
    weights: Any,
) -> tuple[int, int, int]:
    """Parse lines up to the first one that is not plain.

    Parameters
    ----------
    text
        uint8 (bytes,): the text. It ends with a line feed.
    at, row, stored
        Offset of the first line; number of samples and of values so far.
    limits, names
        Two uint64, the smallest and largest index of LIBSVM's format; ``names`` is not ``None`` in Vowpal Wabbit's. One
        of them is ``None``, for which Numba compiles nothing.
    mask
        uint64: the bits that an index, or the hash of a name, keeps.
    labels_needed
        Whether every line must have a label. If not, it may be missing or be a text, and all labels are 0.
    values, indices, ends, labels, weights
        float64 and int32 (values,), written from ``stored`` on; int64 and float64 (samples,) from ``row`` on.

    Returns
    -------
    Offset of the line that is not plain, or of the end; ``row`` and ``stored`` there.
    """
    while at < text.size:
        line, begin = at, stored
        while blank(text[at]):
            at += 1
        if text[at] != _LINE_FEED and (text[at] != _COMMENT or names is not None):
            label, weight = 0.0, 1.0
            if limits is not None:
                least, largest = limits
                label, at, stored = parse_numbers(
                    text, at, stored, least, largest, mask, labels_needed, values, indices
                )
            if names is not None:
                label, weight, at, stored = parse_names(text, at, stored, mask, labels_needed, values, indices)
            if at < 0:
                return line, row, begin
            ends[row], labels[row], weights[row] = stored, label, weight
            row += 1
        while text[at] != _LINE_FEED:
            at += 1
        at += 1
    return at, row, stored
