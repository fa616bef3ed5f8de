"""Memory that a simulator has saved is read whole or not at all."""

import numpy as np
import pytest

from p4sgd.sim.cluster.protocol import read_saved

WHOLE = "3 5\n00000003 00a1\n00000004 ffb2\nend\n"


def read(folder, text):
    (folder / "worker1_bank2.bin.txt").write_text(text)
    return [(address, word.tolist()) for address, word in read_saved(folder, 1, 2)]


def test_words_with_their_addresses(tmp_path):
    assert read(tmp_path, WHOLE) == [(6, [0xA1, 0]), (8, [0xB2, 0xFF])]


def test_nothing_written(tmp_path):
    assert read(tmp_path, "1024 0\nend\n") == []


@pytest.mark.parametrize("length", range(len(WHOLE) - 1))
def test_a_file_that_was_cut(tmp_path, length):
    with pytest.raises(ValueError, match=r"bank2.bin.txt is incomplete"):
        read(tmp_path, WHOLE[:length])


@pytest.mark.parametrize("missing", range(4))
def test_a_file_with_a_hole(tmp_path, missing):
    """A disk may be full for a while only."""
    lines = WHOLE.splitlines(keepends=True)
    with pytest.raises(ValueError, match="incomplete"):
        read(tmp_path, "".join(lines[:missing] + lines[missing + 1 :]))


def test_words_are_bytes(tmp_path):
    (tmp_path / "worker0_bank0.bin.txt").write_text(WHOLE)
    assert all(word.dtype == np.uint8 for _, word in read_saved(tmp_path, 0, 0))
