"""The register map."""

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import PRESETS, WorkerConfig
from p4sgd.hw.spec.register_map import Access, Field, Register
from p4sgd.hw.spec.registers import worker_map

every = list(worker_map(WorkerConfig.u280()))


@pytest.mark.parametrize("name", PRESETS)
def test_registers_are_words_of_the_page_and_tell_who_they_are_of_where_drivers_look(name):
    by_offset = {register.offset: register.name for register in worker_map(PRESETS[name]())}
    assert all(offset % 4 == 0 and 0 <= offset < 4096 for offset in by_offset)
    names = ["CTRL", "MAGIC", "ABI_VERSION", "CONFIG_HASH", "BUILD_ID"]
    assert [by_offset[offset] for offset in (0, 0x10, 0x14, 0x18, 0x1C)] == names


@given(st.sampled_from(every), st.data())
def test_encode_and_decode(register, data):
    values = {}
    for field in register.fields:
        low, high = (-(1 << field.bits - 1), (1 << field.bits - 1) - 1) if field.signed else (0, (1 << field.bits) - 1)
        values[field.name] = data.draw(st.integers(low, high))
    word = register.encode(**values)
    assert 0 <= word < 1 << 32
    assert register.decode(word) == values


def test_bad_values_and_names_are_refused():
    with pytest.raises(ValueError, match="precision must be 0 to 15"):
        registers.FORMAT.encode(precision=16)
    with pytest.raises(KeyError, match="no field"):
        registers.FORMAT.encode(nonsense=1)
    with pytest.raises(ValueError, match="overlaps"):
        Register("R", 0, "", (Field("a", 0, 2, Access.RW, ""), Field("b", 1, 1, Access.RW, "")))


def test_hashes_tell_configurations_apart_and_stay_as_before_there_was_udp():
    configs = {preset() for preset in PRESETS.values()}
    assert len({config.config_hash for config in configs}) == len(configs)
    fields = {"chunks": 16, "engines": 1, "lanes": 8, "line_fifo_depth": 128, "ports": 1, "slots": 4}
    text = json.dumps(fields | {"table_segments": 256}, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).digest()
    assert WorkerConfig.tiny().config_hash == int.from_bytes(digest[:4], "big")


@pytest.mark.parametrize(
    "fields",
    [{"lanes": 12}, {"lanes": 4}, {"engines": 0}, {"chunks": 100}, {"slots": 1}, {"table_segments": 8}, {"udp": True}],
)
def test_impossible_configurations_are_refused(fields):
    with pytest.raises(ValueError, match=next(iter(fields))):
        WorkerConfig(**fields)


def test_a_worker_has_at_most_2_to_the_24_features():
    """Dot products of 8-bit features with the largest weights then fit 64 bits."""
    assert WorkerConfig(engines=4, chunks=65536, lanes=64).features * 255 << 31 < 1 << 63
    with pytest.raises(ValueError, match=r"20971520 features.*16777216"):
        WorkerConfig(engines=5, chunks=65536, lanes=64)
