"""The aggregator's kernel, with workers behind both of its ports, answers as the model does; all ends are not ours."""

import random
from collections import Counter

import cocotb
import pytest
from cocotb.triggers import ClockCycles, RisingEdge, with_timeout
from support.aggregator import MAC, Host
from support.aggregator_model import Aggregator
from support.bench import run_verilog_bench, start
from support.foreign_axi import RegisterWords, axi, frame_sink, frame_source

from p4sgd.hw.kernel.verilog import aggregator_kernel
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.job import Job, Member
from p4sgd.hw.spec.packet import Packet, PacketType

CONFIG = AggregatorConfig(slots=8, jobs=2, ports=2)
WORKERS = tuple(Member(0x0200_0000_0010 + shard, shard % 2) for shard in range(5))
JOB = Job(3, WORKERS, 0x0350_0000_0003, 0b11)


def packet(job, kind, shard, number, values, slot=0):
    """With these values if it is a PARTIAL."""
    return Packet(
        type=kind,
        job=job.number,
        slot=slot,
        round=number,
        shard=shard,
        workers=len(job.members),
        bitmap=1 << shard,
        values=tuple(values) if kind is PacketType.PARTIAL else (0,) * 8,
        destination=MAC,
        source=job.members[shard].mac,
    )


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.5])
async def answers_as_the_model(dut, stall):
    """Each step's packets come in any order, at both ports at once: what they are answered does not depend on it."""
    sources = [frame_source(dut, f"axis_rx{port}", stall) for port in range(2)]
    sinks = [frame_sink(dut, f"axis_tx{port}", stall * random.random()) for port in range(2)]
    await start(dut)
    host = Host(dut, CONFIG, master=RegisterWords(dut, "s_axi_control", stall))
    await host.set_mac()
    await host.begin(1, JOB, 1)
    model = Aggregator(CONFIG.slots, jobs=CONFIG.jobs, mac=MAC)
    model.begin(1, JOB, 1)
    for number in range(1, 4):
        for kind in (PacketType.PARTIAL, PacketType.ACK):
            step = [
                packet(JOB, kind, shard, number, (random.randrange(-(1 << 28), 1 << 28) for _ in range(8)), slot)
                for shard in range(len(WORKERS))
                for slot in range(CONFIG.slots)
            ]
            again = random.sample(step, 10)  # answered to the sender alone
            for packets in (step, again):
                random.shuffle(packets)
                expected = [Counter(), Counter()]
                for sent in packets:
                    port = WORKERS[sent.shard].port
                    sources[port].send_nowait(axi.AxiStreamFrame(sent.to_bytes()))
                    answer = model.receive(sent, port)
                    for leaves in range(2):
                        if answer is not None and answer.ports >> leaves & 1:
                            expected[leaves][answer.packet.to_bytes()] += 1
                for sink, frames in zip(sinks, expected, strict=True):
                    got = Counter([bytes((await sink.recv()).tdata) for _ in range(frames.total())])
                    assert got == frames
    await ClockCycles(dut.ap_clk, 100)
    assert all(sink.empty() for sink in sinks), "a frame came twice"
    counters = await host.counters()
    assert counters == model.counters() | {"OVERRUNS": 0}


FLOODING = Job(4, (Member(0x0200_0000_0020, 0),), 0x0350_0000_0004, 0b01)
"""A job of one worker, alone behind port 0; every repetition of its PARTIAL is answered."""

VICTIM = Job(5, (Member(0x0200_0000_0030, 1), Member(0x0200_0000_0031, 1)), 0x0350_0000_0005, 0b10)


class Port:
    """When beats pass a port, and how many have."""

    def __init__(self, dut, name):
        self.beats = []
        self._clock = dut.ap_clk
        self._passes = [getattr(dut, f"{name}_{signal}") for signal in ("tvalid", "tready")]
        cocotb.start_soon(self._run())

    async def _run(self):
        cycle = 0
        while True:
            await RisingEdge(self._clock)
            cycle += 1
            if all(signal.value for signal in self._passes):
                self.beats.append(cycle)


@cocotb.test()
@cocotb.parametrize(flood=["answered", "dropped"])
async def a_flood_at_one_port_costs_the_other_a_turn(dut, flood):
    """One port brings a frame in every cycle that is taken; the job behind the other waits a turn for each of its own.

    A turn is a cycle, as a frame is a beat. Frames of the flood are its job's, or claim to be of the other job.
    """
    source, sink = frame_source(dut, "axis_rx1", 0.0), frame_sink(dut, "axis_tx1", 0.0)
    dut.axis_rx0_tvalid.value, dut.axis_tx0_tready.value = 0, 1
    await start(dut)
    host = Host(dut, CONFIG, master=RegisterWords(dut, "s_axi_control", 0.0))
    await host.set_mac()
    await host.begin(0, FLOODING, 1)
    await host.begin(1, VICTIM, 1)
    ports = {name: Port(dut, f"axis_{name}") for name in ("rx0", "tx0", "rx1", "tx1")}
    model = Aggregator(CONFIG.slots, jobs=CONFIG.jobs, mac=MAC)
    model.begin(1, VICTIM, 1)

    async def latencies(numbers):
        """Cycles from the last of two frames, one behind the other, to their answer."""
        found = []
        for number in numbers:
            for kind in (PacketType.PARTIAL, PacketType.ACK):
                for shard in range(2):
                    sent = packet(VICTIM, kind, shard, number, [number * (shard + 1)] * 8)
                    source.send_nowait(axi.AxiStreamFrame(sent.to_bytes()))
                    answer = model.receive(sent, 1)
                frame = await with_timeout(sink.recv(), 4000, "ns")
                assert bytes(frame.tdata) == answer.packet.to_bytes()
                await ClockCycles(dut.ap_clk, random.randint(1, 20))
                found.append(ports["tx1"].beats[-1] - ports["rx1"].beats[-1])
        return found

    (alone,) = set(await latencies(range(1, 30)))
    repeats = packet(FLOODING, PacketType.PARTIAL, 0, 1, [1] * 8)
    claims = packet(VICTIM, PacketType.PARTIAL, 0, 30, [30] * 8)
    dut.axis_rx0_tdata.value = int.from_bytes((repeats if flood == "answered" else claims).to_bytes(), "little")
    dut.axis_rx0_tkeep.value, dut.axis_rx0_tlast.value, dut.axis_rx0_tvalid.value = (1 << 64) - 1, 1, 1
    await ClockCycles(dut.ap_clk, 100)
    begun = len(ports["rx0"].beats)
    beside = await latencies(range(30, 130))
    meanwhile = ports["rx0"].beats[begun:]
    dut.axis_rx0_tvalid.value = 0
    await ClockCycles(dut.ap_clk, 100)
    # One beat of the flood may go before either of the two.
    assert alone <= min(beside)
    assert max(beside) <= alone + 2
    assert max(beside) > alone, "it is no flood"
    # What the flood does not get is what the other takes: four frames of each round.
    assert meanwhile[-1] - meanwhile[0] + 1 - len(meanwhile) <= 4 * 100
    counters = await host.counters()
    flooded = len(ports["rx0"].beats)
    assert counters["OVERRUNS"] == 0
    assert counters["JOB1_ACCEPTED"] == 4 * 129
    assert len(ports["tx0"].beats) == counters["JOB0_ACCEPTED"] == (flooded if flood == "answered" else 0)
    assert counters["DROPPED_SOURCE"] == counters["JOB1_DROPPED"] == (0 if flood == "answered" else flooded)
    assert sink.empty()


@pytest.mark.slow
@pytest.mark.rtl
def test_aggregator_kernel():
    kernel = aggregator_kernel(CONFIG)
    run_verilog_bench(kernel.text, kernel.top, __file__)
