"""LossUnit against golden.residual and golden.delta, most often where numbers are rounded and saturated."""

import dataclasses
import random

import cocotb
import numpy as np
import pytest
from cocotb.triggers import ClockCycles
from support.bench import parameters, run_bench, start
from support.differences import assert_same
from support.jobs import random_table
from support.signals import Cycles, drive, pulse
from support.streams import StreamSink, StreamSource, pack, unpack

from p4sgd.hw.datapath.loss import LossUnit
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.fixed import ACTIVATION, DELTA, FACTOR, IMPORTANCE, LABEL, MARGIN, RESIDUAL, SLOPE
from p4sgd.hw.spec.run import MAX_SHIFT, VALUE_FRACTION, FeatureFormat, LabelMode, LossTable, RunSettings
from p4sgd.sim import golden

SMOOTH, AT_LIMITS, WILD = range(3)
"""Kinds of loss tables: values within ±1, around the limits of residuals, and any."""


def table_of(rng, segments, kind):
    if kind != AT_LIMITS:
        return random_table(rng, segments, wild=kind == WILD)
    slope = rng.integers(-1 << 10, 1 << 10, segments) >> rng.integers(0, 10, segments)
    limits = [RESIDUAL.minimum, RESIDUAL.maximum, int(rng.integers(RESIDUAL.minimum, RESIDUAL.maximum))]
    intercept = rng.choice(limits, segments) + rng.integers(-2, 3)
    # The first and last line are steep, so that a step of the margin is seen, and meet these values at its limits.
    slope[[0, -1]] = rng.choice([-1, 1], 2) * rng.integers(1 << SLOPE.fraction, 1 << SLOPE.fraction + 3, 2)
    intercept[[0, -1]] -= slope[[0, -1]] * [MARGIN.minimum, MARGIN.maximum] >> SLOPE.fraction
    return LossTable(int(rng.integers(0, MAX_SHIFT + 1)), slope, intercept)


def near_tie(rng, values, dropped):
    """Index of one of the values that is halfway between two rounded ones, or one beside; any if there is none."""
    beyond = (values + (1 << dropped - 1)) % (1 << dropped)
    found = np.flatnonzero(np.isin(beyond, rng.choice([0, 0, 1, -1]) % (1 << dropped)))
    return int(rng.choice(found) if found.size else rng.integers(values.size))


def random_sample(rng, table, mode, kind):
    """Sum and label: with a value near a tie, a margin near its limits, a constant that leads to those of residuals."""
    any_sum, y = (int(value) for value in rng.integers(-1 << 31, 1 << 31, 2) >> rng.integers(0, 32, 2))
    if rng.random() < (0.3 if kind == WILD else 0.1):
        return any_sum, y
    if mode.offset:
        y >>= 4  # so that sums can lead to most margins
    if rng.random() < 0.2:
        x = int(rng.choice([MARGIN.minimum, MARGIN.maximum]) + rng.integers(-2, 3))
    else:
        near = (int(rng.integers(MARGIN.minimum, MARGIN.maximum)) >> rng.integers(MARGIN.width)) + np.arange(1 << 11)
        x = int(near[near_tie(rng, table(near), VALUE_FRACTION - RESIDUAL.fraction)])
    if mode.constant and not mode.offset:
        value = int(table(MARGIN.saturate(np.array([x])))[0]) >> VALUE_FRACTION - LABEL.fraction
        wanted = rng.choice([RESIDUAL.minimum, RESIDUAL.maximum, any_sum >> 8]) + rng.integers(-2, 3)
        y = int(LABEL.saturate(value - wanted))
    sign = -1 if mode.sign and y < 0 else 1
    return int(ACTIVATION.saturate(sign * (x + (y if mode.offset else 0)))), y


def random_samples(rng, table, mode, kind):
    """Sums and labels of a micro-batch; in half of them few samples are saturated, or none."""
    chosen = []
    tries = 1 if rng.random() < 0.5 else 8
    for _ in range(8):
        for _ in range(tries):
            z, y = random_sample(rng, table, mode, kind)
            if not saturations(np.array([z]), np.array([y]), table, mode):
                break
        chosen.append((z, y))
    return np.array(chosen).T


def random_importance(rng, g, settings):
    """Weight of a sample with residual g: 0, the least, 1, or one for which the factor or the delta is near a tie."""
    some = rng.integers(0, IMPORTANCE.one + 1, 1 << 9)
    if rng.random() < 0.2:
        return int(rng.choice([0, 1, IMPORTANCE.one]))
    if rng.random() < 0.5:
        return int(some[near_tie(rng, some * settings.rate_mantissa, IMPORTANCE.fraction - FACTOR.fraction)])
    dropped = RESIDUAL.fraction + FACTOR.fraction - DELTA.fraction
    return int(some[near_tie(rng, g * golden.factor(some, settings), dropped)])


def saturations(z, y, table, mode):
    """Cycles after a micro-batch was taken in which the flag is raised: 1 for its margins, 5 for its residuals."""
    sign = np.where((y < 0) & mode.sign, -1, 1)
    margin = sign * z - y * mode.offset
    flags = golden.Flags()
    golden.residual(sign * MARGIN.saturate(margin), y, table, dataclasses.replace(mode, offset=False), flags)
    return [1] * MARGIN.overflows(margin) + [5] * flags.residual_saturated


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.4])
async def exact_deltas(dut, stall):
    segments = parameters()["segments"]
    rng = np.random.default_rng(random.getrandbits(32))
    sums, labels = StreamSource(dut, "sums", stall), StreamSource(dut, "labels", stall)
    deltas = StreamSink(dut, "deltas", flow=True)
    drive(dut, table_index_strobe=0, table_intercept_strobe=0)
    await start(dut)
    taken, saturated = Cycles(dut, "sums__valid", "sums__ready"), Cycles(dut, "status_residual_saturated")
    answered = Cycles(dut, "deltas__valid")
    expected: list[int] = []
    raised: list[list[int]] = []
    for setting in range(12):
        kind, weighted = setting % 3, setting % 4 == 1
        table = table_of(rng, segments, kind)
        mode = LabelMode(*(bool(random.getrandbits(1)) for _ in range(3)))
        settings = RunSettings(FeatureFormat(8, 8, False), 1, 1, 1, mode, random.randint(0, 255), 10)
        drive(dut, **{f"label_mode_{name}": on for name, on in vars(mode).items()}, label_mode_weighted=weighted)
        first = random.randrange(segments)  # the segment after the last is the first
        drive(dut, rate_mantissa=settings.rate_mantissa, table_shift=table.shift, table_index=first)
        await pulse(dut, "table_index_strobe")
        for index in range(first, first + segments):
            drive(dut, table_slope=table.slope[index % segments], table_intercept=table.intercept[index % segments])
            await pulse(dut, "table_intercept_strobe")
            await ClockCycles(dut.clk, random.randint(0, 2))
        for item in range(16):
            z, y = random_samples(rng, table, mode, kind)
            if item < 2:
                z[:], y[:] = (-(1 << 31), (1 << 31) - 1)[item], [-(1 << 31), (1 << 31) - 1] * 4
            g = golden.residual(z, y, table, mode, golden.Flags())
            importances = np.array([random_importance(rng, each, settings) for each in g]) if weighted else None
            expected += golden.delta(g, settings, importances).tolist()
            raised.append(saturations(z, y, table, mode))
            sums.send([pack(z.tolist(), 32)])
            labels.send(pack(each.tolist(), 32) for each in (y, importances) if each is not None)
        items = await deltas.receive(len(expected) // 8)
        await ClockCycles(dut.clk, 3)
        if not stall:
            assert taken[-1] - taken[-15] == (2 + weighted) * 14, "a micro-batch every two cycles, or three"
    assert_same("delta", [value for item in items for value in unpack(item, 32, 8)], expected, "sample")
    assert_same("cycle of deltas", answered, np.array(taken) + LossUnit.LATENCY, "micro-batch")
    flagged = {cycle + later for cycle, flags in zip(taken, raised, strict=True) for later in flags}
    assert_same("cycle with the flag of saturation", saturated, sorted(flagged), "pulse")
    assert 0.2 < sum(map(bool, raised)) / len(raised) < 0.8, "one kind of micro-batch is rare"


@pytest.mark.rtl
@pytest.mark.parametrize("segments", [16, pytest.param(64, marks=pytest.mark.slow)])
def test_loss_unit(segments):
    config = WorkerConfig(engines=1, lanes=8, chunks=8, line_fifo_depth=128, slots=4, table_segments=segments)
    run_bench(LossUnit(config), __file__, segments=segments)
