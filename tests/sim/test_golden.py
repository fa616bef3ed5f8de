"""The golden model against plain Python integers and fractions, written from the rules of hw/spec/run.py."""

import dataclasses
from fractions import Fraction
from math import floor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.jobs import random_job

from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.fixed import FACTOR, IMPORTANCE, RATE_MANTISSA, RESIDUAL
from p4sgd.sim.golden import activation, delta, factor

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
                    share = 0
                    for unit in range(0, len(w[worker]), s.unit):
                        columns = range(unit, min(unit + s.unit, len(w[worker])))
                        exact = sum(q[worker][row][j] * w[worker][j] for j in columns) * feature
                        share += floor(exact * Fraction(1, 2**23) * 2**16 + HALF)  # Round 1
                    total += clamp(share, -limit, limit)
                z.append(total)
            g = []
            for row, value in zip(rows, z, strict=True):
                y = int(job.labels[row])
                sign = -1 if mode.sign and y < 0 else 1
                x = clamp(sign * value - (y if mode.offset else 0), -(2**26), 2**26 - 1)
                real = sign * psi(x) - (Fraction(y, 2**16) if mode.constant else 0)
                g.append(clamp(floor(real * 2**16 + HALF), -(2**23), 2**23 - 1))  # Round 2
            if s.weighted:
                factors = [Fraction(int(job.importances[row]), 2**16) * s.rate_mantissa for row in rows]
                factors = [Fraction(floor(each * 2**9 + HALF), 2**9) for each in factors]
            else:
                factors = [Fraction(s.rate_mantissa)] * 8
            # Round 2 of δ, which changes nothing without weights
            d = [floor(v * each + HALF) for v, each in zip(g, factors, strict=True)]
            for worker in range(s.workers):
                for j in range(len(w_next[worker])):
                    slope = sum(
                        Fraction(v, 2**16) * q[worker][row][j] * feature for v, row in zip(d, rows, strict=True)
                    )
                    step = floor(slope / 2**s.rate_exponent * 2**23 + HALF)  # Round 3
                    w_next[worker][j] = clamp(w_next[worker][j] - step, -(2**31), 2**31 - 1)
        for worker in range(s.workers):
            for j, value in enumerate(w_next[worker]):
                if job.exempt == (worker, j):
                    continue
                shrunk = value - floor(Fraction(value * s.shrink, 2**24) + HALF)
                magnitude = max(abs(shrunk) - s.threshold, 0)
                w_next[worker][j] = magnitude if shrunk > 0 else -magnitude
        w = w_next
    return w


@settings(max_examples=25)
@given(st.integers(0, 1 << 30), st.integers(1, 3), st.booleans(), st.booleans())
def test_same_as_exact_fractions(seed, workers, wild, weighted):
    job = random_job(
        WorkerConfig.tiny(), workers, seed=seed, wild=wild, max_chunks=2, max_mini_batches=2, weighted=weighted
    )
    for got, wanted in zip(job.golden().weights, train(job), strict=True):
        assert got.tolist() == wanted


def test_a_weight_of_1_changes_nothing_and_one_of_0_pulls_nothing():
    """For every mantissa: factors of weight 1 are the mantissa, exactly, and fit the format."""
    one, g = np.array([IMPORTANCE.one]), np.arange(RESIDUAL.minimum, RESIDUAL.maximum, 65521)
    for mantissa in range(RATE_MANTISSA.maximum + 1):
        settings = random_job(WorkerConfig.tiny(), 1, seed=0).settings
        settings = dataclasses.replace(settings, rate_mantissa=mantissa)
        assert factor(one, settings).tolist() == [mantissa * FACTOR.one]
        assert not FACTOR.overflows(factor(one, settings))
        assert delta(g, settings, one).tolist() == delta(g, settings).tolist()
        assert not delta(g, settings, 0 * one).any()


@pytest.mark.parametrize(("precision", "signed"), [(1, True), (1, False), (4, True), (8, False)])
def test_noise_of_rounding_units(precision, signed):
    """The error of an activation in steps of 2^-16, as sim/README.md says: the sum of U independent roundings.

    Each has one of 2^s equally likely errors, from −1/2 (excluded) to 1/2 (included).
    """
    settings = random_job(WorkerConfig.tiny(), 1, seed=0, precision=precision, signed=signed).settings
    shift = settings.features.forward_shift
    rng = np.random.default_rng(0)
    for units in (10, 4096):
        exact = rng.integers(-(1 << 44), 1 << 44, (2000, units))
        off = activation(exact, settings) - exact.sum(axis=1) / 2.0**shift
        mean, deviation = units / 2 ** (shift + 1), (units / 12 * (1 - 4.0**-shift)) ** 0.5
        print(f"{units} units: {off.mean():.2f} ± {off.std():.2f} steps, expected {mean:.2f} ± {deviation:.2f}")
        assert off.std() == pytest.approx(deviation, rel=0.1)
        assert off.mean() == pytest.approx(mean, abs=5 * deviation / 2000**0.5)
