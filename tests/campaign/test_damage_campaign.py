"""A small part of the campaign on damaged files, and that it sees what it is for."""

import pytest
from campaign import damage
from support.bench import default_seed


def failures(seeds):
    return [f"{done.failure}: --only {done.seed}" for done in map(damage.run, seeds) if done.failure]


def test_every_damaged_file_is_read_or_refused():
    seed = default_seed() << 10
    failed = failures(range(seed, seed + 300))
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("reader", [lambda path: None, lambda path: path.missing], ids=["takes all", "fails"])
def test_readers_with_a_mistake_are_caught(monkeypatch, reader):
    for name in ("model", "prepared/labels.npy"):
        monkeypatch.setitem(damage.READERS, name, reader)
    assert len(failures(range(100))) > 3
