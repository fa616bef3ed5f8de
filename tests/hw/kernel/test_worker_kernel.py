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
from support.bench import FPGA_CELLS, run_verilog_bench, start, worker_config
from support.foreign_axi import Buffer, HostMemory, RegisterWords, frame_sink, frame_source, send
from support.jobs import SMALL, collect, configure, random_job
from support.jobs import start as start_job

from p4sgd.build.generate.boards import BOARDS, map_memories
from p4sgd.host.devices.board_worker import AddressRegisters
from p4sgd.hw.kernel.verilog import worker_kernel
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.job import Job, Member

NUMBER = 5
BUILD_ID = 0x1234
MAC = 0x0250_0000_0001
GROUP = 0x0350_0000_0005


class KernelWorker:
    """A worker of a device; to be used in a function that ``cocotb.task.bridge`` runs.

    Its buffers are where they can be on a U280, each in a channel of its own, some of them above 4 GiB: so an address
    that lost a part, or is another port's, is in none. Banks are not in their last channel, where the labels may be.
    What writes addresses is XRT's driver.

    ``size`` is that of each buffer in bytes; ``stall`` the chance of a pause, in each cycle of each channel.
    """

    def __init__(self, dut, config, *, size=1 << 20, stall=0.0):
        self.config = config
        self._words = RegisterWords(dut, "s_axi_control", stall)
        *banks, labels = map_memories(config, BOARDS["u280"].hbm).channels
        channels = [*(bank[-2] for bank in banks), labels[0]]
        self._buffers = [
            Buffer(dut, f"m_axi_gmem{number}", stall, channel * BOARDS["u280"].hbm.channel_bytes, size)
            for number, channel in enumerate(channels)
        ]
        self._memories = [HostMemory(buffer) for buffer in self._buffers]
        write = self._words.write_register
        self._addresses = AddressRegisters(config, lambda bank: self._memories[bank].address, write)

    @property
    def strays(self):
        """What the kernel asked memory for that is not in the port's buffer."""
        return [stray for buffer in self._buffers for stray in buffer.strays]

    def read_register(self, offset):
        if offset in self._addresses:
            return self._addresses.read(offset)
        return self._words.read_register(offset)

    def write_register(self, offset, word):
        if offset in self._addresses:
            self._addresses.write(offset, word)
        else:
            self._words.write_register(offset, word)

    def write_memory(self, bank, address, data):
        self._memories[bank].write(address, data)

    def read_memory(self, bank, address, size):
        return self._memories[bank].read(address, size)


class Surroundings:
    """What is around the kernel: registers and memories of a worker, and the model of an aggregator.

    ``stall`` is the chance of a pause, in each cycle of each channel; ``frames`` counts frames of the kernel.
    """

    def __init__(self, dut, stall=0.0):
        self.config = worker_config()
        self.worker = KernelWorker(dut, self.config, stall=stall)
        self.frames = 0
        self._round = 1
        self._aggregator = Aggregator(self.config.slots, mac=MAC)
        cocotb.start_soon(self._aggregate(frame_source(dut, "axis_rx", stall), frame_sink(dut, "axis_tx", stall)))

    async def _aggregate(self, source, sink):
        while True:
            frame = bytes((await sink.recv()).tdata)
            self.frames += 1
            answer = self._aggregator.receive_frame(frame, 0)
            if answer is not None:
                send(source, answer.packet.to_bytes())

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


@pytest.mark.rtl
@pytest.mark.slow
def test_worker_kernel():
    """With several of all ports, some of them behind register slices."""
    kernel = worker_kernel(SMALL, build_id=BUILD_ID, slices=(0, 1, 3, 0, 2))
    run_verilog_bench(kernel.text + FPGA_CELLS.read_text(), kernel.top, __file__, scrambled=True, config=SMALL)
