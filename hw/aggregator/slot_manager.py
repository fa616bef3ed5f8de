"""What the host has done with slots: made fresh, or shown."""

from typing import Any

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.aggregator.admission import SlotOp, own_item
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.packet import ROUND_BITS

__all__ = ["SlotManager"]


class SlotManager(wiring.Component):
    """Begins and ends jobs, and asks for a slot's state.

    Before a job is served its slots are made fresh, one a cycle in which no frame comes in; other jobs do not notice.

    Members
    -------
    begin, end : In(1), place : In(job_bits), first_round : In(16)
        Pulses: begin or end the job in a place. A beginning is lost while another is under way.
    look : In(1), look_address : In(job_bits + slot_bits)
        Pulse: ask for the state of a slot.
    serving : Out(jobs)
        Jobs that are served.
    clearing : Out(1)
        Slots of one that begins are being made fresh.
    own : Out(stream of own_item(config))
    looked : Out(1)
        Pulse: the slot asked for is the item that is taken.
    """

    def __init__(self, config: AggregatorConfig) -> None:
        self._config = config
        super().__init__(
            {
                "begin": In(1),
                "end": In(1),
                "place": In(config.job_bits),
                "first_round": In(ROUND_BITS),
                "look": In(1),
                "look_address": In(config.job_bits + config.slot_bits),
                "serving": Out(config.jobs),
                "clearing": Out(1),
                "own": Out(stream.Signature(own_item(config))),
                "looked": Out(1),
            }
        )

    begin: Signal
    end: Signal
    place: Signal
    first_round: Signal
    look: Signal
    look_address: Signal
    serving: Signal
    clearing: Signal
    own: Any
    looked: Signal

    def elaborate(self, platform: object) -> Module:
        config = self._config
        m = Module()
        place = Signal(config.job_bits)
        slot = Signal(config.slot_bits)
        last_round = Signal(ROUND_BITS)
        wants_look = Signal()
        look_address = Signal.like(self.look_address)
        taken = self.own.valid & self.own.ready
        m.d.comb += [
            self.own.valid.eq(self.clearing | wants_look),
            self.own.payload.round.eq(last_round),
            self.looked.eq(taken & wants_look),
        ]
        with m.If(wants_look):
            m.d.comb += [self.own.payload.kind.eq(SlotOp.LOOK), self.own.payload.address.eq(look_address)]
        with m.Else():
            m.d.comb += [self.own.payload.kind.eq(SlotOp.RESET), self.own.payload.address.eq(Cat(slot, place))]
        with m.If(self.look):
            m.d.sync += [wants_look.eq(1), look_address.eq(self.look_address)]
        with m.Elif(self.looked):
            m.d.sync += wants_look.eq(0)
        with m.If(taken & ~wants_look):
            m.d.sync += slot.eq(slot + 1)
            with m.If(slot == config.slots - 1):
                m.d.sync += [self.clearing.eq(0), self.serving.bit_select(place, 1).eq(1)]
        with m.If(self.begin & ~self.clearing):
            m.d.sync += [
                self.clearing.eq(1),
                place.eq(self.place),
                slot.eq(0),
                last_round.eq(self.first_round - 1),
                self.serving.bit_select(self.place, 1).eq(0),
            ]
        with m.If(self.end):
            m.d.sync += self.serving.bit_select(self.place, 1).eq(0)
            with m.If(self.clearing & (self.place == place)):
                m.d.sync += self.clearing.eq(0)
        return m
