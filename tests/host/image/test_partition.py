"""Features to workers."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p4sgd.host.errors import UserError
from p4sgd.host.image.packing import partition
from p4sgd.hw.spec.config import PRESETS, WorkerConfig

CONFIG = WorkerConfig(engines=2, lanes=8, chunks=4)  # 64 features a worker


@given(features=st.integers(1, 64 * 32 - 1), workers=st.integers(1, 32), bias=st.booleans())
def test_contiguous_whole_chunks_and_equal(features, workers, bias):
    chunks = -(-(features + bias) // 8)
    if chunks < workers:
        with pytest.raises(UserError, match=f"use at most {chunks}"):
            partition(features, workers, CONFIG, bias=bias)
        return
    if -(-chunks // workers) > 8:
        with pytest.raises(UserError, match="this configuration holds 64: use at least"):
            partition(features, workers, CONFIG, bias=bias)
        return
    shards = partition(features, workers, CONFIG, bias=bias)
    assert [shard.worker for shard in shards] == list(range(workers))
    assert shards[0].first == 0
    assert shards[-1].last == features + bias
    for left, right in itertools.pairwise(shards):
        assert left.last == right.first
        assert right.first % 8 == 0
    counts = [-(-shard.features // 8) for shard in shards]
    assert max(counts) - min(counts) <= 1
    assert counts == [(w + 1) * chunks // workers - w * chunks // workers for w in range(workers)]


def test_the_advice_is_right():
    with pytest.raises(UserError, match="holds 64: use at least 3 workers"):
        partition(128, 2, CONFIG, bias=True)
    partition(128, 3, CONFIG, bias=True)
    partition(128, 2, CONFIG, bias=False)
    with pytest.raises(UserError, match=r"holds 64: use a larger configuration \(tiny, small, u280"):
        partition(64 * 32, 32, CONFIG, bias=True)
    with pytest.raises(UserError, match=r"3000 features and the bias over 1 worker are .* configuration \(u280"):
        partition(3000, 1, PRESETS["small"](), bias=True)
    with pytest.raises(UserError, match=r"3001 features over 1 worker are .* configuration \(u280"):
        partition(3001, 1, PRESETS["small"](), bias=False)
    with pytest.raises(UserError, match=r"use fewer features$"):
        partition(10**8, 32, CONFIG, bias=True)


@pytest.mark.parametrize("workers", [0, 33, -1])
def test_workers_out_of_range(workers):
    with pytest.raises(UserError, match="workers must be 1 to 32"):
        partition(1000, workers, CONFIG, bias=True)
