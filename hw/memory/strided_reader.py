"""Reading memory in order, in groups of beats at a fixed distance."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus import axi4

__all__ = ["StridedReader"]

_GROUP_BITS = 4
_COUNT_BITS = 40


class StridedReader(wiring.Component):
    """Reads ``bursts`` groups of ``burst_beats`` consecutive beats that start ``stride_beats`` beats apart.

    With ``burst_beats == stride_beats`` the groups touch and are read as one sequence in long AXI bursts; else each
    group is a burst of its own. Bursts end at 4 KiB boundaries and are at most `burst_limit` beats long. A burst is
    requested only when the FIFO has room for all of it, so the ``r`` channel is never held up.

    A request takes 2 cycles to plan and issue, or 1 where it is for a group of a single beat that the next does not
    touch: so requests keep pace with data, one beat a cycle, for groups of any shape, but for a cycle or two where a
    4 KiB boundary cuts a group. Data pass the FIFO in 2 cycles.

    Parameters
    ----------
    data_bits
        Width of the bus.
    fifo_beats
        Depth of the FIFO, a power of two: beats that may be under way.
    burst_limit
        Most beats of a burst, at most half the FIFO, so that one burst arrives while the next is requested.

    Members
    -------
    memory : Out(AXI4, read channels)
    start : In(1)
        Pulse while not busy; the five inputs below are taken with it.
    base : In(64)
        Byte address of the first group, a multiple of 4096. The last beat is within the same 2^48 bytes.
    burst_beats, stride_beats : In(4)
        Beats of a group and between starts of groups; 1 ≤ burst_beats ≤ stride_beats ≤ 8.
    bursts : In(40)
        Groups to read, at least 1.
    data : Out(stream of unsigned(data_bits))
    busy : Out(1)
        From the cycle after ``start`` until the last beat has been taken.
    error : Out(1)
        Pulse: a response was not OKAY. The data go on all the same.
    """

    def __init__(self, data_bits: int, *, fifo_beats: int = 128, burst_limit: int = 64) -> None:
        if fifo_beats < 8 or fifo_beats & (fifo_beats - 1):
            raise ValueError(f"fifo_beats must be a power of two, at least 8, not {fifo_beats}")
        if not 1 <= burst_limit <= min(fifo_beats // 2, axi4.MAX_BEATS):
            raise ValueError(f"burst_limit must be 1 to {min(fifo_beats // 2, axi4.MAX_BEATS)}, not {burst_limit}")
        self._fifo_beats = fifo_beats
        self._burst_limit = burst_limit
        self._bus = axi4.Signature(data_bits=data_bits, write=False)
        super().__init__(
            {
                "memory": Out(self._bus),
                "start": In(1),
                "base": In(64),
                "burst_beats": In(_GROUP_BITS),
                "stride_beats": In(_GROUP_BITS),
                "bursts": In(_COUNT_BITS),
                "data": Out(stream.Signature(data_bits)),
                "busy": Out(1),
                "error": Out(1),
            }
        )

    memory: Any
    start: Signal
    base: Signal
    burst_beats: Signal
    stride_beats: Signal
    bursts: Signal
    data: stream.Interface
    busy: Signal
    error: Signal

    def elaborate(self, platform: object) -> Module:
        m = Module()
        size = self._bus.size
        page_bits = axi4.BOUNDARY.bit_length() - 1
        page_beats = 1 << (page_bits - size)

        # Addresses count in beats; what is above the carry width stays that of the base.
        address = Signal(axi4.ADDRESS_CARRY_BITS - size, reset_less=True)
        high = Signal(64 - axi4.ADDRESS_CARRY_BITS, reset_less=True)
        group_beats = Signal(_GROUP_BITS, reset_less=True)
        distance = Signal(_GROUP_BITS, reset_less=True)  # between starts of groups
        single = Signal(reset_less=True)  # groups are single beats and do not touch
        beats_left = Signal(_COUNT_BITS + _GROUP_BITS, reset_less=True)  # of this group
        to_next = Signal(_GROUP_BITS, reset_less=True)  # beats to the next group; of no meaning when all are one
        groups_left = Signal(_COUNT_BITS, reset_less=True)  # after this one
        multiplier = Signal(_GROUP_BITS, reset_less=True)
        addend = Signal(_COUNT_BITS + _GROUP_BITS, reset_less=True)

        # Room not yet promised to a burst.
        room = Signal(range(self._fifo_beats + 1), init=self._fifo_beats)
        beats = Signal(range(self._burst_limit + 1), reset_less=True)  # of the planned request
        advance = Signal(range(max(self._burst_limit, 8) + 1), reset_less=True)  # beats from it to the one after
        requested = self.memory.ar.valid & self.memory.ar.ready
        taken = self.data.valid & self.data.ready
        m.d.sync += room.eq(room - Mux(requested, beats, 0) + taken)

        generating = Signal()
        m.d.comb += self.busy.eq(generating | (room != self._fifo_beats))
        m.d.comb += [
            self.memory.ar.payload.addr.eq(Cat(Signal(size, name="zero"), address, high)),
            self.memory.ar.payload.len.eq(beats - 1),
            self.memory.ar.payload.size.eq(size),
            self.memory.ar.payload.burst.eq(axi4.BURST_INCR),
        ]

        to_boundary = page_beats - address[: page_bits - size]
        near = Signal(range(self._burst_limit + 1))
        m.d.comb += near.eq(Mux(to_boundary < self._burst_limit, to_boundary, self._burst_limit))
        with m.FSM():
            with m.State("IDLE"):
                m.d.sync += [
                    address.eq(self.base[size : axi4.ADDRESS_CARRY_BITS]),
                    high.eq(self.base[axi4.ADDRESS_CARRY_BITS :]),
                    group_beats.eq(self.burst_beats),
                    distance.eq(self.stride_beats),
                    to_next.eq(self.stride_beats),
                    single.eq((self.burst_beats == 1) & (self.stride_beats != 1)),
                    groups_left.eq(self.bursts - 1),
                    beats_left.eq(self.burst_beats),
                    multiplier.eq(self.burst_beats),
                    addend.eq(self.bursts),
                ]
                with m.If(self.start):
                    m.d.sync += generating.eq(1)
                    with m.If(self.burst_beats == self.stride_beats):
                        m.d.sync += [groups_left.eq(0), beats_left.eq(0)]
                        m.next = "MULTIPLY"
                    with m.Else():
                        m.next = "PLAN"
            with m.State("MULTIPLY"):  # all groups as one: beats_left = bursts · burst_beats
                m.d.sync += [multiplier.eq(multiplier >> 1), addend.eq(addend << 1)]
                with m.If(multiplier[0]):
                    m.d.sync += beats_left.eq(beats_left + addend)
                with m.If(multiplier == 0):
                    m.next = "PLAN"
            with m.State("PLAN"):
                m.d.sync += [beats.eq(near), advance.eq(near)]
                with m.If(beats_left <= near):
                    m.d.sync += [beats.eq(beats_left), advance.eq(to_next)]
                m.next = "REQUEST"
            with m.State("REQUEST"):
                # Once true it stays true: room grows only, until the request is taken.
                m.d.comb += self.memory.ar.valid.eq(room >= beats)
                with m.If(requested):
                    m.d.sync += [
                        address.eq(address + advance),
                        beats_left.eq(beats_left - beats),
                        to_next.eq(to_next - beats),
                    ]
                    with m.If(beats_left == beats):
                        m.d.sync += [groups_left.eq(groups_left - 1), beats_left.eq(group_beats), to_next.eq(distance)]
                    with m.If((beats_left == beats) & (groups_left == 0)):
                        m.d.sync += generating.eq(0)
                        m.next = "IDLE"
                    with m.Elif(~single):  # else the plan holds for the next group too
                        m.next = "PLAN"

        m.submodules.fifo = fifo = SyncFIFOBuffered(width=self._bus.data_bits, depth=self._fifo_beats)
        m.d.comb += [
            self.memory.r.ready.eq(1),
            fifo.w_data.eq(self.memory.r.payload.data),
            fifo.w_en.eq(self.memory.r.valid),
            self.data.payload.eq(fifo.r_data),
            self.data.valid.eq(fifo.r_rdy),
            fifo.r_en.eq(self.data.ready),
        ]
        m.d.sync += self.error.eq(self.memory.r.valid & (self.memory.r.payload.resp != axi4.RESPONSE_OKAY))
        return m
