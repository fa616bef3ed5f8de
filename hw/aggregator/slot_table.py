"""What is known of every slot, and what comes of a packet."""

from typing import Any

from amaranth.hdl import Const, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.aggregator.ports import OUTCOME, STATE, Kind, slot_item
from p4sgd.hw.aggregator.read_modify_write import ReadModifyWrite
from p4sgd.hw.delay import delayed
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.packet import ROUND_BITS
from p4sgd.hw.spec.run import MAX_WORKERS

__all__ = ["SlotTable"]

_LEFT_BITS = MAX_WORKERS.bit_length()

_WORD = data.StructLayout(
    {
        "state": STATE,
        "fresh": 1,
        "partials_left": _LEFT_BITS,  # shards that are not in `aggregated`; in a fresh slot anything but 0
        "acks_left": _LEFT_BITS,
    }
)


class SlotTable(wiring.Component):
    """The aggregator's state machine of hw/net/README.md, for an item a cycle.

    Comparisons are made before an item's turn, with its slot as the item before last left it; what the last item makes
    of the slot is known by then and corrects them::

        item ─▶ ReadModifyWrite ─▶ before ─▶ same round? next? has it?  ─▶ turn ─▶ outcome
          0                          3                                      4        5

    Members
    -------
    item : In(slot_item(config))
        One in every cycle.
    ours : In(1)
        `OURS_LATENCY` cycles later: a PARTIAL or ACK has passed all other checks. Else it only looks.
    outcome : Out(OUTCOME)
        `LATENCY` cycles after the item; all 0 unless it is a PARTIAL or ACK that was ``ours``.
    state : Out(STATE)
        With it: the slot before the item.
    """

    OURS_LATENCY = 3
    LATENCY = ReadModifyWrite.LATENCY + 1

    def __init__(self, config: AggregatorConfig) -> None:
        self._config = config
        super().__init__({"item": In(slot_item(config)), "ours": In(1), "outcome": Out(OUTCOME), "state": Out(STATE)})

    item: Any
    ours: Signal
    outcome: Any
    state: Any

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.words = words = ReadModifyWrite(_WORD, self._config.jobs * self._config.slots)
        m.d.comb += words.address.eq(self.item.address)
        items = delayed(m, self.item, ReadModifyWrite.LATENCY, "item", reset_less=True)
        last, turn = items[3], items[4]

        # Of an item to the one before it, if both have the same slot.
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

        # Of an item to its slot.
        same_round = Signal(reset_less=True)
        next_round = Signal(reset_less=True)
        early_round = Signal(reset_less=True)
        had_partial = Signal(reset_less=True)
        had_ack = Signal(reset_less=True)
        bit = Signal(MAX_WORKERS, reset_less=True)
        round_before = Signal(ROUND_BITS, reset_less=True)  # items[3].round - 1
        is_partial = Signal(reset_less=True)
        is_ack = Signal(reset_less=True)
        resets = Signal(reset_less=True)
        begins = Signal()
        joins = Signal()
        acknowledges = Signal()
        known = words.before.state
        last_bit = Const(1) << last.shard
        anew = words.follows & (begins | resets)
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
            is_partial.eq(self.ours & (last.kind == Kind.PARTIAL)),
            is_ack.eq(self.ours & (last.kind == Kind.ACK)),
            resets.eq(last.kind == Kind.RESET),
        ]

        # Its turn.
        old, made = words.old, words.made
        complete = old.partials_left == 0
        over = old.acks_left == 0
        known_partial = is_partial & same_round & ~old.fresh
        known_ack = is_ack & same_round & complete
        m.d.comb += [
            begins.eq(is_partial & next_round),
            joins.eq(known_partial & ~had_partial),
            acknowledges.eq(known_ack & ~had_ack),
            made.eq(old),
            words.write.eq(begins | joins | acknowledges | resets),
        ]
        with m.If(resets):
            m.d.comb += [made.fresh.eq(1), made.partials_left.eq(~0), made.state.aggregated.eq(0)]
        with m.If(begins):
            m.d.comb += [made.fresh.eq(0), made.partials_left.eq(turn.workers - 1), made.state.aggregated.eq(bit)]
        with m.If(begins | resets):
            m.d.comb += [
                made.state.round.eq(turn.round),
                made.acks_left.eq(turn.workers),
                made.state.acknowledged.eq(0),
            ]
        with m.If(joins):
            m.d.comb += [
                made.partials_left.eq(old.partials_left - 1),
                made.state.aggregated.eq(old.state.aggregated | bit),
            ]
        with m.If(acknowledges):
            m.d.comb += [made.acks_left.eq(old.acks_left - 1), made.state.acknowledged.eq(old.state.acknowledged | bit)]

        full = Signal()
        clear = Signal()
        duplicate = Signal()
        m.d.comb += [
            full.eq(
                (begins & (turn.workers == 1))
                | (joins & (old.partials_left == 1))
                | (known_partial & had_partial & complete)
            ),
            clear.eq(
                (acknowledges & (old.acks_left == 1))
                | (known_ack & had_ack & over)
                | (is_ack & early_round & ~old.fresh)
            ),
            duplicate.eq((known_partial & had_partial & ~complete) | (known_ack & had_ack & ~over)),
        ]
        m.d.sync += [
            self.state.eq(old.state),
            self.outcome.begins.eq(begins),
            self.outcome.joins.eq(joins),
            self.outcome.acknowledges.eq(acknowledges),
            self.outcome.full.eq(full),
            self.outcome.clear.eq(clear),
            self.outcome.to_all.eq(begins | joins | acknowledges),
            self.outcome.duplicate.eq(duplicate),
            self.outcome.stale.eq((is_partial | is_ack) & ~(begins | joins | acknowledges | full | clear | duplicate)),
        ]
        return m
