"""The weights do not depend on who computes them: not on the workers, engines and lanes, nor on who has which units."""

import dataclasses

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.jobs import deal, random_job, run_on

from p4sgd.host.losses import LOSSES
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.run import UNITS
from p4sgd.sim.emulator import EmulatedDevice


@settings(max_examples=100)
@given(
    seed=st.integers(0, 1 << 30),
    loss=st.sampled_from(sorted(LOSSES)),
    unit=st.sampled_from(UNITS),
    units=st.integers(1, 12),
    workers=st.integers(1, 8),
    engines=st.sampled_from([1, 2, 4]),
    lanes=st.sampled_from([8, 16, 64]),
    stale=st.booleans(),
)
def test_any_deal_trains_to_the_same_weights(seed, loss, unit, units, workers, engines, lanes, stale):
    rng = np.random.default_rng(seed)
    one = random_job(WorkerConfig.tiny(), 1, seed=seed, loss=loss, stale=stale)
    features = units * unit - int(rng.integers(unit))
    columns = rng.integers(0, one.stored[0].shape[1], features)
    one = dataclasses.replace(
        one,
        settings=dataclasses.replace(one.settings, unit=unit),
        stored=[one.stored[0][:, columns]],
        weights=[one.weights[0][columns]],
        exempt=(0, int(rng.integers(features))) if rng.integers(4) else None,
    )
    expected = one.golden()

    config = WorkerConfig(engines=engines, lanes=lanes, chunks=256, table_segments=one.config.table_segments)
    many, shards = deal(one, config, rng.integers(0, workers, units))
    # A job that diverges is clamped, and the limit depends on the number of workers.
    assume(not any(flags.partial_clamped for flags in (*expected.flags, *many.golden().flags)))
    weights, status, _ = run_on(EmulatedDevice(config, len(shards)), many)
    assert not any(flags["partial_clamped"] for flags in status)
    for shard, got in zip(shards, weights, strict=True):
        assert got.tolist() == expected.weights[0][shard.columns].tolist()
