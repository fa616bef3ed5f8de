"""Ranks that are threads of the test: what they tell each other is pickled, as if they were processes."""

import contextlib
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np

_PATIENCE_S = 60


class _Rank:
    def __init__(self, rank, size, shared, barrier):
        self.rank, self.size, self.interrupted = rank, size, False
        self._shared, self._barrier = shared, barrier

    def all_gather(self, value):
        self._shared[self.rank] = pickle.dumps(value)
        self._barrier.wait()
        values = [pickle.loads(each) for each in self._shared]
        self._barrier.wait()
        return values

    def all_sum(self, values):
        assert values.dtype == np.int64
        return np.sum(self.all_gather(values), axis=0)

    def start_sum(self, values, owner=None, *, interruptible=False):
        total = self.all_sum(values)
        return SimpleNamespace(wait=lambda: total if owner in (None, self.rank) else None, done=lambda: True)

    def start_broadcast(self, values, owner):
        assert values.dtype == np.float64
        sent = self.all_gather(values)[owner]
        return SimpleNamespace(wait=lambda: sent, done=lambda: True)

    def all_to_all(self, blocks, sizes=None):
        assert len(blocks) == self.size
        assert all(block.dtype == np.uint8 for block in blocks)
        received = [sent[self.rank].reshape(-1) for sent in self.all_gather(list(blocks))]
        assert sizes is None or list(sizes) == [block.size for block in received]
        return received


def run_ranks(size, function):
    """What ``function(communicator)`` gives in each of ``size`` ranks; raises what the first of them raises."""
    barrier = threading.Barrier(size, timeout=_PATIENCE_S)
    shared = [b""] * size

    def run(rank):
        try:
            return function(_Rank(rank, size, shared, barrier))
        except BaseException:
            barrier.abort()  # so that the others do not wait for ever
            raise

    with ThreadPoolExecutor(size) as pool:
        runs = [pool.submit(run, rank) for rank in range(size)]
    errors = [each.exception() for each in runs]
    with contextlib.suppress(StopIteration):
        raise next(each for each in errors if each and not isinstance(each, threading.BrokenBarrierError))
    return [each.result() for each in runs]
