"""Runs of a simulated cluster: joins of any job, faults where they are said to be, memory errors, and traces."""

import itertools
import random

import pytest
from support.jobs import SMALL, configure, random_job, run_on

from p4sgd.host.devices.device import client_of
from p4sgd.host.devices.rtl import RtlDevice
from p4sgd.host.errors import P4sgdError
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.registers import ModelSource
from p4sgd.hw.spec.run import STAGES
from p4sgd.sim.cluster.protocol import MEMORY_BITS

pytestmark = pytest.mark.rtl

TINY = WorkerConfig.tiny()


def check_weights(device, job, runs=1, **options):
    """Run a job to the golden model's weights; returns STATUS and counters."""
    weights, status, counters = run_on(device, job, runs=runs, **options)
    assert [got.tolist() for got in weights] == [wanted.tolist() for wanted in job.golden(runs).weights]
    return status, counters


# -- joins -----------------------------------------------------------------------------------------------------------


def test_any_number_round_and_address_one_after_the_other(rtl, seed):
    pick = random.Random(seed)
    device = rtl(TINY, 2, seed=seed, memory_stall=0.1, link_stall=0.1, link_loss=0.02)
    for number in range(4):
        # Both sides go from round 65535 to 0 in the first job: it is 8 rounds of all slots long, or longer.
        first_round = pick.randrange(1 << 16) if number else 65530
        job = random_job(TINY, 2, seed=seed + number)
        runs = -(-8 * TINY.slots // (job.settings.micro_batches * job.settings.mini_batches))
        who = {"number": pick.randrange(256), "first_round": first_round, "aggregator_mac": pick.getrandbits(40)}
        print(f"{who}, {runs} runs: {job.settings}")
        check_weights(device, job, runs, **who)


def test_a_join_in_a_run_is_ignored(rtl, seed):
    device = rtl(TINY, 2, seed=seed)
    write = device.cluster_write

    def write_and_join(worker, offset, word):
        write(worker, offset, word)
        if offset == registers.CTRL.offset and word:
            write(worker, registers.JOIN.offset, registers.JOIN.encode(round=999))

    device.cluster_write = write_and_join
    check_weights(device, random_job(TINY, 2, seed=seed, mini_batches=8), 2)


def test_a_worker_that_nobody_hears(rtl, seed):
    device = rtl(TINY, 2, seed=seed)
    run_on(device, random_job(TINY, 2, seed=seed))
    clients = [client_of(worker) for worker in device.workers]
    clients[1].write_pair(registers.PEER_MAC, 0xBAD)
    for client in clients:
        client.write(registers.CTRL, start=1)
    says = r"after 200,000 cycles; .* taken [1-9][0-9,]* packets and dropped [1-9][0-9,]* addressed to"
    with pytest.raises(P4sgdError, match=says):
        device.wait(0.0001)


# -- faults ----------------------------------------------------------------------------------------------------------


def counted(worker, name):
    """A counter of a run in progress."""
    client = client_of(worker)
    client.write(registers.SNAPSHOT, take=1)
    return client.read_pair(registers.COUNTERS[name].registers)


@pytest.mark.parametrize(
    ("direction", "fault"),
    [
        ("up", {"loss": 0.99999}),
        pytest.param("down", {"burst_begin": 0.99999, "burst_loss": 0.99999}, marks=pytest.mark.slow),
    ],
)
def test_a_direction_that_loses_all(rtl, direction, fault):
    device = rtl(TINY, 2, seed=1, **{f"{direction}_{name}": chance for name, chance in fault.items()})
    wait = device.wait
    device.wait = lambda _: wait(1e-9)  # the least that there is
    with pytest.raises(P4sgdError, match="still running"):
        run_on(device, random_job(TINY, 2, seed=1))
    assert min(counted(worker, "PACKETS_RESENT") for worker in device.workers) > 3
    assert bool(device.aggregator.counters()["JOB0_ACCEPTED"]) == (direction == "down")
    assert not any(counted(worker, "PACKETS_RECEIVED") for worker in device.workers)


@pytest.mark.slow
def test_faults_change_while_a_device_is_open(rtl):
    job = random_job(TINY, 2, seed=1, mini_batches=4, micro_batches=4)
    device = rtl(TINY, 2, seed=1)
    cycles, resent = [], []
    for number, chances in enumerate(({}, {"worker_pause": 1 / 1000}, {"link_loss": 0.2}, {})):
        device.inject_faults(**chances)
        _, counters = check_weights(device, job, number=number, resend_cycles=1000)
        cycles.append(counters[0]["CYCLES"])
        resent.append(counters[0]["PACKETS_RESENT"])
    assert cycles[1] > 2 * cycles[0]
    assert resent[2] > 0
    assert resent[0] == resent[3] == 0


LINES = [registers.lines_address(engine, port) for engine in range(SMALL.engines) for port in range(SMALL.ports)]


@pytest.mark.slow
def test_every_memory_error_voids_the_run_of_its_worker(rtl, seed):
    """Whatever is read or written beyond the memory: the run ends there, its worker alone says so."""
    job = random_job(SMALL, 2, seed=seed, mini_batches=16)
    size = job.settings
    lines = size.mini_batches * size.micro_batches * size.chunks * size.features.precision
    device = rtl(SMALL, 2, seed=seed, memory_stall=0.1)
    cases = [(address, ModelSource.KEEP, False) for address in (*LINES, registers.LABELS_ADDRESS)]
    for engine in range(SMALL.engines):
        address = registers.model_address(engine)
        cases += [(address, ModelSource.MEMORY, False), (address, ModelSource.ZERO, True)]
    run_on(device, job)  # the weights on chip are those of this run
    for number, (address, source, at_the_end) in enumerate(cases, 1):
        clients, worker = configure(device.workers, job, number=number, resend_cycles=400, resends=5), number % 2
        clients[worker].write_pair(address, 1 << MEMORY_BITS + number - 1)  # any bit beyond the memory
        for client in clients:
            client.write(registers.RUN, model_source=source.value, model_store=int(at_the_end))
        for client in clients:
            client.write(registers.CTRL, start=1)
        device.wait(0.004)
        assert all(client.read(registers.CTRL)["done"] for client in clients)
        status = [client.read(registers.STATUS) for client in clients]
        read = clients[worker].read_counters(registers.counters(SMALL))["ENGINE0_LINES"]
        assert [each["memory_error"] for each in status] == [1 - worker, worker], address[0].name
        assert (read == lines) == at_the_end, address[0].name
        assert status[1 - worker]["network_error"] != at_the_end, address[0].name
        for flag in ("not_joined", "refused"):  # it has left the job; and it refuses an address in a page
            for client in clients:
                client.write(registers.CTRL, start=1)
            device.wait(0.004)
            assert clients[worker].read(registers.STATUS)[flag] == 1, address[0].name
            clients[worker].write_pair(address, 1 << random.Random(seed + number).randrange(12))
    status, _ = check_weights(device, job, number=len(cases) + 1)
    assert not any(each["memory_error"] for each in status)


# -- traces ----------------------------------------------------------------------------------------------------------

DISTURBED = {"memory_stall": 0.2, "link_stall": 0.2, "link_loss": 0.05, "link_reordering": 0.1}


def traced(job, *, runs=1, **options):
    """The stages of each worker, in order, and the counters of the last run."""
    traces = []
    device = RtlDevice(TINY, job.settings.workers, on_trace=traces.append, **options)
    try:
        counters = run_on(device, job, runs=runs)[2]
    finally:
        device.close()
    (trace,) = traces
    assert trace.whole
    for stages in trace.workers:
        check_order(stages, job.settings, runs)
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


@pytest.mark.slow
@pytest.mark.parametrize("faults", [{}, DISTURBED], ids=["calm", "disturbed"])
def test_traces_go_with_counters(seed, faults):
    for case in range(3):
        job, runs = random_job(TINY, 2, seed=seed + case), 1 + case % 2
        print(f"{faults}, case {case}: {job.settings}")
        workers, counters = traced(job, runs=runs, seed=seed, **faults)
        last = slice(-job.settings.mini_batches * job.settings.micro_batches, None)  # those of the last run
        for stages, known in zip(workers, counters, strict=True):
            forward, update = stages["forward"][last], stages["update"][last]
            waited = sum(i.cycles for i in forward) - known["CYCLES_BUSY"]
            assert 0 <= waited <= known["CYCLES_MEMORY"] + known["CYCLES_CHAINING"]
            assert update[-1].end - forward[0].begin <= known["CYCLES"] - known["CYCLES_MODEL"]
            if not faults:
                assert known["PACKETS_SENT"] == 2 * len(forward), "a PARTIAL and an ACK for each"


@pytest.mark.slow
def test_stages_overlap():
    """While a micro-batch is on its way, the next ones of its mini-batch begin; one line is one cycle."""
    jobs = (random_job(TINY, 2, seed=seed, precision=1, max_chunks=1) for seed in itertools.count())
    workers, counters = traced(next(job for job in jobs if job.settings.micro_batches == 4))
    for stages, known in zip(workers, counters, strict=True):
        for forward, backward in zip(stages["forward"][1:], stages["backward"], strict=False):
            if forward.mini_batch == backward.mini_batch:
                assert forward.begin < backward.end
        for stage in ("forward", "backward"):
            assert sum(i.cycles for i in stages[stage]) == known["CYCLES_BUSY"]
