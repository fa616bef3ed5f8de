"""The aggregator's slots: memories of their states and sums, updated by one packet a cycle."""

from typing import Any

from amaranth.hdl import Const, Module, Mux, ShapeLike, Signal
from amaranth.lib import data
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from p4sgd.hw.aggregator.admission import OUTCOME, STATE, SlotOp, slot_item
from p4sgd.hw.net.packet import VALUES_LAYOUT
from p4sgd.hw.primitives import Component, hold, pipeline, ram_style
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.packet import ROUND_BITS, VALUES
from p4sgd.hw.spec.run import MAX_WORKERS

__all__ = ["ReadModifyWrite", "SlotTable", "SumTable"]


_RECENT = 5  # words still on their way to the memory when one is read: those read up to so many cycles before


class ReadModifyWrite(Component):
    """A memory that is read and written back in a pipeline: one word a cycle, each as all items before have left it.

    A word that was read less than six cycles before is taken from the pipeline (forwarding), so ``made`` must be given
    for every word that is read::

        address ──▶ memory ──▶ register ──▶ before ──▶ old ──▶ (outside) ──▶ made ─▶ memory
           0                      2           3         4                    4         5

    There are ``depth`` words of a ``shape``; all are 0 after reset.
    """

    LATENCY = 4

    def __init__(self, shape: ShapeLike, depth: int) -> None:
        self._shape = shape
        self._depth = depth
        ports = {
            "address": In(range(depth)),  # word to read; there is one in every cycle
            # The word, 3 cycles later, as the item before last left it: early, for comparisons that take a cycle.
            "before": Out(shape),
            "follows": Out(1),  # with `before`: the last item has the same word, so `before` may be out of date
            "old": Out(shape),  # the word, `LATENCY` cycles later
            "made": In(shape),  # its new value, in the same cycle as `old`
            "write": In(1),  # `made` is to be written. Without it `made` must equal `old`.
        }
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        memory: Memory = Memory(shape=self._shape, depth=self._depth, init=[], attrs=ram_style(self._depth))
        m.submodules.memory = memory
        read_port = memory.read_port()
        write_port = memory.write_port()
        addresses = pipeline(m, self.address, self.LATENCY + 1, "address", reset_less=True)
        read: Any = Signal(self._shape, reset_less=True)
        m.d.comb += read_port.addr.eq(self.address)
        m.d.sync += read.eq(read_port.data)

        # Bit i: the item i + 1 cycles before had the same word. The youngest such item wins, so its Mux comes last. The
        # item just before is not ready yet when `before` is chosen; `old` takes its word from `made` a cycle later.
        same = Signal(_RECENT, reset_less=True)
        m.d.sync += [bit.eq(self.address == addresses[1 + distance]) for distance, bit in enumerate(same)]
        same_as = pipeline(m, same, 2, "same", reset_less=True)
        lately = pipeline(m, self.made, _RECENT - 2, "lately", reset_less=True)
        recent: Any = read
        for distance in range(_RECENT, 1, -1):
            recent = Mux(same_as[1][distance - 1], lately[distance - 2], recent)
        m.d.sync += [hold(m, self.before).eq(recent), hold(m, self.old).eq(Mux(self.follows, self.made, self.before))]
        m.d.comb += self.follows.eq(same_as[2][0])

        m.d.sync += [
            hold(m, write_port.addr).eq(addresses[self.LATENCY]),
            hold(m, write_port.data).eq(self.made),
            write_port.en.eq(self.write),
        ]
        return m


_LEFT_BITS = MAX_WORKERS.bit_length()

_WORD = data.StructLayout(
    {
        "state": STATE,
        "fresh": 1,
        "partials_left": _LEFT_BITS,  # shards missing in `aggregated`, counted: a test for 0 is short; many if fresh
        "acks_left": _LEFT_BITS,
    }
)


class SlotTable(Component):
    """The aggregator's state machine of hw/net/README.md, one item a cycle.

    Comparing rounds and bitmaps and then updating them does not fit a cycle. So an item is compared a cycle early with
    the state that the item before last left, and with the last item; if that has the same slot, this counts instead::

        item ─▶ ReadModifyWrite ─▶ before ─▶ same round? next? has it?  ─▶ turn ─▶ outcome
          0                          3                                      4        5
    """

    OURS_LATENCY = 3
    LATENCY = ReadModifyWrite.LATENCY + 1

    def __init__(self, config: AggregatorConfig) -> None:
        self._config = config
        ports = {
            "item": In(slot_item(config)),  # one in every cycle
            # `OURS_LATENCY` cycles later: the item is a packet that has passed all other checks. Without it a packet
            # changes nothing.
            "ours": In(1),
            "outcome": Out(OUTCOME),  # `LATENCY` cycles after the item; all 0 unless it is such a packet
            "state": Out(STATE),  # in the same cycle: the slot's state before the item
        }
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.words = words = ReadModifyWrite(_WORD, self._config.jobs * self._config.slots)
        m.d.comb += words.address.eq(self.item.address)
        items = pipeline(m, self.item, ReadModifyWrite.LATENCY, "item", reset_less=True)
        last, turn = items[3], items[4]

        # An item compared with the item before it, for the case that both have the same slot. Rounds are serial numbers
        # (RFC 1982): the top bit of a difference modulo 2^16 says which of the two comes first.
        follows_same = Signal(reset_less=True)
        follows_next = Signal(reset_less=True)
        follows_early = Signal(reset_less=True)
        follows_shard = Signal(reset_less=True)
        ahead = Signal(ROUND_BITS)
        m.d.comb += ahead.eq(items[2].round - items[3].round)
        m.d.sync += [
            follows_same.eq(ahead == 0),
            follows_next.eq(ahead == 1),
            follows_early.eq(ahead[-1]),
            follows_shard.eq(items[2].shard == items[3].shard),
        ]

        # An item compared with its slot.
        same_round = Signal(reset_less=True)
        next_round = Signal(reset_less=True)
        early_round = Signal(reset_less=True)
        had_partial = Signal(reset_less=True)
        had_ack = Signal(reset_less=True)
        bit = Signal(MAX_WORKERS, reset_less=True)
        round_before = Signal(ROUND_BITS, reset_less=True)  # items[3].round - 1
        is_partial = Signal(reset_less=True)
        is_ack = Signal(reset_less=True)
        is_full = Signal(reset_less=True)
        is_clear = Signal(reset_less=True)
        resets = Signal(reset_less=True)
        begins = Signal()
        joins = Signal()
        passes = Signal()  # the parent's sums take the place of the rack's
        acknowledges = Signal()
        known = words.before.state
        last_bit = Const(1) << last.shard
        anew = words.follows & (begins | resets)  # the last item sets round and bitmaps: the state before is no guide
        m.d.sync += [
            round_before.eq(items[2].round - 1),
            same_round.eq(Mux(anew, follows_same, last.round == known.round)),
            next_round.eq(Mux(anew, follows_next, round_before == known.round)),
            early_round.eq(Mux(anew, follows_early, (last.round - known.round)[ROUND_BITS - 1])),
            had_partial.eq(
                Mux(
                    anew,
                    begins & follows_shard,
                    (known.aggregated & last_bit).any() | (words.follows & joins & follows_shard),
                )
            ),
            had_ack.eq(
                ~anew & ((known.acknowledged & last_bit).any() | (words.follows & acknowledges & follows_shard))
            ),
            bit.eq(last_bit),
            is_partial.eq(self.ours & (last.kind == SlotOp.PARTIAL)),
            is_ack.eq(self.ours & (last.kind == SlotOp.ACK)),
            is_full.eq(self.ours & (last.kind == SlotOp.FULL)),
            is_clear.eq(self.ours & (last.kind == SlotOp.CLEAR)),
            resets.eq(last.kind == SlotOp.RESET),
        ]

        # The update: nothing but 1-bit results of the comparisons, counts and ORs.
        old, made = words.old, words.made
        complete, over = old.partials_left == 0, old.acks_left == 0
        one_left, last_ack = old.partials_left == 1, old.acks_left == 1
        known_partial = is_partial & same_round & ~old.fresh
        known_ack, known_clear = (kind & same_round & complete for kind in (is_ack, is_clear))
        m.d.comb += [
            begins.eq(is_partial & next_round),
            joins.eq(known_partial & ~had_partial),
            # With a parent one bit is left when all is complete below: its own.
            passes.eq(is_full & same_round & one_left),
            acknowledges.eq((known_ack & ~had_ack) | (known_clear & last_ack)),
            made.eq(old),
            words.write.eq(begins | joins | passes | acknowledges | resets),
        ]
        with m.If(resets):
            m.d.comb += [made.fresh.eq(1), made.partials_left.eq(~0), made.state.aggregated.eq(0)]
        with m.If(begins):
            m.d.comb += [made.fresh.eq(0), made.partials_left.eq(turn.shards - 1), made.state.aggregated.eq(bit)]
        with m.If(begins | resets):
            m.d.comb += [
                made.state.round.eq(turn.round),
                made.acks_left.eq(turn.shards),
                made.state.acknowledged.eq(0),
            ]
        with m.If(joins | passes):
            m.d.comb += [
                made.partials_left.eq(old.partials_left - 1),
                made.state.aggregated.eq(old.state.aggregated | bit),
            ]
        with m.If(acknowledges):
            m.d.comb += [made.acks_left.eq(old.acks_left - 1), made.state.acknowledged.eq(old.state.acknowledged | bit)]

        # The shards that are missing after it: none, or with a parent only that.
        again, ack_again = known_partial & had_partial, known_ack & had_ack
        two_left, two_acks = old.partials_left == 2, old.acks_left == 2
        only_parent = turn.has_parent & ((begins & (turn.shards == 2)) | (joins & two_left) | (again & one_left))
        only_its_ack = turn.has_parent & ((acknowledges & two_acks) | (ack_again & last_ack))
        asks = only_parent | only_its_ack
        full = (begins & (turn.shards == 1)) | (joins & one_left) | passes | (again & complete)
        clear = (acknowledges & last_ack) | (ack_again & over) | (is_ack & early_round & ~old.fresh)
        duplicate = again | ack_again | (is_full & same_round & complete) | (known_clear & over)
        takes, answers = begins | joins | passes | acknowledges, full | clear | asks
        comes = is_partial | is_ack | is_full | is_clear
        m.d.sync += [
            hold(m, self.state).eq(old.state),
            self.outcome.replaces.eq(begins | passes),
            self.outcome.joins.eq(joins),
            self.outcome.acknowledges.eq(acknowledges),
            self.outcome.full.eq(full),
            self.outcome.clear.eq(clear),
            self.outcome.to_all.eq(takes),
            self.outcome.asks.eq(asks),
            self.outcome.duplicate.eq(duplicate & ~answers),
            self.outcome.stale.eq(comes & ~takes & ~answers & ~duplicate),
        ]
        return m


class SumTable(Component):
    """The sums of all slots, int32: values are added to those of a slot, or replace them, once a cycle.

    Clamped partials cannot overflow them; those of a faulty sender wrap.
    """

    LATENCY = ReadModifyWrite.LATENCY + 1

    def __init__(self, config: AggregatorConfig) -> None:
        self._depth = config.jobs * config.slots
        ports = {
            "address": In(range(self._depth)),  # the slot, with the job's place above it; one in every cycle
            # `ReadModifyWrite.LATENCY` cycles later: values that replace the sums or are added to them. With
            # neither `replaces` nor `joins` they are ignored.
            "values": In(VALUES_LAYOUT),
            "replaces": In(1),
            "joins": In(1),
            "sums": Out(VALUES_LAYOUT),  # the sums after that, `LATENCY` cycles after the address
        }
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.words = words = ReadModifyWrite(VALUES_LAYOUT, self._depth)
        m.d.comb += [words.address.eq(self.address), words.write.eq(self.replaces | self.joins)]
        for index in range(VALUES):
            known = Mux(self.replaces, 0, words.old[index])
            m.d.comb += words.made[index].eq(known + Mux(words.write, self.values[index], 0))
        m.d.sync += hold(m, self.sums).eq(words.made)
        return m
