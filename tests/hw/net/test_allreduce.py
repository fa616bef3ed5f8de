"""Endpoints around an aggregator, without cables: how many cycles the sums take."""

from itertools import pairwise

import cocotb
import pytest
from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from cocotb.triggers import ClockCycles
from support.aggregator import MAC, Host
from support.bench import run_bench, start
from support.signals import Cycles, drive, pulse
from support.streams import StreamSink, StreamSource, pack

from p4sgd.hw.aggregator.aggregator import Aggregator
from p4sgd.hw.bus.axi import Axi4LiteSignature, FrameBeat
from p4sgd.hw.bus.stream import connect_stream
from p4sgd.hw.net.endpoint import Endpoint
from p4sgd.hw.net.packet import VALUES_LAYOUT
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.job import Job, Member
from p4sgd.sim.cluster.cluster import Merge

WORKERS, SLOTS = 8, 64
CONFIG = AggregatorConfig(SLOTS, jobs=1, ports=WORKERS)
MEMBERS = tuple(Member(0x0250_0000_1000 + index, index) for index in range(WORKERS))
JOB = Job(9, MEMBERS, 0x0150_0000_0000, (1 << WORKERS) - 1)


class Ring(wiring.Component):
    """Endpoint i is behind port i of the aggregator; their frames come to it in turn, one a cycle."""

    partials: In(stream.Signature(VALUES_LAYOUT)).array(WORKERS)
    sums: Out(stream.Signature(VALUES_LAYOUT)).array(WORKERS)
    control: In(Axi4LiteSignature())  # of the aggregator
    join: In(1)  # pulse: all endpoints join the job
    # The last endpoint's frame leaves; it comes to the aggregator; an answer leaves that.
    sent: Out(1)
    asked: Out(1)
    answered: Out(1)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.merge = merge = Merge(FrameBeat, WORKERS)
        m.submodules.aggregator = aggregator = Aggregator(CONFIG)
        wiring.connect(m, wiring.flipped(self.control), aggregator.control)
        for index in range(WORKERS):
            m.submodules[f"endpoint{index}"] = endpoint = Endpoint(WorkerConfig(lanes=8, chunks=8, slots=SLOTS))
            connect_stream(m, wiring.flipped(self.partials[index]), endpoint.partials)
            connect_stream(m, endpoint.sums, wiring.flipped(self.sums[index]))
            connect_stream(m, endpoint.tx, merge.i[index])
            m.d.comb += [
                endpoint.rx.payload.eq(aggregator.tx.payload.beat),
                endpoint.rx.valid.eq(aggregator.tx.valid & aggregator.tx.payload.ports[index]),
                endpoint.job.eq(JOB.number),
                endpoint.shard.eq(index),
                endpoint.workers.eq(WORKERS),
                endpoint.local_mac.eq(MEMBERS[index].mac),
                endpoint.peer_mac.eq(MAC),
                endpoint.resend_cycles.eq(1 << 20),
                endpoint.join.eq(self.join),
                endpoint.join_round.eq(1),
            ]
        m.d.comb += [
            aggregator.rx.payload.beat.eq(merge.o.payload.item),
            aggregator.rx.payload.port.eq(merge.o.payload.port),
            aggregator.rx.valid.eq(merge.o.valid),
            merge.o.ready.eq(aggregator.rx.ready),
            aggregator.tx.ready.eq(1),
            self.sent.eq(merge.i[-1].valid & merge.i[-1].ready),
            self.asked.eq(merge.o.valid & (merge.o.payload.port == WORKERS - 1)),
            self.answered.eq(aggregator.tx.valid),
        ]
        return m


@cocotb.test()
async def takes_as_long_as_its_parts(dut):
    """Each part in turn, from the last worker's partial to the sums at all of them."""
    *sources, last = [StreamSource(dut, f"partials__{index}") for index in range(WORKERS)]
    sinks = [StreamSink(dut, f"sums__{index}") for index in range(WORKERS)]
    drive(dut, join=0)
    await start(dut)
    host = Host(dut, CONFIG)
    await host.set_mac()
    await host.begin(0, JOB, 1)
    await pulse(dut, "join")
    for source in sources:
        source.send([pack(range(8), 32)])
    await ClockCycles(dut.clk, 100)
    names = (f"partials__{WORKERS - 1}__valid", "sent", "asked", "answered", "sums__0__valid")
    parts = [Cycles(dut, name) for name in names]
    last.send([pack(range(8), 32)])
    for sink in sinks:
        assert list(await sink.receive(1)) == [pack((WORKERS * value for value in range(8)), 32)]
    to_merge, to_aggregator, to_answer, to_sums = (after[0] - before[0] for before, after in pairwise(parts))
    # The last frame waits for its turn on the one way into the aggregator, at most once round.
    assert Endpoint.TX_LATENCY <= to_merge < Endpoint.TX_LATENCY + WORKERS
    assert (to_aggregator, to_answer, to_sums) == (1, Aggregator.LATENCY, Endpoint.RX_LATENCY)


@pytest.mark.rtl
@pytest.mark.slow
def test_allreduce():
    run_bench(Ring(), __file__)
