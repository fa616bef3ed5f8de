"""Files of sparse text, read by the compiled parser as far as it can, or by the one in Python."""

import math
from contextlib import contextmanager

import pytest

from p4sgd.host.data import read_dataset
from p4sgd.host.data.formats import sparse_text
from p4sgd.host.errors import UserError

PARSERS = ("compiled", "python")


@contextmanager
def use_parser(name):
    """Have files of any size read by one of `PARSERS`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sparse_text, "_COMPILED_BYTES", 0 if name == "compiled" else math.inf)
        yield


@contextmanager
def only_plain_lines(source):
    """Have the compiled parser alone read files of a class of sources."""
    with use_parser("compiled"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "_parse_line", None)
        yield


def told(path, parser, **options):
    """What reading gives: all bits of the samples, or the message."""
    with use_parser(parser):
        try:
            data = read_dataset(path, **options)
        except UserError as error:
            return str(error)
    matrix = data.features
    arrays = (matrix.data, matrix.indices, matrix.indptr, data.labels)
    return [(array.dtype, array.tobytes()) for array in arrays], matrix.shape, data.zero_based


def check_mistake(path, message, **options):
    """Check that reading a file fails with a message that begins so, after the name of the file."""
    with pytest.raises(UserError) as raised:
        read_dataset(path, **options)
    assert str(raised.value).startswith(f"{path}{message}")
