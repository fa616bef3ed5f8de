"""The host's access to slots: jobs begin and end, and the state of a slot is shown."""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out

from p4sgd.hw.aggregator.admission import SlotOp, own_item
from p4sgd.hw.primitives import Component
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.packet import ROUND_BITS

__all__ = ["SlotManager"]


class SlotManager(Component):
    """A sequencer that begins and ends jobs, and reads the state of a slot.

    A job is served once all its slots are fresh. They are reset one by one, in cycles in which no frame comes in, so
    other jobs are not disturbed.
    """

    def __init__(self, config: AggregatorConfig) -> None:
        self._config = config
        ports = {
            # Pulses: begin the job in this place with this round, or end it. `begin` is ignored while another job's
            # slots are being reset.
            "begin": In(1),
            "end": In(1),
            "place": In(config.job_bits),
            "first_round": In(ROUND_BITS),
            # Pulse: read the state of the slot with this address (slot number, with the job's place above it).
            "look": In(1),
            "look_address": In(config.job_bits + config.slot_bits),
            "serving": Out(config.jobs),  # bitmap of the jobs that are served
            "clearing": Out(1),  # the slots of a job are being reset
            "own": Out(stream.Signature(own_item(config))),  # operations on slots, for `Admission`
            "looked": Out(1),  # pulse: the item taken in this cycle is the slot to be read
        }
        super().__init__(ports)

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
        # Reading goes first: it takes one item, a job that begins thousands.
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
