"""A memory that answers with an error, whatever is read or written: the run ends, its worker alone says so."""

import pytest
from support.bench import default_seed
from support.jobs import SMALL, random_job, run_on

from p4sgd.host.devices.device import client_of
from p4sgd.host.devices.rtl import RtlDevice
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.register_map import RegisterClient
from p4sgd.hw.spec.registers import ModelSource

MODEL = [registers.model_address(engine) for engine in range(SMALL.engines)]
LINES = [registers.lines_address(engine, port) for engine in range(SMALL.engines) for port in range(SMALL.ports)]


def memory_errors(device, source, store):
    """Do a run; what the workers say of their memories."""
    clients = [client_of(worker) for worker in device.workers]
    for client in clients:
        client.write(registers.STATUS, memory_error=1)
        client.write(registers.RUN, model_source=source.value, model_store=int(store))
    for client in clients:
        client.write(registers.CTRL, start=1)
    device.wait(0.004)
    assert all(client.read(registers.CTRL)["done"] for client in clients)
    return [client.read(registers.STATUS)["memory_error"] for client in clients]


@pytest.mark.rtl
@pytest.mark.slow
def test_every_error_voids_the_run_of_its_worker():
    seed = default_seed()
    print(f"P4SGD_SEED={seed}")
    job = random_job(SMALL, 2, seed=seed)
    device = RtlDevice(SMALL, 2, seed=seed, memory_stall=0.1)
    keep, zero, memory = ModelSource.KEEP, ModelSource.ZERO, ModelSource.MEMORY
    cases = [(address, keep, False) for address in (*LINES, registers.LABELS_ADDRESS)]
    cases += [(address, source, store) for address in MODEL for source, store in ((memory, False), (zero, True))]
    try:
        run_on(device, job)
        for number, (address, source, store) in enumerate(cases):
            worker = number % 2
            client = RegisterClient(device.workers[worker].read_register, device.workers[worker].write_register)
            good = client.read_pair(address)
            client.write_pair(address, device.memory_bytes << number)  # any bit beyond the memory
            assert memory_errors(device, source, store) == [1 - worker, worker], address[0].name
            client.write_pair(address, good)
            assert memory_errors(device, source, store) == [0, 0], address[0].name
        weights, status, _ = run_on(device, job)
        assert [got.tolist() for got in weights] == [wanted.tolist() for wanted in job.golden().weights]
        assert not any(each["memory_error"] for each in status)
    finally:
        device.close()
