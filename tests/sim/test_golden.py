"""The golden model against plain Python integers and fractions, written from the rules of hw/spec/run.py."""

import itertools
from fractions import Fraction
from math import floor

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.jobs import random_job

from p4sgd.hw.spec.config import WorkerConfig

HALF = Fraction(1, 2)


def clamp(value, low, high):
    return max(low, min(high, value))


def train(job):
    """A run in exact rational numbers: every quantity is what it stands for, in units of its own format."""
    s = job.settings
    form, mode = s.features, s.label_mode
    q = [[[int(v) >> (form.stored - form.precision) for v in row] for row in worker] for worker in job.stored]
    w = [[int(v) for v in worker] for worker in job.weights]
    feature = Fraction(1, 2 ** (form.precision - form.signed))
    rate = Fraction(s.rate_mantissa, 2**s.rate_exponent)
    limit = (2**31 - 1) // s.workers
    segments = job.table.segments

    def psi(x):  # x in steps of 2^-16
        index = clamp(floor(Fraction(x, 2**job.table.shift)) + segments // 2, 0, segments - 1)
        slope = Fraction(int(job.table.slope[index]), 2**10)
        return slope * Fraction(x, 2**16) + Fraction(int(job.table.intercept[index]), 2**16)

    for batch in range(s.mini_batches):
        w_next = [list(worker) for worker in w]
        for micro in range(s.micro_batches):
            first = 8 * (batch * s.micro_batches + micro)
            rows = range(first, first + 8)
            z = []
            for row in rows:
                total = 0
                for worker in range(s.workers):
                    exact = sum(a * b for a, b in zip(q[worker][row], w[worker], strict=True)) * feature
                    real = exact * Fraction(1, 2**23)
                    total += clamp(floor(real * 2**16 + HALF), -limit, limit)  # Round 1
                z.append(total)
            g = []
            for row, value in zip(rows, z, strict=True):
                y = int(job.labels[row])
                sign = -1 if mode.sign and y < 0 else 1
                x = clamp(sign * value - (y if mode.offset else 0), -(2**26), 2**26 - 1)
                real = sign * psi(x) - (Fraction(y, 2**16) if mode.constant else 0)
                g.append(clamp(floor(real * 2**16 + HALF), -(2**23), 2**23 - 1))  # Round 2
            for worker in range(s.workers):
                for j in range(len(w_next[worker])):
                    slope = sum(
                        Fraction(v, 2**16) * q[worker][row][j] * feature for v, row in zip(g, rows, strict=True)
                    )
                    step = floor(slope * rate * 2**23 + HALF)  # Round 3
                    w_next[worker][j] = clamp(w_next[worker][j] - step, -(2**31), 2**31 - 1)
        for worker in range(s.workers):
            for j, value in enumerate(w_next[worker]):
                shrunk = value - floor(Fraction(value * s.shrink, 2**24) + HALF)
                magnitude = max(abs(shrunk) - s.threshold, 0)
                w_next[worker][j] = magnitude if shrunk > 0 else -magnitude
        w = w_next
    return w


@settings(max_examples=25)
@given(st.integers(0, 1 << 30), st.integers(1, 3), st.booleans())
def test_same_as_exact_fractions(seed, workers, wild):
    job = random_job(WorkerConfig.tiny(), workers, seed=seed, wild=wild, max_chunks=2, max_mini_batches=2)
    for got, wanted in zip(job.golden().weights, train(job), strict=True):
        assert got.tolist() == wanted


def test_workers_matter_only_through_round_1():
    """The same data on 1 and on 8 workers: activations differ by at most 8 half steps, weights by what follows."""
    largest = 0
    for seed in range(20):
        one = random_job(WorkerConfig.tiny(), 1, seed=seed, max_chunks=8, max_mini_batches=4)
        features = one.stored[0].shape[1]
        cuts = np.linspace(0, features, min(8, features) + 1).astype(int)
        parts = [slice(a, b) for a, b in itertools.pairwise(cuts)]
        many = type(one)(
            one.config,
            type(one.settings)(**{**vars(one.settings), "workers": len(parts)}),
            one.table,
            [one.stored[0][:, part] for part in parts],
            one.labels,
            [one.weights[0][part] for part in parts],
        )
        together = one.golden().weights[0]
        apart = np.concatenate(many.golden().weights)
        largest = max(largest, int(np.abs(together - apart).max()))
    print(f"largest difference: {largest} weight steps = {largest * 2.0**-23:.1e}")
    assert 0 < largest < 1 << 12
