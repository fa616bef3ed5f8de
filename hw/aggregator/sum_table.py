"""The sums of every slot."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.aggregator.read_modify_write import ReadModifyWrite
from p4sgd.hw.net.packet import VALUES_LAYOUT
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.packet import VALUES

__all__ = ["SumTable"]


class SumTable(wiring.Component):
    """Adds values to the sums of a slot, or begins anew with them, once a cycle.

    Sums are 32-bit two's complement: clamped partials cannot wrap them, and what a faulty sender makes of them is
    defined all the same.

    Members
    -------
    address : In(job_bits + slot_bits)
        The slot; one in every cycle.
    values : In(VALUES_LAYOUT), begins : In(1), joins : In(1)
        `ReadModifyWrite.LATENCY` cycles later: what comes to it, whether its sums begin with them, whether they are
        added. With neither they count for nothing.
    sums : Out(VALUES_LAYOUT)
        Then, `LATENCY` cycles after the address.
    """

    LATENCY = ReadModifyWrite.LATENCY + 1

    def __init__(self, config: AggregatorConfig) -> None:
        self._depth = config.jobs * config.slots
        super().__init__(
            {
                "address": In(range(self._depth)),
                "values": In(VALUES_LAYOUT),
                "begins": In(1),
                "joins": In(1),
                "sums": Out(VALUES_LAYOUT),
            }
        )

    address: Signal
    values: Any
    begins: Signal
    joins: Signal
    sums: Any

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.words = words = ReadModifyWrite(VALUES_LAYOUT, self._depth)
        m.d.comb += [words.address.eq(self.address), words.write.eq(self.begins | self.joins)]
        for index in range(VALUES):
            known = Mux(self.begins, 0, words.old[index])
            m.d.comb += words.made[index].eq(known + Mux(words.write, self.values[index], 0))
        m.d.sync += self.sums.eq(words.made)
        return m
