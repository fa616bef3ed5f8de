"""The contract of all workers and devices: registers, memory, and exact weights.

Simulated Verilog is tested in tests/system/test_rtl_identical.py, as it takes long to build.
"""

import contextlib
import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.bench import default_seed
from support.jobs import SMALL, check_exact, random_job
from support.recording_device import RecordingWorker
from support.worker_process import serve_worker
from support.xdma import Driver
from support.xrt import Machine, bdf_of, make_xclbin

from p4sgd.host.aggregators.cluster_file import read_cluster
from p4sgd.host.boards.xdma import XdmaAddress
from p4sgd.host.boards.xrt import XrtAddress
from p4sgd.host.devices import open_device
from p4sgd.host.devices.board_worker import BoardWorker
from p4sgd.host.devices.cluster import ClusterDevice
from p4sgd.host.devices.device import client_of, read_configuration
from p4sgd.host.devices.remote_worker import RemoteWorker
from p4sgd.host.errors import P4sgdError
from p4sgd.host.rpc.address import ControlAddress
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import CONFIGURATIONS


@contextlib.contextmanager
def emulated(tmp_path, monkeypatch):
    yield open_device("emulator", SMALL, 1).workers[0]


@contextlib.contextmanager
def process(tmp_path, monkeypatch):
    address = f"unix:{tmp_path}/worker"
    with serve_worker(SMALL, address):
        with contextlib.closing(RemoteWorker(0, ControlAddress.parse(address))) as worker:
            yield worker


@contextlib.contextmanager
def board(tmp_path, monkeypatch):
    with contextlib.closing(Machine(tmp_path, 1)) as machine:
        machine.install(monkeypatch)
        address = XrtAddress(bdf_of(0), make_xclbin(tmp_path / "worker.xclbin", SMALL))
        with contextlib.closing(BoardWorker(0, address)) as worker:
            yield worker
        assert not machine.open_handles


@contextlib.contextmanager
def board_without_shell(tmp_path, monkeypatch):
    with contextlib.closing(Machine(tmp_path, 1)) as machine:
        driver = Driver(machine, SMALL)
        driver.install(monkeypatch)
        with contextlib.closing(BoardWorker(0, XdmaAddress(0, driver.address_map))) as worker:
            yield worker
        assert not driver.devices


@pytest.fixture(params=[emulated, process, board, board_without_shell], ids=lambda kind: kind.__name__)
def worker(request, tmp_path, monkeypatch):
    with request.param(tmp_path, monkeypatch) as found:
        yield found


def test_identity_and_configuration(worker):
    places = {name: registers.worker_map(SMALL)[name].offset for name in registers.identity(SMALL)}
    assert {name: worker.read_register(offset) for name, offset in places.items()} == registers.identity(SMALL)
    assert client_of(worker).read(registers.CTRL) == {"start": 0, "done": 0, "idle": 1, "ready": 0}
    assert worker.config == SMALL


@pytest.mark.parametrize("name", ["sparse", "u280"])
def test_the_configuration_is_read_from_registers(name):
    config = dataclasses.replace(CONFIGURATIONS[name](), slots=4)
    assert read_configuration("it", client_of(RecordingWorker(config, size=0))) == config


@pytest.mark.parametrize(
    ("register", "word", "says"),
    [
        (registers.MAGIC_WORD, 0xFFFFFFFF, "is no P4SGD worker: .* 0xffffffff"),
        (registers.ABI, 99, "has version 99 of the register map, this program needs [0-9]+: generate"),
        (registers.CONFIG_HASH, 5, r"has a configuration of another version of p4sgd \(hash 0x00000005\)"),
        (registers.SLOTS, 3, "has no possible configuration: slots"),
    ],
)
def test_what_is_no_worker_of_ours_is_refused(register, word, says):
    worker = RecordingWorker(SMALL, size=0)
    worker.words[register.offset] = word
    with pytest.raises(P4sgdError, match=f"^worker 2 at unix:c {says}"):
        read_configuration("worker 2 at unix:c", client_of(worker))
    assert not worker.writes


def test_registers_keep_what_is_written(worker):
    client = client_of(worker)
    worker.write_memory(0, 0, np.arange(100, dtype=np.uint8))
    pairs = [registers.LABELS_ADDRESS, registers.LOCAL_MAC, registers.PEER_MAC]
    pairs += [registers.model_address(engine) for engine in range(SMALL.engines)]
    pairs += [registers.lines_address(engine, port) for engine in range(SMALL.engines) for port in range(SMALL.ports)]
    values = {number: 0x8000_1000 * number + 4096 for number in range(len(pairs))}
    for number, pair in enumerate(pairs):
        client.write_pair(pair, values[number])
    for bank in range(SMALL.memories):
        worker.write_memory(bank, 0, np.full(5000, bank + 1, np.uint8))
    for bank in range(SMALL.memories):
        assert set(worker.read_memory(bank, 0, 5000).tolist()) == {bank + 1}, "banks are apart"
    assert {number: client.read_pair(pair) for number, pair in enumerate(pairs)} == values
    client.write(registers.RATE, mantissa=200, gradient_shift=9)
    assert client.read(registers.RATE) == {"mantissa": 200, "gradient_shift": 9}


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 20000), st.binary(min_size=1, max_size=9000)), max_size=6))
def test_memory_is_what_was_written_last(worker, writes):
    known = {}
    for address, data in writes:
        worker.write_memory(1, address, np.frombuffer(data, np.uint8))
        known |= dict(enumerate(data, address))
        got = worker.read_memory(1, address, len(data))
        assert got.tobytes() == data
    for address in known:
        if address % 97 == 0:
            assert worker.read_memory(1, address, 1).tolist() == [known[address]]


@pytest.mark.parametrize(("workers", "shell"), [(1, True), (3, True), (2, False)])
def test_weights_and_flags_of_the_golden_model_on_boards(workers, shell, tmp_path, monkeypatch):
    """Emulators are compared with it in tests/sim."""
    seed = default_seed()
    with contextlib.closing(Machine(tmp_path, workers)) as machine:
        machine.install(monkeypatch)
        if shell:
            cluster = read_cluster(machine.cluster_file(make_xclbin(tmp_path / "worker.xclbin", SMALL)))
        else:
            driver = Driver(machine, SMALL)
            driver.install(monkeypatch)
            cluster = read_cluster(driver.cluster_file())
        with contextlib.closing(ClusterDevice(None, workers, cluster=cluster)) as device:
            options = {"timeout_s": 60, "resend_cycles": 5_000_000, "aggregator_mac": cluster.aggregator.address}
            for case in range(8):
                job = random_job(SMALL, workers, seed=seed + case, wild=case % 4 == 3, stale=case % 2 == 1)
                print(f"P4SGD_SEED={seed}, case {case}: {job.settings}")
                check_exact(device, job, 1 + case % 2, counts=False, number=case, **options)
        assert not machine.open_handles
