"""A session on a device that records what is written to it."""

import contextlib
import dataclasses
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from support.bench import default_seed
from support.directory_cycles import listed_chunks
from support.recording_device import RecordingDevice

from p4sgd.host.aggregators.membership import NumberTakenError
from p4sgd.host.devices.device import NetworkSettings, WorkerName
from p4sgd.host.devices.session import Session
from p4sgd.host.devices.worker_image import WorkerImage
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.image import ImageLayout
from p4sgd.hw.spec.job import Job, Member
from p4sgd.hw.spec.registers import ModelSource
from p4sgd.hw.spec.run import FeatureFormat, LabelMode, RunSettings

CONFIG = WorkerConfig(engines=2, ports=2, lanes=8, chunks=4, line_fifo_depth=16, slots=4, table_segments=512)
CYCLES = registers.COUNTERS["CYCLES"].registers


def image(rng, features, samples=48, stored=3, config=CONFIG, *, directory=False, change=lambda q: None):
    """An image of random features, which ``change`` may change."""
    layout = ImageLayout(config, features, samples, stored, unit=8, directory=directory)
    q = rng.integers(0, 1 << stored, (samples, features))
    change(q)
    lines, starts = layout.pack_directories(q) if directory else (layout.memories(q), None)
    labels = rng.integers(-5, 5, layout.samples).astype(np.int32)
    return WorkerImage(layout=layout, labels=labels, port_lines=tuple(lines), starts=starts)


def sparse(rng, density):
    """Most features become 0."""
    return lambda q: np.multiply(q, rng.random(q.shape) < density, out=q)


SETTINGS = RunSettings(
    features=FeatureFormat(3, 2, False),
    chunks=2,
    micro_batches=2,
    mini_batches=3,
    label_mode=LabelMode(sign=True),
    rate_mantissa=200,
    rate_exponent=9,
    shrink=77,
    threshold=5,
    workers=2,
    unit=8,
)


@pytest.fixture
def device():
    return RecordingDevice(CONFIG, 2)


@pytest.fixture
def session(device):
    return loaded(device)


def loaded(device, **options):
    """A session with images of two workers."""
    rng = np.random.default_rng(1)
    session = Session(device, **options)
    session.upload([image(rng, 19), image(rng, 8)])
    session.configure(SETTINGS)
    return session


def fail_with(device, worker, **flags):
    """Let a worker's next run end with flags in STATUS."""
    device.on_run = lambda device: setattr(device.workers[worker], "status", registers.STATUS.encode(**flags))


# -- joining a job -----------------------------------------------------------------------------------------------------


def test_join(device):
    Session(device, NetworkSettings(job=3, first_round=17, resend_cycles=999, aggregator_mac=0xAABBCCDDEEFF))
    for index, worker in enumerate(device.workers):
        assert worker.written("JOB") == [{"job": 3, "shard": index, "workers": 2}]
        assert worker.written("JOIN") == [{"round": 17}]
        assert worker.writes[-1].register == "JOIN", "the settings come first"
        assert worker.written("RESEND") == [{"limit": 255, "doublings": 6}]
        assert worker.field(registers.RESEND_CYCLES) == 999
        assert worker.pair(registers.PEER_MAC) == 0xAABBCCDDEEFF
        assert worker.pair(registers.LOCAL_MAC) == 0x025034534700 + index
    Session(device, NetworkSettings(local_macs=(0x02AA, 0x02BB)))
    assert [worker.pair(registers.LOCAL_MAC) for worker in device.workers] == [0x02AA, 0x02BB]


def test_a_number_that_another_program_takes_first(device):
    """The aggregator refuses the number when the last worker is about to join."""
    worker, refused = device.workers[1], []
    device.aggregator = SimpleNamespace(most=0, served=dict)
    write = worker.write_register

    def writing(offset, word):
        if offset == registers.JOIN.offset and len(refused) < 2:
            refused.append(worker.field(registers.JOB, "job"))
            raise NumberTakenError("taken")
        write(offset, word)

    worker.write_register = writing
    Session(device)
    assert refused == [1, 2]
    assert [each.field(registers.JOB, "job") for each in device.workers] == [3, 3]
    refused.clear()
    with pytest.raises(NumberTakenError):
        Session(device, NetworkSettings(job=9))


@pytest.mark.parametrize(
    ("options", "seconds"),
    [({}, 0), ({"slack_s": 0.02}, 0.02), ({"slack_s": 0.02, "resend_cycles": 10_000_000, "doublings": 0}, 0.04)],
)
def test_times_to_wait(options, seconds):
    assert NetworkSettings(**options).echo_s == pytest.approx(seconds)
    NetworkSettings(resend_cycles=(1 << 26) - 1, doublings=5)
    with pytest.raises(UserError, match=r"67108864 resend_cycles with 5 doublings .* below 2147483648"):
        NetworkSettings(resend_cycles=1 << 26, doublings=5)


@pytest.mark.parametrize(
    ("last", "served", "expected"),
    [
        ((253, 17), (), [254, 255, 0, 1]),
        ((255, 0), (), [1]),  # late packets of an earlier job would count in the next one
        ((253, 253), (255, 0, 2, 254), [1, 3, 4]),
    ],
)
def test_jobs_have_the_next_free_numbers(device, last, served, expected):
    """A given number is used for the first job only: late packets of a failed run would count in the next one."""
    jobs = {slot: Job(number, (Member(5, 3),), 1 << 40, 8) for slot, number in enumerate(served)}
    device.aggregator = SimpleNamespace(most=0, served=lambda: jobs)
    for worker, number in zip(device.workers, last, strict=True):
        worker.write_register(registers.JOB.offset, registers.JOB.encode(job=number))
        worker.writes.clear()
    for _ in expected:
        Session(device)
    session = Session(device, NetworkSettings(job=99))
    fail_with(device, 0, memory_error=1)
    with pytest.raises(P4sgdError, match="memory error"):
        session.run(ModelSource.ZERO)
    fail_with(device, 0)
    session.run(ModelSource.ZERO)
    for worker in device.workers:
        assert [join["job"] for join in worker.written("JOB")] == [*expected, 99, 100]


# -- before a run ------------------------------------------------------------------------------------------------------


def test_images_begin_at_pages_and_weights_follow_them(device):
    """That all is where it should be is known by weights: in tests/test_matrix.py."""
    rng = np.random.default_rng(2)
    images = [image(rng, 19, directory=True, change=sparse(rng, 0.2)), image(rng, 8)]  # which may differ
    session = Session(device)
    session.upload(images)
    for worker, each in zip(device.workers, images, strict=True):
        for engine, port in itertools.product(range(CONFIG.engines), range(CONFIG.ports)):
            begin, model = map(worker.pair, (registers.lines_address(engine, port), registers.model_address(engine)))
            content = each.port_lines[engine * CONFIG.ports + port].reshape(-1)
            assert begin % 4096 == model % 4096 == 0
            assert begin + content.size <= model < begin + content.size + 2 * 4096
            assert np.array_equal(worker.banks[engine * CONFIG.ports + port][begin:][: content.size], content)
    for mini_batches in (3, 1):  # in a run of some mini-batches, engines read the lines of these
        run = dataclasses.replace(SETTINGS, features=FeatureFormat(3, 3, False), mini_batches=mini_batches)
        session.configure(run)
        found = [device.workers[0].pair(registers.lines_count(engine)) for engine in range(CONFIG.engines)]
        assert found == images[0].starts[:, 2 * mini_batches].tolist()
    assert device.workers[0].field(registers.PARTIAL_LIMIT) == (2**31 - 1) // 2
    with pytest.raises(UserError, match="leave out zeros are read with all 3 planes, not 2: store no more"):
        session.configure(SETTINGS)


@pytest.mark.parametrize("ports", [1, 2])
@pytest.mark.parametrize("stored", [1, 2, 8])
def test_the_longest_micro_batch_fits_the_line_fifo(ports, stored):
    """Neither lines of zeros, which are not there, nor directories that list the others take room in it.

    A chunk 0 of a single plane has a descriptor of zeros, as if there were none.
    """
    seed = default_seed()
    print(f"P4SGD_SEED={seed}")
    rng = np.random.default_rng(seed)
    config, found = dataclasses.replace(CONFIG, ports=ports, chunks=16), []

    def change(q):
        sparse(rng, 0.05)(q)
        found.append(q)

    packed = image(rng, 200, stored=stored, config=config, directory=True, change=change)
    listed = listed_chunks(packed.layout, *found)
    check_line_fifo(packed, 8, max(sum(lines for _, lines, _ in each) for engine in listed for each in engine))


@pytest.mark.parametrize(("values", "lines"), [((31, 31, 31, 0), 16), ((31, 31, 63, 0), 17), ((63, 63, 63, 63), 24)])
def test_a_micro_batch_that_just_fits_the_line_fifo(values, lines):
    """Engine 0 has four chunks, the last of which always has a line, and two directories."""

    def change(q):
        q[:] = 0
        q[8] = np.repeat(values, 16)

    packed = image(np.random.default_rng(2), 8 * 8, stored=6, directory=True, change=change)
    check_line_fifo(packed, 16, lines)


def check_line_fifo(packed, depth, longest):
    """Whether a run of an image is refused on a worker with a line FIFO of some depth."""
    config = dataclasses.replace(packed.layout.config, line_fifo_depth=depth)
    session = Session(RecordingDevice(config, 1))
    session.upload([dataclasses.replace(packed, layout=dataclasses.replace(packed.layout, config=config))])
    form = FeatureFormat(packed.layout.stored, packed.layout.stored, False)
    refused = pytest.raises(UserError, match=f"has {longest} lines an engine, the line FIFO holds {depth}: use more")
    with refused if longest > depth else contextlib.nullcontext():
        session.configure(dataclasses.replace(SETTINGS, features=form, workers=1))


def test_an_image_with_more_chunks_than_the_settings(device):
    """Each worker runs all chunks of its own image, so these must fit."""
    rng = np.random.default_rng(5)
    session = Session(device)
    for chunks, stale, says in ((4, True, "4 chunks an engine, this configuration holds 2 of"), (5, False, "5 chunks")):
        session.upload([image(rng, 16), image(rng, chunks * 16)])
        with pytest.raises(UserError, match=f"there are {says}"):
            session.configure(dataclasses.replace(SETTINGS, stale=stale))


# -- a run -------------------------------------------------------------------------------------------------------------


def test_run(device, session):
    def on_run(ran):
        ran.workers[1].status = registers.STATUS.encode(weight_saturated=1)
        for offset, worker in enumerate(ran.workers):
            worker.words |= {CYCLES[0].offset: 100 + offset, CYCLES[1].offset: 1}

    device.on_run = on_run
    device.workers[0].status = registers.STATUS.encode(partial_clamped=1)  # of an earlier run
    report = session.run(ModelSource.ZERO)
    assert report.flags == {"weight_saturated"}
    assert [each["CYCLES"] for each in report.counters] == [(1 << 32) + 100, (1 << 32) + 101]
    device.on_run = lambda ran: None
    assert session.run(ModelSource.KEEP, store=False).flags == set(), "flags are those of the run"
    for worker in device.workers:
        assert worker.written("RUN") == [
            {"model_source": 1, "model_store": 1, "stale": 0},
            {"model_source": 0, "model_store": 0, "stale": 0},
        ]


@pytest.mark.parametrize(
    ("flag", "says", "lost"),
    [
        ("memory_error", "met a memory error", {1}),
        *((flag, f"did not run to the end .STATUS: {flag}", set()) for flag in ("aborted", "not_joined", "refused")),
    ],
)
def test_a_run_that_fails_or_that_another_program_has_ended(device, flag, says, lost):
    """With worker 1 lost, worker 2 has shard 1. The workers join a new job before the next run."""
    device.names = [WorkerName(0, "unix:a"), WorkerName(2, "unix:c")]
    session = loaded(device)
    joins = len(device.workers[0].written("JOIN"))
    fail_with(device, 1, **{flag: 1})
    with pytest.raises(P4sgdError, match=rf"^worker 2 at unix:c {says}") as caught:
        session.run(ModelSource.ZERO)
    assert caught.value.lost_workers == lost
    fail_with(device, 1)
    session.run(ModelSource.ZERO)
    assert len(device.workers[0].written("JOIN")) == joins + 1


def test_errors_of_the_emulator_are_reported(device, session):
    def on_run(ran):
        raise RuntimeError("bytes were not written")

    device.on_run = on_run
    with pytest.raises(P4sgdError, match="device recording: bytes were not written"):
        session.run(ModelSource.ZERO)
    assert all(worker.writes[-1].register == "ABORT" for worker in device.workers)


def test_a_busy_worker(device, session):
    """Settings of the network change only between runs: a lower limit of resends would not stop earlier packets."""
    device.workers[0].words[registers.CTRL.offset] = 0
    device.workers[0].writes.clear()
    for act in (lambda: session.run(ModelSource.ZERO), lambda: Session(device, NetworkSettings(resends=1))):
        with pytest.raises(P4sgdError, match=r"^worker 0 is busy"):
            act()
    assert not device.workers[0].writes


# -- version 2 of the packet -------------------------------------------------------------------------------------------


def speaking(device, workers, aggregator):
    """A device whose members take so many micro-batches in a packet."""
    for worker, most in zip(device.workers, workers, strict=True):
        worker.words[registers.MERGE_MOST.offset] = most
    device.aggregator = SimpleNamespace(most=aggregator, served=dict)
    return device


def test_programs_speak_version_2_under_a_key_of_each_job(device):
    session = Session(speaking(device, [46, 45], 46))
    assert (session.version, session.most) == (2, 45)
    keys = [worker.pair(registers.JOB_KEY) for worker in device.workers]
    assert keys[0] == keys[1] != 0
    assert [worker.field(registers.MERGE) for worker in device.workers] == [1, 1]
    for worker in device.workers:
        names = [write.register for write in worker.writes]
        assert max(names.index("MERGE"), names.index("JOB_KEY_HIGH")) < names.index("JOIN")
    Session(device)
    assert device.workers[0].pair(registers.JOB_KEY) not in keys


@pytest.mark.parametrize(
    ("workers", "aggregator", "who"),
    [
        ([46, 0], 46, "worker 1 speaks"),
        ([46, 46], 0, "the aggregator speaks"),
        ([0, 0], 46, "worker 0, worker 1 speak "),
    ],
)
def test_with_hardware_all_speak_version_1(device, workers, aggregator, who):
    speaking(device, workers, aggregator)
    device.workers[0].words[registers.MERGE.offset] = 7  # of an earlier job
    session = Session(device)
    assert (session.version, session.most) == (1, 0)
    assert device.workers[0].field(registers.MERGE) == (0 if workers[0] else 7), "boards have no such register"
    with pytest.raises(UserError, match=f"--merge 8: a packet of this job has at most 1 micro-batch, as {who}"):
        Session(device, merge=8)
    Session(device, merge=1)
    with pytest.raises(UserError, match=r"--merge 21: .* at most 20 micro-batches, as worker 1 takes no"):
        Session(speaking(device, [46, 20], 46), merge=21)


@pytest.mark.parametrize(
    ("micro_batches", "merge", "expected"),
    [(2, None, 2), (2, 1, 1), (2, 46, 2), (46, None, 46), (47, None, 24), (64, 46, 32), (100, 46, 34), (7, 3, 3)],
)
def test_packets_of_a_mini_batch_are_few_and_even(device, micro_batches, merge, expected):
    session = loaded(speaking(device, [46, 46], 46), merge=merge)
    session.configure(dataclasses.replace(SETTINGS, micro_batches=micro_batches, mini_batches=1))
    assert session.micro_batches == expected
    assert [worker.field(registers.MERGE) for worker in device.workers] == [expected] * 2


def test_packets_are_planned_by_short_runs(device):
    """Those of two micro-batches take longer here than two of one, as nobody expects."""
    runs = []

    def on_run(device):
        first, second = device.workers
        merged, mini_batches = (first.field(each) for each in (registers.MERGE, registers.MINI_BATCHES))
        runs.append((merged, mini_batches, first.field(registers.RUN, "model_store")))
        cycles = mini_batches * (25_000 if merged == 1 else 50_000)  # 0.1 and 0.2 ms
        for worker, extra in ((first, 1000), (second, 0)):  # the first waits longer for the other to start
            worker.words[CYCLES[0].offset] = cycles + extra

    device.on_run = on_run
    session = loaded(speaking(device, [46, 46], 46))
    session.plan_packets()
    planning = len(runs)
    assert session.micro_batches == 1
    assert set(runs) == {(2, 1, 0), (1, 3, 0), (2, 3, 0)}, "no more mini-batches than the images have"
    session.run(ModelSource.ZERO)
    session.configure(SETTINGS)
    session.plan_packets()
    session.run(ModelSource.KEEP)
    assert runs[planning:] == [(1, 3, 1)] * 2, "planned once"
    times = session.message_times
    assert times.messages == (1, 1)
    assert (times.measured_s, times.predicted_s, times.one_message_s) == pytest.approx((1e-4, 1e-4, 2e-4))
    session.configure(dataclasses.replace(SETTINGS, micro_batches=1))
    session.plan_packets()
    assert session.message_times is None, "there is nothing to plan"


def test_settings_are_written_again_if_a_run_for_a_plan_has_failed(device):
    """Which has fewer mini-batches and other packets."""
    session = loaded(speaking(device, [46, 46], 46))
    fail_with(device, 0, memory_error=1)
    with pytest.raises(P4sgdError, match="memory error"):
        session.plan_packets()
    assert device.workers[1].field(registers.MINI_BATCHES) < SETTINGS.mini_batches
    fail_with(device, 0)
    session.configure(SETTINGS)
    assert [worker.field(registers.MINI_BATCHES) for worker in device.workers] == [SETTINGS.mini_batches] * 2


@pytest.mark.parametrize(("aggregator", "merged"), [(0, 1), (46, 2)])
def test_nothing_is_planned_with_hardware_or_without_counters(device, aggregator, merged):
    session = loaded(speaking(device, [46, 46], aggregator))
    session.plan_packets()
    assert session.message_times is None
    assert session.micro_batches == merged
    assert device.workers[0].field(registers.MINI_BATCHES) == SETTINGS.mini_batches
