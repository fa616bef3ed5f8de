"""The aggregator's kernel, with workers behind both of its ports, answers as the model does; all ends are not ours."""

import random
from collections import Counter

import cocotb
import pytest
from cocotb.triggers import ClockCycles
from support.aggregator import MAC, Host
from support.bench import run_verilog_bench, start
from support.foreign_axi import RegisterWords, axi, frame_sink, frame_source

from p4sgd.hw.kernel.verilog import aggregator_kernel
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.job import Job, Member
from p4sgd.hw.spec.packet import Packet, PacketType
from p4sgd.sim.network.aggregator import Aggregator

CONFIG = AggregatorConfig(slots=8, jobs=2, ports=2)
WORKERS = tuple(Member(0x0200_0000_0010 + shard, shard % 2) for shard in range(5))
JOB = Job(3, WORKERS, 0x0350_0000_0003, 0b11)


def packet(kind, shard, slot, number):
    values = tuple(random.randrange(-(1 << 28), 1 << 28) for _ in range(8)) if kind is PacketType.PARTIAL else (0,) * 8
    return Packet(
        type=kind,
        job=JOB.number,
        slot=slot,
        round=number,
        shard=shard,
        workers=len(WORKERS),
        bitmap=1 << shard,
        values=values,
        destination=MAC,
        source=WORKERS[shard].mac,
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
            step = [packet(kind, shard, slot, number) for shard in range(len(WORKERS)) for slot in range(CONFIG.slots)]
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


@pytest.mark.rtl
def test_aggregator_kernel():
    kernel = aggregator_kernel(CONFIG)
    run_verilog_bench(kernel.text, kernel.top, __file__)
