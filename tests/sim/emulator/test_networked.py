"""Emulated workers across a network of packets: the golden model's bits, and the registers of a board."""

import contextlib
import dataclasses
import random
import time
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.bench import default_seed
from support.jobs import KEY, collect, configure, random_job, run_on, start
from support.lines import Faults
from support.packet_cluster import PacketCluster, Readless

from p4sgd.host.devices.device import NetworkSettings, client_of
from p4sgd.host.devices.stand_in import StandInWorker
from p4sgd.host.doctor import Result, examine
from p4sgd.host.losses import LOSSES
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import CLOCK_NS, WorkerConfig
from p4sgd.hw.spec.image import pack_labels
from p4sgd.hw.spec.packet import EchoValue, Packet, PacketType
from p4sgd.sim.emulator import EmulatorError

TINY = WorkerConfig.tiny()
SPARSE = WorkerConfig(engines=3, lanes=8, chunks=16, slots=4, sparse=True)
MAC = 0x0250_3453_47FF

faulty = st.builds(
    Faults,
    loss=st.sampled_from([0.0, 0.2]),
    duplication=st.sampled_from([0.0, 0.2]),
    delay=st.sampled_from([(10, 10), (1, 300)]),
)


@settings(max_examples=40)
@given(
    config=st.sampled_from([TINY, SPARSE]),
    workers=st.integers(1, 4),
    sparse=st.frozensets(st.integers(0, 3)),
    seed=st.integers(0, 1 << 30),
    up=faulty,
    down=faulty,
    loss=st.sampled_from([None, *sorted(LOSSES)]),
    zeros=st.sampled_from([0.0, 0.8, 1.0]),
    stale=st.booleans(),
    runs=st.integers(1, 2),
    merge=st.sampled_from([0, 1, 2, 3, 46]),
)
def test_bit_identical_to_golden(config, workers, sparse, seed, up, down, loss, zeros, stale, runs, merge):
    """Dense, sparse, and sparse workers among dense ones."""
    job = random_job(config, workers, seed=seed, loss=loss, stale=stale)
    if config is TINY:
        job = dataclasses.replace(job, sparse=frozenset(each % workers for each in sparse))
    rng = np.random.default_rng(seed)
    for stored in job.stored:
        stored[rng.random(stored.shape) < zeros] = 0
    cluster = PacketCluster(job.configs, seed=seed, up=up, down=down)
    weights, status, counters = run_on(cluster, job, runs=runs, aggregator_mac=MAC, merge=merge)
    expected = job.golden(runs)
    assert [got.tolist() for got in weights] == [wanted.tolist() for wanted in expected.weights]
    for got, wanted in zip(status, expected.flags, strict=True):
        assert {name: bool(got[name]) for name in vars(wanted)} == vars(wanted)
    operations = -(-job.settings.micro_batches // max(1, merge)) * job.settings.mini_batches
    for worker in counters:
        assert worker["PACKETS_SENT"] - worker["PACKETS_RESENT"] == 2 * operations, "a PARTIAL and an ACK each"
        assert worker["PACKETS_RECEIVED"] - worker["PACKETS_DROPPED"] == 2 * operations, "a FULL and a CLEAR each"
        assert worker["CYCLES"] == worker["CYCLES_NETWORK"] > 0, "no time passes while it computes"


@pytest.mark.parametrize("config", [TINY, SPARSE], ids=["dense", "sparse"])
def test_a_worker_is_no_faster_than_its_speed(config, monkeypatch):
    """Each of two passes takes four cycles for a value, or if it is sparse for a nonzero."""
    job = random_job(config, 1, seed=5, precision=8, stored=8, signed=False)
    (stored,) = job.stored
    stored[:, :-1][np.random.default_rng(5).random((stored.shape[0], stored.shape[1] - 1)) < 0.5] = 0
    stored[:, -1] = 1
    cluster = PacketCluster([config], speed=1e9 / CLOCK_NS / 4)

    def sleep(seconds):
        cluster.now += round(seconds * 1e9 / CLOCK_NS)

    monkeypatch.setattr(time, "sleep", sleep)
    weights, _, (counters,) = run_on(cluster, job, aggregator_mac=MAC)
    assert weights[0].tolist() == job.golden().weights[0].tolist()
    assert counters["CYCLES_BUSY"] == 2 * 4 * (np.count_nonzero(stored) if config.sparse else stored.size)


@pytest.mark.parametrize("stand_ins", [False, True])
def test_others_go_on_while_a_worker_pauses_and_it_catches_up(stand_ins):
    """By as many operations as there are slots; it then needs no forward pass for them."""
    job = random_job(TINY, 3, seed=3, micro_batches=2, mini_batches=4 * TINY.slots)
    cluster = PacketCluster([TINY] * 3, stand_ins=stand_ins)
    options = {"aggregator_mac": MAC, "merge": 2, "resend_cycles": 500, "stand_ins": stand_ins}
    clients = configure(cluster.workers, job, **options)
    others = [client_of(StandInWorker(worker)) for worker in cluster.workers] if stand_ins else []
    start([*others, *clients], job)
    cluster.run(400)
    late = cluster.workers[1].inner
    before = cluster.switch.counts["FULLS_TO_ALL"]
    cluster.pause_worker(1, 100_000)
    cluster.run(50_000)
    ahead = cluster.switch.counts["FULLS_TO_ALL"] - before
    assert ahead >= TINY.slots - 1 if stand_ins else ahead <= 1
    forward, passes = late._progress.run.model.forward, []
    late._progress.run.model.forward = lambda samples: passes.append(samples) or forward(samples)
    cluster.wait()
    check_weights(cluster, clients, job)
    assert len(passes) <= job.settings.mini_batches - ahead


def test_a_stand_in_hands_over_the_other_update_before_its_own():
    """So that both are done at the same time, on two threads."""
    job = random_job(TINY, 2, seed=4, micro_batches=2, mini_batches=5)
    cluster = PacketCluster([TINY] * 2, stand_ins=True)
    clients = configure(cluster.workers, job, aggregator_mac=MAC, stand_ins=True)
    start([*[client_of(StandInWorker(worker)) for worker in cluster.workers], *clients], job)
    worker, order = cluster.workers[0].inner, []
    for name, each in (("own", worker._progress), ("other", worker._stand_in)):
        backward = each.run.model.backward
        each.run.model.backward = lambda *args, name=name, backward=backward: order.append(name) or backward(*args)
    cluster.wait()
    check_weights(cluster, clients, job)
    assert order == ["other", "own"] * job.settings.mini_batches


def check_weights(cluster, clients, job, runs=1):
    """Returns flags and counters."""
    weights, status, counters = collect(cluster.workers, clients, job)
    assert [got.tolist() for got in weights] == [wanted.tolist() for wanted in job.golden(runs).weights]
    return status, counters


def test_a_mini_batch_is_cut_into_packets_of_which_as_many_are_in_flight_as_there_are_slots():
    """Of 7 micro-batches 3, 3 and 1: every worker's n-th packet has as many as the others'."""
    job = random_job(TINY, 2, seed=0, micro_batches=3 * TINY.slots, mini_batches=1)
    cluster = PacketCluster([TINY] * 2)
    start(configure(cluster.workers, job, aggregator_mac=MAC, resend_cycles=1 << 20), job)
    cluster.silent = True
    cluster.run(100)
    assert cluster.counts["packets"] == 2 * TINY.slots
    job = random_job(TINY, 2, seed=0, micro_batches=7, mini_batches=1)
    cluster = PacketCluster([TINY] * 2)
    sent = []
    receive = cluster.switch.receive_frame
    cluster.switch.receive_frame = lambda frame, port: sent.append(len(frame)) or receive(frame, port)
    weights, _, _ = run_on(cluster, job, aggregator_mac=MAC, merge=3)
    assert [got.tolist() for got in weights] == [wanted.tolist() for wanted in job.golden().weights]
    assert sorted(size for size in sent if size > 64) == sorted([40 + 96, 40 + 96, 40 + 32] * 2)


def test_a_run_that_cannot_be_is_refused_and_not_begun():
    for merge, chunks, message in ((47, 1, "MERGE is 47, more than 46"), (0, TINY.chunks + 1, "chunks an engine")):
        (client,) = configure(PacketCluster([TINY]).workers, random_job(TINY, 1, seed=0), merge=merge)
        client.write(registers.CHUNKS, value=chunks)
        with pytest.raises(EmulatorError, match=message):
            client.write(registers.CTRL, start=1)
        assert client.read(registers.CTRL)["idle"]


def test_forged_sums_are_counted_and_nothing_else():
    """All is right but the key: what a stranger on the network could send who has seen no packet of the job."""
    job = random_job(TINY, 2, seed=2, micro_batches=4)
    cluster = PacketCluster([TINY] * 2)
    clients = configure(cluster.workers, job, aggregator_mac=MAC, merge=2)
    start(clients, job)
    for key in (0, KEY ^ 1):
        full = Packet(
            PacketType.FULL, 0, 0, 1, 0, 2, 3, (99,) * 16, clients[0].read_pair(registers.LOCAL_MAC), MAC, 2, key
        )
        cluster.workers[0].inner.receive(full.to_bytes())
    cluster.wait()
    _, counters = check_weights(cluster, clients, job)
    assert clients[0].read_pair(registers.KEYED_COUNTERS["DROPPED_KEY"].registers) == 2
    assert counters[0]["PACKETS_DROPPED"] == 2


def began(cluster, workers=2, **options):
    """A long run under way."""
    job = random_job(TINY, workers, seed=1, mini_batches=200)
    clients = configure(cluster.workers, job, aggregator_mac=MAC, **options)
    start(clients, job)
    cluster.run(200)
    return clients


def test_workers_that_nobody_answers_give_up():
    cluster = PacketCluster([TINY] * 3)
    clients = began(cluster, 3, resend_cycles=100, resends=5)
    cluster.cut = {2}
    begun = cluster.now
    cluster.wait()
    assert cluster.now - begun <= 1000 + 100 * (1 + 2 + 4 + 4 + 4 + 4), "the sum of its waits"
    for client in clients:
        assert client.read(registers.STATUS)["network_error"]
        assert client.read(registers.CTRL)["done"]
        given_up = client.read(registers.GIVEN_UP)
        assert given_up["given_up"]
        assert given_up["slot"] < TINY.slots
    clients[0].write(registers.JOIN, round=1)
    assert not clients[0].read(registers.GIVEN_UP)["given_up"]


def test_an_abort_ends_a_run_at_once_and_none_begins_outside_of_a_job():
    """Neither before the first join nor after an abort; the run is over at once, and nothing is sent."""
    cluster = PacketCluster([TINY] * 2)
    clients = began(cluster)
    clients[0].write(registers.ABORT, abort=1)
    assert clients[0].read(registers.CTRL) == {"start": 0, "done": 1, "idle": 1, "ready": 1}
    assert clients[0].read(registers.STATUS)["aborted"]
    assert not clients[1].read(registers.CTRL)["idle"], "the other was not asked"
    clients[1].write(registers.ABORT, abort=1)
    for client in clients:
        client.write(registers.STATUS, **{field.name: 1 for field in registers.STATUS.fields})
        client.write(registers.CTRL, start=1)
        assert client.read(registers.CTRL)["idle"]
        assert [name for name, value in client.read(registers.STATUS).items() if value] == ["not_joined"]
        assert client.read_counters(registers.COUNTERS)["PACKETS_SENT"] == 0
    job = random_job(TINY, 2, seed=2)
    clients = configure(cluster.workers, job, number=1, aggregator_mac=MAC)
    start(clients, job)
    cluster.wait()
    status, _ = check_weights(cluster, clients, job)
    assert not any(flags["aborted"] for flags in status)


@pytest.mark.parametrize("sparse", [(), (0,)], ids=["dense", "sparse"])
def test_whatever_a_host_writes_and_a_network_brings_the_worker_serves_on(sparse):
    """Also a host that starts a run when packets of an aborted one are under way, and frames of every kind."""
    seed = default_seed()
    pick = random.Random(seed)
    job = dataclasses.replace(random_job(TINY, 2, seed=seed, micro_batches=3), sparse=frozenset(sparse))
    cluster = PacketCluster(job.configs, seed=seed)
    (worker, _), clients = cluster.workers, configure(cluster.workers, job, aggregator_mac=MAC, resend_cycles=100)
    # Without a wait between resends the model would do nothing else.
    offsets = [each.offset for each in registers.worker_map(worker.config) if each is not registers.RESEND_CYCLES]
    runs = 0
    for _ in range(300):
        choice = pick.random()
        if choice < 0.05:
            configure(cluster.workers, job, aggregator_mac=MAC, resend_cycles=100, number=pick.randrange(256))
        elif choice < 0.2:
            with contextlib.suppress(EmulatorError):
                runs += 1
                start(clients, job, first=pick.random() < 0.5)
        elif choice < 0.3:
            pick.choice(clients).write(registers.ABORT, abort=1)
        elif choice < 0.4:
            with contextlib.suppress(EmulatorError):
                worker.write_register(pick.choice(offsets), pick.choice([0, 1, 3, pick.getrandbits(32)]))
                bank, content = pick.randrange(worker.config.labels_memory), np.frombuffer(pick.randbytes(8), np.uint8)
                worker.write_memory(bank, 8 * pick.randrange(8), content)
        elif choice < 0.6:
            packet = Packet(
                pick.choice(list(PacketType)),
                clients[0].read(registers.JOB)["job"],
                pick.randrange(2 * TINY.slots),
                pick.randrange(4),
                0,
                2,
                3,
                tuple(pick.randrange(-(1 << 31), 1 << 31) for _ in range(8)),
                clients[0].read_pair(registers.LOCAL_MAC),
                MAC,
            )
            worker.inner.receive(pick.choice([packet.to_bytes(), pick.randbytes(64), pick.randbytes(20)]))
        else:
            cluster.run(pick.randrange(1, 300))
    assert runs > 10
    for client in clients:
        client.write(registers.ABORT, abort=1)
    cluster.run(1)
    weights, _, _ = run_on(cluster, job, aggregator_mac=MAC)
    assert [got.tolist() for got in weights] == [wanted.tolist() for wanted in job.golden().weights]


def test_what_is_asked_for_in_a_run_waits_for_its_end_or_does_nothing():
    """A run follows it, or is refused then; a join and what was counted before have no effect."""
    job = random_job(TINY, 2, seed=5, micro_batches=3)
    cluster = PacketCluster([TINY] * 2)
    clients = configure(cluster.workers, job, aggregator_mac=MAC)
    cluster.workers[0].inner.receive(b"short")
    start(clients, job, first=True, last=False)
    start(clients, job, first=False, last=True)
    clients[0].write(registers.JOIN, round=77)
    assert [client.read(registers.CTRL)["start"] for client in clients] == [1, 1]
    cluster.wait()
    status, counters = check_weights(cluster, clients, job, 2)
    assert counters[0]["DROPPED_RUNT"] == 0
    assert not any(flags["network_error"] for flags in status)
    assert [client.read(registers.CTRL)["start"] for client in clients] == [0, 0]
    start(clients, job)
    clients[0].write(registers.CTRL, start=1)
    clients[0].write(registers.CHUNKS, value=TINY.chunks + 1)
    cluster.wait()
    assert (clients[0].read(registers.STATUS)["refused"], clients[0].read(registers.CTRL)["done"]) == (1, 1)


def started(config, seed):
    """A random job that one worker has begun, its cluster, and the client."""
    job = random_job(config, 1, seed=seed)
    cluster = PacketCluster([config])
    clients = configure(cluster.workers, job, aggregator_mac=MAC)
    start(clients, job)
    return job, cluster, clients


@pytest.mark.parametrize("config", [TINY, SPARSE])
def test_features_are_kept_until_their_memory_changes(config):
    """For the next run; those that are overwritten in a run to its end."""
    job, cluster, clients = started(config, seed=7)
    kept = weakref.ref(cluster.workers[0].inner._features)
    for memory, part in enumerate(job.memories(0)):
        if part.size:
            cluster.workers[0].write_memory(memory, 0, np.zeros(part.nbytes, np.uint8))
    assert kept() is not None
    cluster.wait()
    assert kept() is None
    check_weights(cluster, clients, job)

    job, cluster, _ = started(config, seed=6)
    cluster.wait()
    worker = cluster.workers[0].inner
    kept = weakref.ref(worker._features)
    worker.write_memory(config.labels_memory, 0, pack_labels(job.labels, job.importances))
    worker.forget_memory(config.model_memory(0), job.model_address(0), 4)
    assert kept() is worker._features is not None
    sizes = [part.nbytes for part in job.memories(0)]
    last = max(memory for memory, size in enumerate(sizes) if size)
    worker.forget_memory(last, sizes[last], 1)
    assert kept() is not None, "the byte behind them"
    worker.forget_memory(last, sizes[last] - 1, 1)
    assert kept() is None


def test_a_probe_asks_and_its_answer_is_shown():
    cluster = PacketCluster([TINY] * 2)
    clients = configure(cluster.workers, random_job(TINY, 2, seed=0), aggregator_mac=MAC)
    clients[1].write(registers.PROBE, slot=TINY.slots, number=200, broadcast=1)
    assert not cluster.workers[1].inner.registers.get(registers.ECHO, "came"), "no time has passed"
    cluster.run(100)
    head = clients[1].read(registers.ECHO)
    assert (head["came"], head["number"], head["port"]) == (1, 200, 1)
    assert head["verdict"] == 1 << 3, "there is no such slot"
    assert clients[1].read(registers.ECHO_JOB)["workers"] == 2
    assert clients[1].read(registers.ECHO_SLOTS)["value"] == TINY.slots
    assert clients[1].read_pair(registers.ECHO_SOURCE) == MAC
    assert clients[1].read_pair(registers.ECHO_EXPECTED) == clients[1].read_pair(registers.LOCAL_MAC)
    assert (head["version"], clients[1].read(registers.ECHO_MOST)["value"]) == (2, 46)
    assert 20 <= clients[1].read(registers.ECHO_CYCLES)["value"] <= 60, "two ways of 10 cycles, in steps of the host"


def test_settings_written_after_joining_are_those_of_the_next_probe_and_run():
    job = random_job(TINY, 1, seed=0)
    cluster = PacketCluster([TINY])
    clients = configure(cluster.workers, job, aggregator_mac=MAC, resend_cycles=1 << 20)
    clients[0].write_pair(registers.PEER_MAC, MAC + 1)
    sent = []
    cluster._send = lambda index, frame: sent.append(Packet.from_bytes(frame))
    clients[0].write(registers.PROBE, slot=0, number=1, broadcast=0)
    assert [(packet.type, packet.destination) for packet in sent] == [(PacketType.PROBE, MAC + 1)]
    clients[0].write(registers.RESEND_CYCLES, value=50)
    start(clients, job)
    for _ in range(2):  # the first packets are sent in the first turn
        cluster.run(60)
    clients[0].write(registers.SNAPSHOT, take=1)
    assert clients[0].read_counters(registers.COUNTERS)["PACKETS_RESENT"] > 0


def test_an_answer_to_an_earlier_probe_is_none_to_the_last():
    cluster = PacketCluster([TINY] * 1)
    (client,) = configure(cluster.workers, random_job(TINY, 1, seed=0), aggregator_mac=MAC)
    local = client.read_pair(registers.LOCAL_MAC)

    def answer(number, slots):
        values = tuple({EchoValue.NUMBER: number, EchoValue.SLOTS: slots}.get(value, 0) for value in EchoValue)
        echo = Packet(PacketType.ECHO, 0, 0, 0, 0, 1, 0, values, destination=local, source=MAC)
        cluster.workers[0].inner.receive(echo.to_bytes())

    cluster.silent = True
    client.write(registers.PROBE, slot=0, number=1, broadcast=0)
    client.write(registers.PROBE, slot=0, number=2, broadcast=0)
    answer(1, 10)
    assert not client.read(registers.ECHO)["came"]
    answer(2, 20)
    answer(2, 30)
    assert client.read(registers.ECHO)["came"]
    assert client.read(registers.ECHO_SLOTS)["value"] == 20, "the first is kept, as in hardware"


def test_the_doctor_trains_with_the_longest_packets():
    """Here the network on the way carries only short frames: probes get through, and so do acknowledgements."""
    for longest, healthy in ((1512, True), (1511, False)):
        cluster = PacketCluster([TINY] * 2)
        send = cluster._send
        cluster._send = lambda index, frame, send=send, longest=longest: len(frame) <= longest and send(index, frame)
        device = Readless(cluster)
        device.aggregator = SimpleNamespace(most=46, served=dict, counters=dict)
        examination = examine(device, NetworkSettings(aggregator_mac=MAC))
        assert examination.healthy == healthy
        failed = [finding for finding in examination.findings if finding.result is Result.FAILED]
        assert [finding.check for finding in failed] == ([] if healthy else ["allreduce"])
        for finding in failed:
            assert finding.evidence == {"runs": 0, "frame_bytes": 1512}
            assert finding.remedy.endswith("does not carry frames of 1,512 bytes, train with --merge 1")
