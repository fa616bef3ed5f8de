"""The self-test's pattern and sizes."""

import numpy as np
import pytest

from p4sgd.hw.spec.config import PRESETS, WorkerConfig
from p4sgd.hw.spec.selftest import (
    GEOMETRY,
    Sizes,
    first_number,
    identity,
    number_of_word,
    pattern,
    read_result,
    selftest_map,
)


def test_words_of_the_pattern():
    """By integers of Python: word j of beat n is (first + n · step) XOR (j · step), modulo 2^32."""
    first, step = 0xFFFF_FFF0, 0x9E37_79B9
    words = pattern(first, 100, 32).view("<u4")
    for beat in (0, 1, 99):
        for word in (0, 1, 7):
            assert words[beat, word] == (first + beat * step) % 2**32 ^ word * step % 2**32


def test_the_pattern_tells_addresses():
    """Numbers of a word are undone, for any seed; beats of two addresses and in a row have no word alike."""
    for address in (0, 4096, 0x12_3456_7000):
        for seed in (0, 0xFFFF_FFFF):
            assert number_of_word(first_number(address, 32, seed), seed) == address // 32
    beats = np.concatenate([pattern(first_number(address, 32, 1), 128, 32) for address in (0, 4096)])
    np.testing.assert_array_equal(beats, pattern(1, 256, 32))
    assert len(np.unique(beats.view("<u4")[:, 0])) == 256


def test_what_a_port_finds():
    """Of beats 0, 1, 4, 5, 8 and 9 two are wrong: 4, in words 0 and 3, and 9 in word 1. 2 and 3 are not seen."""
    content = pattern(7, 12, 16)
    content[2:4] = 0
    content[4, 0] ^= 1
    content[4, 15] ^= 0x80
    content[9, 5] ^= 4
    right = (7 + 4 * 0x9E37_79B9) % 2**32
    found = {"beats": 6, "wrong": 2, "wrong_beat": 2, "wrong_word": right ^ 1, "wrong_words": 0b1011}
    assert read_result(content, 7, burst_beats=2, stride_beats=4) == found


@pytest.mark.parametrize("name", PRESETS)
def test_sizes_are_those_of_the_worker_and_can_be_read_back(name):
    config = PRESETS[name]()
    sizes = Sizes.of(config, 2)
    assert Sizes(**GEOMETRY.decode(identity(sizes)["GEOMETRY"])) == sizes
    assert sizes.memories == config.memories
    assert (sizes.bytes_of(0), sizes.bytes_of(config.labels_memory)) == (config.port_bytes, 32)
    models = [config.model_memory(engine) for engine in range(config.engines)]
    assert [port for port in range(sizes.memories) if sizes.writes(port)] == models
    assert list(selftest_map(sizes)), "their registers have room"


def test_more_ports_than_there_are_registers_for_are_refused():
    with pytest.raises(ValueError, match="40 memory ports at most, not 65"):
        Sizes.of(WorkerConfig(engines=32, ports=2), 1)
