"""What a simulated cluster tells of its micro-batches, whatever memory and network do, goes with its counters."""

import itertools

import pytest
from support.jobs import random_job, run_on

from p4sgd.host.devices.rtl import RtlDevice
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.run import STAGES

TINY = WorkerConfig.tiny()
FAULTS = ({}, {"memory_stall": 0.2, "link_stall": 0.2, "link_loss": 0.05, "link_reordering": 0.1})


def traced(job, *, runs=1, **options):
    """The trace of a job, and the counters of its last run."""
    traces = []
    device = RtlDevice(TINY, job.settings.workers, on_trace=traces.append, **options)
    try:
        counters = run_on(device, job, runs=runs)[2]
    finally:
        device.close()
    (trace,) = traces
    assert trace.whole
    return trace.workers, counters


def check_order(stages, settings, runs):
    """Every micro-batch goes through all stages, one after the other, and none overtakes another."""
    of_mini_batch = settings.micro_batches
    count = runs * settings.mini_batches * of_mini_batch
    assert set(stages) == set(STAGES)
    for intervals in stages.values():
        assert [(i.micro_batch, i.mini_batch) for i in intervals] == [(n, n // of_mini_batch) for n in range(count)]
        for earlier, later in itertools.pairwise(intervals):
            assert earlier.begin < later.begin
            assert earlier.end < later.end
    for stage in ("forward", "backward", "update"):
        assert all(earlier.end <= later.begin for earlier, later in itertools.pairwise(stages[stage])), stage
    for forward, network, loss, backward, update in zip(*stages.values(), strict=True):
        assert forward.end <= network.begin < network.end
        assert loss.begin == network.end - 1, "the loss unit takes the sums that come"
        assert loss.end < backward.begin < update.begin <= update.end
        assert backward.end < update.end


@pytest.mark.rtl
@pytest.mark.slow
@pytest.mark.parametrize("faults", FAULTS, ids=["calm", "disturbed"])
def test_random_jobs(seed, faults):
    for case in range(3):
        job = random_job(TINY, 2, seed=seed + case)
        print(f"P4SGD_SEED={seed}, {faults}, case {case}: {job.settings}")
        settings, runs = job.settings, 1 + case % 2
        workers, counters = traced(job, runs=runs, seed=seed, **faults)
        for stages, counted in zip(workers, counters, strict=True):
            check_order(stages, settings, runs)
            last = slice(-settings.mini_batches * settings.micro_batches, None)  # those of the last run
            forward, update = stages["forward"][last], stages["update"][last]
            waited = sum(i.cycles for i in forward) - counted["CYCLES_BUSY"]
            assert 0 <= waited <= counted["CYCLES_MEMORY"] + counted["CYCLES_CHAINING"]
            trained = counted["CYCLES"] - counted["CYCLES_MODEL"]
            assert update[-1].end - forward[0].begin <= trained
            if not faults:
                assert counted["PACKETS_SENT"] == 2 * len(forward), "a PARTIAL and an ACK for each"


@pytest.mark.rtl
@pytest.mark.slow
def test_stages_overlap():
    """While a micro-batch is on its way, the next ones of its mini-batch begin; one line is one cycle."""
    jobs = (random_job(TINY, 2, seed=seed, precision=1, max_chunks=1) for seed in itertools.count())
    job = next(job for job in jobs if job.settings.micro_batches == 4)
    workers, counters = traced(job)
    for stages, counted in zip(workers, counters, strict=True):
        check_order(stages, job.settings, 1)
        for forward, backward in zip(stages["forward"][1:], stages["backward"], strict=False):
            if forward.mini_batch == backward.mini_batch:
                assert forward.begin < backward.end
        for stage in ("forward", "backward"):
            assert sum(i.cycles for i in stages[stage]) == counted["CYCLES_BUSY"]
