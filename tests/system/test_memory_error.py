"""A memory that answers with an error, whatever is read or written: the run ends there, its worker alone says so."""

import pytest
from support.jobs import SMALL, configure, random_job, run_on

from p4sgd.hw.spec import registers
from p4sgd.hw.spec.registers import ModelSource
from p4sgd.sim.cluster.protocol import MEMORY_BITS

MODEL = [registers.model_address(engine) for engine in range(SMALL.engines)]
LINES = [registers.lines_address(engine, port) for engine in range(SMALL.engines) for port in range(SMALL.ports)]


def run_with(device, job, number, source, store, *, worker, address):
    """Do a run as job ``number`` with an address beyond the memory; what STATUS and counters of the workers say."""
    clients = configure(device.workers, job, number=number, resend_cycles=400, resends=5)
    clients[worker].write_pair(address, 1 << MEMORY_BITS + number)  # any bit beyond the memory
    for client in clients:
        client.write(registers.RUN, model_source=source.value, model_store=int(store))
    for client in clients:
        client.write(registers.CTRL, start=1)
    device.wait(0.004)
    assert all(client.read(registers.CTRL)["done"] for client in clients)
    status = [client.read(registers.STATUS) for client in clients]
    return status, [client.read_counters(registers.counters(job.config)) for client in clients]


@pytest.mark.rtl
@pytest.mark.slow
def test_every_error_voids_the_run_of_its_worker(rtl, seed):
    job = random_job(SMALL, 2, seed=seed, mini_batches=40)
    lines = job.settings.mini_batches * job.settings.micro_batches * job.settings.chunks
    lines *= job.settings.features.precision
    device = rtl(SMALL, 2, seed=seed, memory_stall=0.1)
    keep, zero, memory = ModelSource.KEEP, ModelSource.ZERO, ModelSource.MEMORY
    cases = [(address, keep, False) for address in (*LINES, registers.LABELS_ADDRESS)]
    cases += [(address, source, store) for address in MODEL for source, store in ((memory, False), (zero, True))]
    run_on(device, job)  # the weights on chip are those of this run
    for number, (address, source, store) in enumerate(cases):
        worker = number % 2
        status, counters = run_with(device, job, number + 1, source, store, worker=worker, address=address)
        assert [each["memory_error"] for each in status] == [1 - worker, worker], address[0].name
        at_the_end = store  # where all lines have been read
        assert (counters[worker]["ENGINE0_LINES"] == lines) == at_the_end, address[0].name
        assert status[1 - worker]["network_error"] != at_the_end, address[0].name
    weights, status, _ = run_on(device, job, number=len(cases) + 1)
    assert [got.tolist() for got in weights] == [wanted.tolist() for wanted in job.golden().weights]
    assert not any(each["memory_error"] for each in status)
