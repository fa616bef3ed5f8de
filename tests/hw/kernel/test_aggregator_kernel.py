"""The aggregator's kernel: jobs behind both of its ports, one of which is flooded; all ends are not ours."""

import random

import cocotb
import pytest
from cocotb.triggers import ClockCycles, with_timeout
from support.aggregator import MAC, Host, packet_of
from support.aggregator_model import Aggregator
from support.bench import run_verilog_bench, start
from support.foreign_axi import RegisterWords, frame_sink, frame_source, send
from support.signals import Cycles

from p4sgd.hw.kernel.verilog import aggregator_kernel
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.job import Job, Member
from p4sgd.hw.spec.packet import PacketType

CONFIG = AggregatorConfig(slots=8, jobs=2, ports=2)
WORKERS = tuple(Member(0x0200_0000_0010 + shard, shard % 2) for shard in range(5))
JOB = Job(3, WORKERS, 0x0350_0000_0003, 0b11)
FLOODING = Job(4, (Member(0x0200_0000_0020, 0),), 0x0350_0000_0004, 0b01)
"""A job of one worker, alone behind port 0; every repetition of its PARTIAL is answered."""
VICTIM = Job(5, (Member(0x0200_0000_0030, 1), Member(0x0200_0000_0031, 1)), 0x0350_0000_0005, 0b10)
WORK = (PacketType.PARTIAL, PacketType.ACK)


async def begin(dut, *jobs, stall=0.0):
    """Have jobs served, the last one by the model too."""
    await start(dut)
    host = Host(dut, CONFIG, master=RegisterWords(dut, "s_axi_control", stall))
    await host.set_mac()
    model = Aggregator(CONFIG.slots, jobs=CONFIG.jobs, mac=MAC)
    for place, job in enumerate(jobs, CONFIG.jobs - len(jobs)):
        await host.begin(place, job, 1)
    model.begin(place, job, 1)
    return host, model


@cocotb.test()
@cocotb.parametrize(flood=["answered", "dropped"])
async def a_flood_at_one_port_costs_the_other_a_turn(dut, flood):
    """One port brings a frame in every cycle that is taken; the job behind the other waits a turn for each of its own.

    A turn is a cycle, as a frame is a beat. Frames of the flood are its job's, or claim to be of the other job.
    """
    source, sink = frame_source(dut, "axis_rx1", 0.0), frame_sink(dut, "axis_tx1", 0.0)
    dut.axis_rx0_tvalid.value, dut.axis_tx0_tready.value = 0, 1
    host, model = await begin(dut, FLOODING, VICTIM)
    rx0, tx0, rx1, tx1 = (
        Cycles(dut, f"axis_{name}_tvalid", f"axis_{name}_tready", clock=dut.ap_clk)
        for name in ("rx0", "tx0", "rx1", "tx1")
    )

    async def latencies(numbers):
        """Cycles from the last of two frames, one behind the other, to their answer."""
        found = []
        for number in numbers:
            for kind in WORK:
                for shard in range(2):
                    values = [number * (shard + 1) * (kind is PacketType.PARTIAL)] * 8
                    sent = packet_of(VICTIM, kind, shard, 0, number, values)
                    send(source, sent.to_bytes())
                    answer = model.receive(sent, 1)
                frame = await with_timeout(sink.recv(), 4000, "ns")
                assert bytes(frame.tdata) == answer.packet.to_bytes()
                await ClockCycles(dut.ap_clk, random.randint(1, 20))
                found.append(tx1[-1] - rx1[-1])
        return found

    (alone,) = set(await latencies(range(1, 30)))
    number, job = (1, FLOODING) if flood == "answered" else (30, VICTIM)
    frame = packet_of(job, PacketType.PARTIAL, 0, 0, number, [number] * 8).to_bytes()
    dut.axis_rx0_tdata.value = int.from_bytes(frame, "little")
    dut.axis_rx0_tkeep.value, dut.axis_rx0_tlast.value, dut.axis_rx0_tvalid.value = (1 << 64) - 1, 1, 1
    await ClockCycles(dut.ap_clk, 100)
    begun = len(rx0)
    beside = await latencies(range(30, 130))
    meanwhile = rx0[begun:]
    dut.axis_rx0_tvalid.value = 0
    await ClockCycles(dut.ap_clk, 100)
    # One beat of the flood may go before either of the two.
    assert alone <= min(beside)
    assert alone < max(beside) <= alone + 2
    # What the flood does not get is what the other takes: four frames of each round.
    assert meanwhile[-1] - meanwhile[0] + 1 - len(meanwhile) <= 4 * 100
    counters = await host.counters()
    assert counters["OVERRUNS"] == 0
    assert counters["JOB1_ACCEPTED"] == 4 * 129
    assert len(tx0) == counters["JOB0_ACCEPTED"] == (len(rx0) if flood == "answered" else 0)
    assert counters["DROPPED_SOURCE"] == counters["JOB1_DROPPED"] == (0 if flood == "answered" else len(rx0))
    assert sink.empty()


@pytest.mark.slow
@pytest.mark.rtl
def test_aggregator_kernel():
    kernel = aggregator_kernel(CONFIG)
    run_verilog_bench(kernel.text, kernel.top, __file__, scrambled=True)
