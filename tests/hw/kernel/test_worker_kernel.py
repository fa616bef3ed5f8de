"""The worker's kernel, as the board gets it, trains: everything at its ports is not ours.

The text is that of the generated Verilog, registers and memories are AXI ends of cocotbext-axi, and the aggregator is
the model in Python at the end of the streams.
"""

import random

import cocotb
import numpy as np
import pytest
from cocotb.task import bridge
from support.bench import parameters, run_verilog_bench, start
from support.foreign_axi import axi, frame_sink, frame_source
from support.jobs import SMALL, collect, configure, random_job
from support.jobs import start as start_job
from support.kernel_worker import KernelWorker

from p4sgd.hw.kernel.verilog import worker_kernel
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.job import Job, Member
from p4sgd.sim.network.aggregator import Aggregator

NUMBER = 5
BUILD_ID = 0x1234
MAC = 0x0250_0000_0001
GROUP = 0x0350_0000_0005
TINY = WorkerConfig.tiny()


async def aggregate(dut, aggregator, stall):
    """Have a model answer what the kernel sends."""
    source, sink = frame_source(dut, "axis_rx", stall), frame_sink(dut, "axis_tx", stall)
    while True:
        frame = await sink.recv()
        answer = aggregator.receive_frame(bytes(frame.tdata), 0)
        if answer is not None:
            source.send_nowait(axi.AxiStreamFrame(answer.packet.to_bytes()))


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.3])
async def trains(dut, stall):
    config = WorkerConfig(**parameters()["config"])
    job = random_job(config, 1, seed=random.getrandbits(32))
    worker = KernelWorker(dut, config, stall=stall)
    aggregator = Aggregator(config.slots, mac=MAC)
    # The address is that of jobs.configure.
    aggregator.begin(0, Job(NUMBER, (Member(0x02000000 | NUMBER << 8, 0),), GROUP, 1))
    cocotb.start_soon(aggregate(dut, aggregator, stall))
    await start(dut)

    @bridge
    def drive():
        identity = registers.identity(config, BUILD_ID)
        for register in registers.worker_map(config):
            if register.name in identity:
                assert worker.read_register(register.offset) == identity[register.name], register.name
        # What XRT writes and reads of interrupts that are not there (UG1393).
        for offset in (0x4, 0x8, 0xC):
            worker.write_register(offset, 1)
            assert worker.read_register(offset) == 0
        clients = configure([worker], job, number=NUMBER, aggregator_mac=MAC, resend_cycles=20_000)
        assert clients[0].read(registers.CTRL) == {"start": 0, "done": 0, "idle": 1, "ready": 0}
        for run in range(2):
            start_job(clients, job, first=run == 0, last=run == 1)
            for _ in range(100_000):
                control = clients[0].read(registers.CTRL)
                if control["done"]:
                    break
            assert control == {"start": 0, "done": 1, "idle": 1, "ready": control["ready"]}
            assert clients[0].read(registers.CTRL)["done"] == 0, "done is cleared by reading"
        return collect([worker], clients, job)

    weights, status, counters = await drive()
    assert not worker.strays
    expected = job.golden(2)
    np.testing.assert_array_equal(weights[0], expected.weights[0])
    assert {name: bool(value) for name, value in status[0].items() if name in vars(expected.flags[0])} == vars(
        expected.flags[0]
    )
    assert not any(status[0][name] for name in ("memory_error", "network_error", "aborted", "not_joined", "refused"))
    assert counters[0]["PACKETS_DROPPED"] == 0


@pytest.mark.rtl
@pytest.mark.slow
@pytest.mark.parametrize(("config", "slices"), [(TINY, ()), (SMALL, (0, 1, 3, 0, 2))], ids=["tiny", "small-sliced"])
def test_worker_kernel(config, slices):
    kernel = worker_kernel(config, build_id=BUILD_ID, slices=slices)
    run_verilog_bench(kernel.text, kernel.top, __file__, config=vars(config))
