"""Endpoints around an aggregator, without cables: sums of every cycle's partials, and how many cycles they take."""

from itertools import pairwise

import cocotb
import pytest
from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from cocotb.triggers import RisingEdge
from support.aggregator import MAC, Host
from support.axi import pulse
from support.bench import parameters, run_bench, start
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

JOB = 9
LOCAL, GROUP = 0x0250_0000_1000, 0x0150_0000_0000
SLOTS = 64


class Ring(wiring.Component):
    """Endpoint i is behind port i of the aggregator; their frames come to it in turn, one a cycle."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        super().__init__(
            {
                "partials": In(stream.Signature(VALUES_LAYOUT)).array(workers),
                "sums": Out(stream.Signature(VALUES_LAYOUT)).array(workers),
                "control": In(Axi4LiteSignature()),  # of the aggregator
                "join": In(1),  # pulse: all endpoints join the job
                # The last endpoint's frame leaves; it comes to the aggregator; an answer leaves that.
                "sent": Out(1),
                "asked": Out(1),
                "answered": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        config = WorkerConfig(engines=1, lanes=8, chunks=8, line_fifo_depth=64, slots=SLOTS, table_segments=16)
        m.submodules.merge = merge = Merge(FrameBeat, self._workers)
        m.submodules.aggregator = aggregator = Aggregator(AggregatorConfig(SLOTS, jobs=1, ports=self._workers))
        wiring.connect(m, wiring.flipped(self.control), aggregator.control)
        for index in range(self._workers):
            m.submodules[f"endpoint{index}"] = endpoint = Endpoint(config)
            connect_stream(m, wiring.flipped(self.partials[index]), endpoint.partials)
            connect_stream(m, endpoint.sums, wiring.flipped(self.sums[index]))
            connect_stream(m, endpoint.tx, merge.i[index])
            m.d.comb += [
                endpoint.rx.payload.eq(aggregator.tx.payload.beat),
                endpoint.rx.valid.eq(aggregator.tx.valid & aggregator.tx.payload.ports[index]),
                endpoint.job.eq(JOB),
                endpoint.shard.eq(index),
                endpoint.workers.eq(self._workers),
                endpoint.local_mac.eq(LOCAL + index),
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
            self.asked.eq(merge.o.valid & (merge.o.payload.port == self._workers - 1)),
            self.answered.eq(aggregator.tx.valid),
        ]
        return m


async def begin(dut):
    workers = parameters()["workers"]
    sources = [StreamSource(dut, f"partials__{index}") for index in range(workers)]
    sinks = [StreamSink(dut, f"sums__{index}") for index in range(workers)]
    dut.join.value = 0
    await start(dut)
    host = Host(dut, AggregatorConfig(SLOTS, jobs=1, ports=workers))
    await host.set_mac()
    members = tuple(Member(LOCAL + index, index) for index in range(workers))
    await host.begin(0, Job(JOB, members, GROUP, (1 << workers) - 1), 1)
    await pulse(dut, "join")
    return sources, sinks


@cocotb.test()
async def takes_as_long_as_its_parts(dut):
    """Each part in turn, from the last worker's partial to the sums at all of them."""
    workers = parameters()["workers"]
    sources, sinks = await begin(dut)
    for source in sources[:-1]:
        source.send([pack(range(8), 32)])
    for _ in range(100):
        await RisingEdge(dut.clk)
    sources[-1].send([pack(range(8), 32)])
    cycle, seen = 0, {}
    signals = {
        "given": getattr(dut, f"partials__{workers - 1}__valid"),
        "sent": dut.sent,
        "asked": dut.asked,
        "answered": dut.answered,
        "came": dut.sums__0__valid,
    }
    while "came" not in seen:
        await RisingEdge(dut.clk)
        cycle += 1
        for name, signal in signals.items():
            if signal.value:
                seen.setdefault(name, cycle)
    for sink in sinks:
        await sink.receive(1)
    to_merge, to_aggregator, to_answer, to_sums = (after - before for before, after in pairwise(seen.values()))
    # The last frame waits for its turn on the one way into the aggregator, at most once round.
    assert Endpoint.TX_LATENCY <= to_merge < Endpoint.TX_LATENCY + workers
    assert (to_aggregator, to_answer, to_sums) == (1, Aggregator.LATENCY, Endpoint.RX_LATENCY)


@pytest.mark.rtl
@pytest.mark.slow
def test_allreduce():
    run_bench(Ring(8), __file__, workers=8)
