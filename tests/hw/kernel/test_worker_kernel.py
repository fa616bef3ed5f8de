"""The worker's kernel, as the board gets it, trains, whatever happens before: everything at its ports is not ours.

The text is that of the generated Verilog, registers and memories are AXI ends of cocotbext-axi, and the aggregator is
the model in Python at the end of the streams. Registers begin with random values, for those that no reset reaches.
"""

import random

import cocotb
import numpy as np
import pytest
from cocotb.task import bridge
from cocotb.triggers import ClockCycles
from support.aggregator_model import Aggregator
from support.bench import run_verilog_bench, start, worker_config
from support.foreign_axi import axi, frame_sink, frame_source
from support.jobs import SMALL, collect, configure, random_job
from support.jobs import start as start_job
from support.kernel_worker import KernelWorker
from support.mutation import field_mask

from p4sgd.hw.kernel.verilog import worker_kernel
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.job import Job, Member
from p4sgd.hw.spec.packet import FRAME_BYTES

NUMBER = 5
BUILD_ID = 0x1234
MAC = 0x0250_0000_0001
GROUP = 0x0350_0000_0005
TINY = WorkerConfig.tiny()


def junk_like(frame):
    """A frame that is nearly the given one, and must be dropped: a runt, too long, noise, or with a wrong field."""
    mask = field_mask(random.choice(("destination", "ethertype", "version", "job", "workers")))
    places = [bit for bit in range(8 * FRAME_BYTES) if mask >> bit & 1]
    wrong = int.from_bytes(frame, "little") ^ 1 << random.choice(places)
    runt, long = frame[: random.randrange(1, FRAME_BYTES)], frame + random.randbytes(random.randrange(1, 128))
    return random.choice([runt, long, random.randbytes(FRAME_BYTES), wrong.to_bytes(FRAME_BYTES, "little")])


class Surroundings:
    """What is around the kernel: registers and memories of a worker, and the model of an aggregator.

    ``stall`` is the chance of a pause, in each cycle of each channel; ``junk`` that of a frame that must be dropped,
    before each answer. ``frames`` counts frames that the kernel has sent, ``junk`` those sent to it that it must drop.
    """

    def __init__(self, dut, stall=0.0, junk=0.0):
        self.config = worker_config()
        self.worker = KernelWorker(dut, self.config, stall=stall)
        self.frames = self.junk = 0
        self._round = 1
        self._aggregator = Aggregator(self.config.slots, mac=MAC)
        cocotb.start_soon(self._aggregate(frame_source(dut, "axis_rx", stall), frame_sink(dut, "axis_tx", stall), junk))

    async def _aggregate(self, source, sink, junk):
        while True:
            frame = bytes((await sink.recv()).tdata)
            self.frames += 1
            answer = self._aggregator.receive_frame(frame, 0)
            if answer is not None:
                answered = answer.packet.to_bytes()
                while random.random() < junk:
                    self.junk += 1
                    source.send_nowait(axi.AxiStreamFrame(junk_like(answered)))
                source.send_nowait(axi.AxiStreamFrame(answered))

    def job(self, **sizes):
        return random_job(self.config, 1, seed=random.getrandbits(32), **sizes)

    def join(self, job):
        """Write memories and registers for a job, which starts anew on both sides; returns the registers."""
        self._round += 1000
        # The address is that of jobs.configure.
        members = (Member(0x02000000 | NUMBER << 8, 0),)
        self._aggregator.begin(0, Job(NUMBER, members, GROUP, 1), self._round)
        settings = {"aggregator_mac": MAC, "resend_cycles": 20_000, "first_round": self._round % (1 << 16)}
        return configure([self.worker], job, number=NUMBER, **settings)

    def finish(self, client):
        """Wait for the end of all runs that were started."""
        done = 0
        for _ in range(10_000):
            control = client.read(registers.CTRL)
            done |= control["done"]
            if control["idle"]:  # a cycle before it is done
                done |= client.read(registers.CTRL)["done"]
                assert (done, control["start"]) == (1, 0)
                assert client.read(registers.CTRL)["done"] == 0, "done is cleared by reading"
                return
        raise AssertionError("the run never ends")

    async def trains(self, job, runs=1):
        """Train, and compare with the golden model; returns the counters of the last run."""

        @bridge
        def drive():
            clients = self.join(job)
            assert clients[0].read(registers.CTRL) == {"start": 0, "done": 0, "idle": 1, "ready": 0}
            for run in range(runs):
                start_job(clients, job, first=run == 0, last=run == runs - 1)
                self.finish(clients[0])
            return collect([self.worker], clients, job)

        return self.check(job, runs, *await drive())

    def check(self, job, runs, weights, status, counters):
        expected = job.golden(runs)
        np.testing.assert_array_equal(weights[0], expected.weights[0])
        assert status[0] == dict.fromkeys(status[0], 0) | vars(expected.flags[0])
        return counters[0]


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.3, 0.9])
async def trains(dut, stall):
    around = Surroundings(dut, stall)
    await start(dut)

    @bridge
    def look():
        identity = registers.identity(around.config, BUILD_ID)
        for register in registers.worker_map(around.config):
            if register.name in identity:
                assert around.worker.read_register(register.offset) == identity[register.name], register.name
        # What XRT writes and reads of interrupts that are not there (UG1393).
        for offset in (0x4, 0x8, 0xC):
            around.worker.write_register(offset, 1)
            assert around.worker.read_register(offset) == 0

    await look()
    counters = await around.trains(around.job(), runs=1 if stall > 0.5 else 2)
    assert counters["PACKETS_DROPPED"] == 0
    assert not around.worker.strays


@cocotb.test()
async def trains_after_resets(dut):
    """At any time within a run; other kernels and the shell are reset with it, as on a board."""
    around = Surroundings(dut, 0.2)
    await start(dut)
    for _ in range(6):
        job = around.job()

        @bridge
        def begin(job=job):
            start_job(around.join(job), job)

        await begin()
        await ClockCycles(dut.ap_clk, random.choice([random.randrange(100), random.randrange(3000)]))
        dut.ap_rst_n.value = 0
        await ClockCycles(dut.ap_clk, random.randint(8, 24))
        dut.ap_rst_n.value = 1
        await ClockCycles(dut.ap_clk, random.randint(8, 24))
    await around.trains(around.job(), runs=2)
    assert not around.worker.strays


@cocotb.test()
async def trains_after_memory_errors(dut):
    """Of every memory in turn, which answers SLVERR to reads, or to the weights that a run stores.

    The run ends, says so, and is void; the next is not.
    """
    around = Surroundings(dut, 0.1)
    await start(dut)
    config = around.config
    beyond = 1 << 20  # of a buffer of KernelWorker
    banks = [registers.lines_address(engine, port) for engine in range(config.engines) for port in range(config.ports)]
    model = registers.model_address(0)
    # A run that is not the first keeps its weights, so of the model's memory it only writes.
    for address, first in (*((read, True) for read in (*banks, registers.LABELS_ADDRESS, model)), (model, False)):
        job = around.job()

        @bridge
        def fails(job=job, address=address, first=first):
            clients = around.join(job)
            clients[0].write_pair(address, beyond)
            start_job(clients, job, first=first)
            around.finish(clients[0])
            return clients[0].read(registers.STATUS)

        strays = len(around.worker.strays)
        assert (await fails())["memory_error"] == 1
        assert len(around.worker.strays) > strays
        await around.trains(around.job())


@cocotb.test()
async def start_while_running_is_another_run(dut):
    """It waits for the end of the first, as ap_ctrl_hs has it."""
    around = Surroundings(dut)
    await start(dut)
    job = around.job(mini_batches=4)

    @bridge
    def drive():
        clients = around.join(job)
        start_job(clients, job)
        while clients[0].read(registers.CTRL)["start"]:
            pass
        clients[0].write(registers.CTRL, start=1)
        assert clients[0].read(registers.CTRL) == {"start": 1, "done": 0, "idle": 0, "ready": 0}
        around.finish(clients[0])
        return collect([around.worker], clients, job)

    counters = around.check(job, 2, *await drive())  # the second begins with the weights that the first has stored
    assert counters["PACKETS_RESENT"] == 0
    assert around.frames == 2 * counters["PACKETS_SENT"] > 0


@cocotb.test()
async def junk_is_dropped_and_counted(dut):
    around = Surroundings(dut, 0.1, junk=0.6)
    await start(dut)
    while not around.junk:  # a short job may happen to meet none
        counters = await around.trains(around.job())
    dropped = sum(count for name, count in counters.items() if name.startswith("DROPPED_"))
    assert dropped == counters["PACKETS_DROPPED"] == around.junk


@pytest.mark.rtl
@pytest.mark.slow
@pytest.mark.parametrize(("config", "slices"), [(TINY, ()), (SMALL, (0, 1, 3, 0, 2))], ids=["tiny", "small-sliced"])
def test_worker_kernel(config, slices):
    kernel = worker_kernel(config, build_id=BUILD_ID, slices=slices)
    run_verilog_bench(kernel.text, kernel.top, __file__, scrambled=True, config=config)
