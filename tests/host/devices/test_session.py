"""A session on a device that records what is written to it."""

import dataclasses
import itertools
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
from support.aggregator_model import Aggregator
from support.bench import default_seed
from support.directory_cycles import listed_chunks
from support.recording_device import RecordingDevice

from p4sgd.host.aggregators.cluster_file import read_cluster
from p4sgd.host.aggregators.membership import JoinRequest, Membership, NumberTakenError
from p4sgd.host.devices import DEVICES, open_device
from p4sgd.host.devices.cluster import network_settings
from p4sgd.host.devices.device import NetworkSettings, WorkerName, client_of
from p4sgd.host.devices.session import Session
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.host.losses import LOSSES
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.image import ImageLayout
from p4sgd.hw.spec.job import Job, Member
from p4sgd.hw.spec.registers import ModelSource
from p4sgd.hw.spec.run import FeatureFormat, LabelMode, RunSettings

CONFIG = WorkerConfig(engines=2, ports=2, lanes=8, chunks=4, line_fifo_depth=16, slots=4, table_segments=512)


@dataclass
class FakeImage:
    layout: ImageLayout
    signed: bool
    labels: np.ndarray
    q: np.ndarray
    exempt: tuple[int, int, int] | None = None
    importances: np.ndarray | None = None

    @property
    def starts(self):
        return self.layout.pack_directories(self.q)[1] if self.layout.directory else None

    def lines(self, number):
        return self.layout.memories(self.q)[number]


def image(rng, features, samples=48, stored=3, config=CONFIG, *, directory=False):
    layout = ImageLayout(config, features, samples, stored, unit=8, directory=directory)
    labels = rng.integers(-5, 5, layout.micro_batches * 8).astype(np.int32)
    return FakeImage(layout, False, labels, rng.integers(0, 1 << stored, (samples, features)))


@pytest.fixture
def images():
    rng = np.random.default_rng(1)
    return [image(rng, 19), image(rng, 8)]


def settings(**changes):
    values = {
        "features": FeatureFormat(3, 2, False),
        "chunks": 2,
        "micro_batches": 2,
        "mini_batches": 3,
        "label_mode": LabelMode(sign=True),
        "rate_mantissa": 200,
        "rate_exponent": 9,
        "shrink": 77,
        "threshold": 5,
        "workers": 2,
        "unit": 8,
    }
    return RunSettings(**{**values, **changes})


@pytest.fixture
def device():
    return RecordingDevice(CONFIG, 2)


@pytest.mark.parametrize(
    ("register", "word", "message"),
    [
        (registers.MAGIC_WORD, 0xFFFFFFFF, "worker 1 of device recording is no P4SGD worker: .* 0xffffffff"),
        (registers.ABI, 99, "worker 1 .* version 99 of the register map, this program needs [0-9]+: generate"),
        (registers.CONFIG_HASH, 5, "worker 1 .* another configuration .* engines=2, lanes=8, ports="),
    ],
)
def test_identity(device, register, word, message):
    device.workers[1].words[register.offset] = word
    with pytest.raises(P4sgdError, match=message):
        Session(device)
    assert not device.workers[1].writes, "nothing may be written to what is no worker of ours"


def test_join(device):
    Session(device, NetworkSettings(job=3, first_round=17, resend_cycles=999, aggregator_mac=0xAABBCCDDEEFF))
    for index, worker in enumerate(device.workers):
        assert worker.written("JOB") == [{"job": 3, "shard": index, "workers": 2}]
        assert worker.written("JOIN") == [{"round": 17}]
        assert worker.writes[-1].register == "JOIN", "the settings come first"
        assert worker.field(registers.RESEND_CYCLES) == 999
        assert worker.pair(registers.PEER_MAC) == 0xAABBCCDDEEFF
        assert worker.pair(registers.LOCAL_MAC) == 0x025034534700 + index
    Session(device, NetworkSettings(local_macs=(0x02AA, 0x02BB)))
    assert [worker.pair(registers.LOCAL_MAC) for worker in device.workers] == [0x02AA, 0x02BB]


def test_a_number_that_another_program_takes_first(device):
    """The aggregator refuses the number when the last worker is about to join."""
    worker, refused = device.workers[1], []
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


def test_two_trainings_behind_one_port(tmp_path):
    """Neither takes the other's job for one left behind by its own workers."""
    switch = Aggregator(4, jobs=2)
    controller = SimpleNamespace(
        jobs=2, most=0, begin=switch.begin, end=switch.end, served=lambda: dict(switch.jobs), set_mac=lambda mac: None
    )
    for number, workers in enumerate((("a", "b"), ("c", "d"))):
        path = tmp_path / f"{number}.toml"
        lines = ["[aggregator]", 'kind = "socket"', 'control = "unix:switch"']
        for name in workers:
            lines += ["[[workers]]", f'control = "unix:{name}"', "port = 0"]
        path.write_text("\n".join(lines))
        device = RecordingDevice(CONFIG, 2)
        device.aggregator, device.network_settings = controller, network_settings(read_cluster(path))
        Session(device)
        membership = Membership(controller)
        for index, worker in enumerate(device.workers):
            membership.join(JoinRequest.read(client_of(worker)), 0, 1, index=index)
    assert [job.number for job in switch.jobs.values()] == [1, 2]
    assert len({member for job in switch.jobs.values() for member in job.members}) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"job": 256}, "job must be 0 to 255, not 256"),
        ({"job": -1}, "job must be 0 to 255, not -1"),
        ({"first_round": 1 << 16}, "first_round must be 0 to 65535, not 65536"),
        ({"resend_cycles": 0}, "resend_cycles must be 1 to 4294967295, not 0"),
        ({"doublings": 16}, "doublings must be 0 to 15, not 16"),
        ({"resends": 256}, "resends must be 0 to 255, not 256"),
        ({"resend_cycles": 1 << 26, "doublings": 5}, "67108864 resend_cycles with 5 doublings .* below 2147483648"),
        ({"aggregator_mac": 1 << 48}, "aggregator_mac must be the address of a single host, not 0x1000000000000"),
        ({"aggregator_mac": 1 << 40}, "aggregator_mac must be the address of a single host, not 0x010000000000"),
    ],
)
def test_network_settings_out_of_range(options, message):
    with pytest.raises(UserError, match=message):
        NetworkSettings(**options)


@pytest.mark.parametrize(
    "options", [{"resend_cycles": (1 << 26) - 1, "doublings": 5}, {"resend_cycles": (1 << 31) - 1, "doublings": 0}]
)
def test_the_longest_wait(options):
    NetworkSettings(**options)


@pytest.mark.parametrize(
    ("options", "seconds"),
    [({}, 0), ({"slack_s": 0.02}, 0.02), ({"slack_s": 0.02, "resend_cycles": 10_000_000, "doublings": 0}, 0.04)],
)
def test_time_to_wait_for_an_echo(options, seconds):
    assert NetworkSettings(**options).echo_s == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("last", "served", "expected"),
    [
        ((253, 17), (), [254, 255, 0, 1]),
        ((255, 0), (), [1]),  # late packets of an earlier job would count in the next one
        ((253, 253), (255, 0, 2, 254), [1, 3, 4]),
    ],
)
def test_jobs_have_the_next_free_numbers(device, last, served, expected):
    jobs = {slot: Job(number, (Member(5, 3),), 1 << 40, 8) for slot, number in enumerate(served)}
    device.aggregator = SimpleNamespace(most=0, served=lambda: jobs)
    for worker, number in zip(device.workers, last, strict=True):
        worker.write_register(registers.JOB.offset, registers.JOB.encode(job=number))
        worker.writes.clear()
    for _ in expected:
        Session(device)
    Session(device, NetworkSettings(job=254))
    for worker in device.workers:
        assert [join["job"] for join in worker.written("JOB")] == [*expected, 254]


def test_a_given_number_is_used_for_the_first_job_only(device):
    """Late packets of a failed run would count in the next one."""
    session = Session(device, NetworkSettings(job=9))
    device.on_run = lambda device: setattr(device.workers[0], "status", 1 << registers.STATUS["memory_error"].low)
    with pytest.raises(P4sgdError, match="memory error"):
        session.run(ModelSource.ZERO)
    device.on_run = lambda device: setattr(device.workers[0], "status", 0)
    session.run(ModelSource.ZERO)
    assert [join["job"] for join in device.workers[0].written("JOB")] == [9, 10]


def test_upload(device, images):
    session = Session(device)
    session.upload(images)
    for worker, each in zip(device.workers, images, strict=True):
        layout = each.layout
        for engine, port in itertools.product(range(CONFIG.engines), range(CONFIG.ports)):
            lines = worker.pair(registers.lines_address(engine, port))
            model = worker.pair(registers.model_address(engine))
            assert lines % 4096 == model % 4096 == 0
            end = lines + layout.lines_bytes
            number = engine * CONFIG.ports + port
            assert np.array_equal(worker.banks[number][lines:end], each.lines(number).reshape(-1))
            assert model >= end
        labels = worker.pair(registers.LABELS_ADDRESS)
        found = worker.banks[CONFIG.labels_memory][labels : labels + 4 * 48].view("<i4")
        assert found.tolist() == each.labels.tolist()


def test_settings(device, images):
    images[1].exempt = 1, 0, 7
    session = Session(device)
    session.upload(images)
    session.configure(settings())
    for worker, each in zip(device.workers, images, strict=True):
        assert worker.written("FORMAT") == [
            {"precision": 2, "stored": 3, "signed": 0, "unit_chunks": 0, "directory": 0}
        ]
        assert worker.field(registers.CHUNKS) == each.layout.chunks
        assert worker.field(registers.MICRO_BATCHES) == 2
        assert worker.field(registers.MINI_BATCHES) == 3
        assert worker.written("LABEL_MODE") == [{"sign": 1, "offset": 0, "constant": 0, "weighted": 0}]
        assert worker.written("RATE") == [{"mantissa": 200, "gradient_shift": 16 + 9 + 2 - 23}]
        assert worker.field(registers.SHRINK_FACTOR) == 77
        assert worker.field(registers.THRESHOLD) == 5
        assert worker.field(registers.PARTIAL_LIMIT) == (2**31 - 1) // 2
    assert [worker.written("EXEMPT") for worker in device.workers] == [
        [{"exempt": 0, "engine": 0, "chunk": 0, "lane": 0}],
        [{"exempt": 1, "engine": 1, "chunk": 0, "lane": 7}],
    ]


def test_images_with_directories(device):
    """A worker is told how many lines each engine reads, in a run of some mini-batches those of these alone."""
    rng = np.random.default_rng(2)
    images = [image(rng, 19, directory=True), image(rng, 8)]  # which may differ
    images[0].q[rng.random(images[0].q.shape) < 0.8] = 0
    session = Session(device)
    session.upload(images)
    parts, starts = images[0].layout.pack_directories(images[0].q)
    first, _ = device.workers
    for engine, port in itertools.product(range(CONFIG.engines), range(CONFIG.ports)):
        number = engine * CONFIG.ports + port
        lines = first.pair(registers.lines_address(engine, port))
        content = parts[number].reshape(-1)
        assert np.array_equal(first.banks[number][lines : lines + content.size], content)
        assert first.pair(registers.model_address(engine)) >= lines + content.size
    form = FeatureFormat(3, 3, False)
    for mini_batches in (3, 1):
        session.configure(settings(features=form, mini_batches=mini_batches))
        assert [worker.field(registers.FORMAT, "directory") for worker in device.workers] == [1, 0]
        found = [first.pair(registers.lines_count(engine)) for engine in range(CONFIG.engines)]
        assert found == starts[:, 2 * mini_batches].tolist()
    with pytest.raises(UserError, match="images that leave out zeros are read with all 3 planes, not 2: store no more"):
        session.configure(settings())


@pytest.mark.parametrize(("values", "lines"), [((31, 31, 31, 0), 16), ((31, 31, 63, 0), 17), ((63, 63, 63, 63), 24)])
def test_the_longest_micro_batch_fits_the_line_fifo(device, values, lines):
    """Lines of zeros, which are not there, take no room, nor do the directories that list the others.

    Engine 0 has four chunks, the last of which always has a line, and two directories.
    """
    images = [image(np.random.default_rng(2), 8 * 8, stored=6, directory=True) for _ in device.workers]
    for each in images:
        each.q[:] = 0
        each.q[8] = np.repeat(values, 16)
    assert np.diff(images[0].starts).max() == lines + 2 > CONFIG.line_fifo_depth
    session = Session(device)
    session.upload(images)
    run = settings(features=FeatureFormat(6, 6, False), micro_batches=1, mini_batches=6)
    if lines <= CONFIG.line_fifo_depth:
        session.configure(run)
        return
    with pytest.raises(
        UserError, match=f"a micro-batch has {lines} lines an engine, the line FIFO holds 16: use more workers"
    ):
        session.configure(run)


@pytest.mark.parametrize("ports", [1, 2])
@pytest.mark.parametrize("stored", [1, 2, 8])
def test_lines_of_the_longest_micro_batch_are_counted(ports, stored):
    """By the definition of the image; a chunk 0 of a single plane has a descriptor of zeros, as if there were none."""
    seed = default_seed()
    print(f"P4SGD_SEED={seed}")
    rng = np.random.default_rng(seed)
    config = dataclasses.replace(CONFIG, ports=ports, chunks=16, line_fifo_depth=8)
    packed = image(rng, 200, stored=stored, config=config, directory=True)
    packed.q *= rng.random(packed.q.shape) < 0.05
    longest = max(
        sum(lines for _, lines in listed) for engine in listed_chunks(packed.layout, packed.q) for listed in engine
    )
    session = Session(RecordingDevice(config, 1))
    session.upload([packed])
    with pytest.raises(UserError, match=f"has {longest} lines"):
        session.configure(settings(features=FeatureFormat(stored, stored, False), workers=1))


def test_table(device):
    Session(device).load_table(LOSSES["logistic"].table())
    table = LOSSES["logistic"].table().refine(CONFIG.table_segments)
    for worker in device.workers:
        assert worker.field(registers.TABLE_SHIFT) == table.shift
        assert worker.written("TABLE_INDEX") == [{"value": 0}]
        assert [w["value"] for w in worker.written("TABLE_SLOPE")] == table.slope.tolist()
        assert [w["value"] for w in worker.written("TABLE_INTERCEPT")] == table.intercept.tolist()
        order = [w.register for w in worker.writes if w.register.startswith("TABLE_")]
        assert order[1] == "TABLE_INDEX"
        assert order[2:] == ["TABLE_SLOPE", "TABLE_INTERCEPT"] * CONFIG.table_segments


def test_run(device, images):
    def on_run(ran):
        ran.workers[1].status = registers.STATUS.encode(weight_saturated=1)
        for offset, worker in enumerate(ran.workers):
            worker.words[registers.COUNTERS["CYCLES"].registers[0].offset] = 100 + offset
            worker.words[registers.COUNTERS["CYCLES"].registers[1].offset] = 1

    session = Session(device)
    session.upload(images)
    session.configure(settings())
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


def test_errors_name_workers_as_the_cluster_file_does(device, images):
    """With worker 1 lost, worker 2 has shard 1."""
    device.names = [WorkerName(0, "unix:a"), WorkerName(2, "unix:c")]
    session = Session(device)
    session.upload(images)

    for flag, says in (("memory_error", "met"), ("aborted", "did not run to the end")):
        device.on_run = lambda ran, flag=flag: setattr(ran.workers[1], "status", registers.STATUS.encode(**{flag: 1}))
        with pytest.raises(P4sgdError, match=rf"^worker 2 at unix:c {says}") as caught:
            session.run(ModelSource.ZERO)
        assert caught.value.lost_workers == ({1} if flag == "memory_error" else set()), "a shard"
    device.workers[1].words[registers.CTRL.offset] = 0
    with pytest.raises(P4sgdError, match=r"^worker 2 at unix:c is busy"):
        Session(device)
    device.workers[1].words[registers.MAGIC_WORD.offset] = 0
    with pytest.raises(P4sgdError, match=r"^worker 2 at unix:c of device recording is no P4SGD worker"):
        Session(device)


@pytest.mark.parametrize("flag", ["aborted", "not_joined", "refused"])
def test_a_run_that_another_program_has_ended(device, images, flag):
    """Another program may have used the worker."""
    session = Session(device)
    session.upload(images)
    joins = len(device.workers[0].written("JOIN"))
    device.on_run = lambda ran: setattr(ran.workers[1], "status", registers.STATUS.encode(**{flag: 1}))
    with pytest.raises(P4sgdError, match=f"worker 1 did not run to the end: .*{flag}"):
        session.run(ModelSource.ZERO)
    device.on_run = lambda ran: None
    session.run(ModelSource.ZERO)
    assert len(device.workers[0].written("JOIN")) == joins + 1


def test_errors_of_the_emulator_are_reported(device, images):
    session = Session(device)
    session.upload(images)

    def on_run(ran):
        raise RuntimeError("bytes were not written")

    device.on_run = on_run
    with pytest.raises(P4sgdError, match="device recording: bytes were not written"):
        session.run(ModelSource.ZERO)


def test_a_busy_worker(device, images):
    """Settings of the network change only between runs: a lower limit of resends would not stop earlier packets."""
    session = Session(device)
    session.upload(images)
    device.workers[0].words[registers.CTRL.offset] = 0
    with pytest.raises(P4sgdError, match="worker 0 is busy"):
        session.run(ModelSource.ZERO)
    device.workers[0].writes.clear()
    with pytest.raises(P4sgdError, match="worker 0 is busy"):
        Session(device, NetworkSettings(resends=1))
    assert not device.workers[0].writes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mini_batches": 4}, "read 64 samples, the image has 48"),
        ({"micro_batches": 3}, "read 72 samples, the image has 48"),
        ({"features": FeatureFormat(4, 2, False)}, "stored planes: 4 .* 3"),
        ({"features": FeatureFormat(3, 2, True)}, "signed: True .* False"),
        ({"workers": 3}, "workers: 3 .* 2"),
        ({"weighted": True}, "weights of samples: True .* False"),
    ],
)
def test_settings_of_other_data(device, images, changes, message):
    session = Session(device)
    with pytest.raises(P4sgdError, match="no images were uploaded"):
        session.configure(settings())
    session.upload(images)
    with pytest.raises(P4sgdError, match=message):
        session.configure(settings(**changes))


def test_an_image_with_more_chunks_than_the_settings(device):
    """Each worker runs all chunks of its own image, so these must fit."""
    rng = np.random.default_rng(5)
    session = Session(device)
    session.upload([image(rng, 16), image(rng, 4 * 16)])
    with pytest.raises(UserError, match="there are 4 chunks an engine, this configuration holds 2 of them twice"):
        session.configure(settings(chunks=2, stale=True))
    session.upload([image(rng, 16), image(rng, 5 * 16)])
    with pytest.raises(UserError, match="there are 5 chunks an engine"):
        session.configure(settings(chunks=2))


def test_images_of_another_device(device, images):
    session = Session(device)
    with pytest.raises(P4sgdError, match="1 images for 2 workers"):
        session.upload(images[:1])
    rng = np.random.default_rng(4)
    with pytest.raises(P4sgdError, match="differ in their numbers of samples"):
        session.upload([images[0], image(rng, 8, samples=8)])
    with pytest.raises(P4sgdError, match="engines=1, lanes=8, ports=1, the worker has engines=2"):
        session.upload([images[0], image(rng, 8, config=WorkerConfig.tiny())])
    sparse = dataclasses.replace(CONFIG, sparse=True)
    with pytest.raises(P4sgdError, match=r"for engines=2, lanes=8, ports=2, sparse, the worker has engines=2, .*=2$"):
        session.upload([images[0], image(rng, 8, config=sparse)])
    with pytest.raises(P4sgdError, match=r"for engines=2, lanes=8, ports=2, the worker has .*, ports=2, sparse$"):
        Session(RecordingDevice(sparse, 2)).upload(images)


def test_opening_by_name():
    assert list(DEVICES) == ["emulator", "rtl", "cluster"]
    with pytest.raises(UserError, match=r"no device 'fpga'.* emulator, rtl, cluster"):
        open_device("fpga", CONFIG, 1)
    with pytest.raises(UserError, match="workers must be 1 to 32, not 33"):
        open_device("emulator", CONFIG, 33)


# -- version 2 of the packet ---------------------------------------------------------------------------------------


def speaking(device, workers, aggregator):
    """A device whose members take so many micro-batches in a packet."""
    for worker, most in zip(device.workers, workers, strict=True):
        worker.words[registers.MERGE_MOST.offset] = most
    device.aggregator = SimpleNamespace(most=aggregator, served=dict)


def test_programs_speak_version_2_under_a_key_of_each_job(device):
    speaking(device, [46, 45], 46)
    session = Session(device)
    assert (session.limit.version, session.limit.most) == (2, 45)
    keys = [worker.pair(registers.JOB_KEY) for worker in device.workers]
    assert keys[0] == keys[1] != 0
    assert [worker.field(registers.MERGE) for worker in device.workers] == [1, 1]
    for worker in device.workers:
        names = [write.register for write in worker.writes]
        assert names.index("MERGE") < names.index("JOIN")
        assert names.index("JOB_KEY_HIGH") < names.index("JOIN")
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
    assert (session.limit.version, session.limit.most) == (1, 0)
    assert session.limit.why.startswith(who)
    assert device.workers[0].field(registers.MERGE) == (0 if workers[0] else 7), "boards have no such register"
    with pytest.raises(UserError, match=f"--merge 8: a packet of this job has at most 1 micro-batch, as {who}"):
        Session(device, merge=8)
    Session(device, merge=1)
    speaking(device, [46, 20], 46)
    with pytest.raises(UserError, match=r"--merge 21: .* at most 20 micro-batches, as worker 1 takes no"):
        Session(device, merge=21)


@pytest.mark.parametrize(("merge", "expected"), [(None, 2), (1, 1), (2, 2), (46, 2)])
def test_a_mini_batch_is_one_packet_if_it_fits(device, images, merge, expected):
    speaking(device, [46, 46], 46)
    session = Session(device, merge=merge)
    session.upload(images)
    session.configure(settings())
    assert settings().micro_batches == 2
    assert session.micro_batches == expected
    assert [worker.field(registers.MERGE) for worker in device.workers] == [expected] * 2


def test_packets_are_planned_by_short_runs(device, images):
    """Those of two micro-batches take longer here than two of one, as nobody expects."""
    speaking(device, [46, 46], 46)
    runs = []

    def on_run(device):
        first, second = device.workers
        merged, mini_batches = (first.field(each) for each in (registers.MERGE, registers.MINI_BATCHES))
        stored = first.field(registers.RUN, "model_store")
        runs.append((merged, mini_batches, stored))
        cycles = mini_batches * (25_000 if merged == 1 else 50_000)  # 0.1 and 0.2 ms
        for worker, extra in ((first, 1000), (second, 0)):  # the first waits longer for the other to start
            for name in ("CYCLES", "CYCLES_NETWORK"):
                worker.words[registers.COUNTERS[name].registers[0].offset] = cycles + extra

    device.on_run = on_run
    session = Session(device)
    session.upload(images)
    session.configure(settings())
    session.plan_packets()
    planning = len(runs)
    assert session.micro_batches == 1
    assert set(runs) == {(2, 1, 0), (1, 3, 0), (2, 3, 0)}, "no more mini-batches than the images have"
    session.run(ModelSource.ZERO)
    session.configure(settings())
    session.plan_packets()
    session.run(ModelSource.KEEP)
    assert runs[planning:] == [(1, 3, 1)] * 2, "planned once"
    times = session.message_times
    assert times.messages == (1, 1)
    assert times.measured_s == pytest.approx(1e-4)
    assert times.predicted_s == pytest.approx(1e-4)
    assert times.one_message_s == pytest.approx(2e-4)
    session.configure(settings(micro_batches=1))
    session.plan_packets()
    assert session.message_times is None, "there is nothing to plan"


def test_nothing_is_planned_with_hardware_or_without_counters(device, images):
    for aggregator in (0, 46):
        speaking(device, [46, 46], aggregator)
        session = Session(device)
        session.upload(images)
        session.configure(settings())
        session.plan_packets()
        assert session.message_times is None
        assert session.micro_batches == (2 if aggregator else 1)
        assert device.workers[0].field(registers.MINI_BATCHES) == settings().mini_batches
