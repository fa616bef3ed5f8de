"""Strided reads of memory: groups of beats at a fixed distance, in order."""

from amaranth.hdl import Cat, Module, Mux, Signal, signed
from amaranth.lib import stream
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.axi import ADDRESS_CARRY_BITS, BOUNDARY, BURST_INCR, MAX_BEATS, RESPONSE_OKAY, Axi4Signature
from p4sgd.hw.primitives import Component
from p4sgd.hw.spec.run import COUNT_BITS

__all__ = ["OUTSTANDING_READS", "SHORT_BEATS", "StridedReader"]


OUTSTANDING_READS = 128
"""Requests under way at a memory port: a beat a cycle by single beats, if memory answers within 400 ns. AMD declares as
many for its HBM (github.com/Xilinx/Vitis-Tutorials, Hardware_Acceleration/Feature_Tutorials/07-using-hbm)."""

SHORT_BEATS = 16
"""Beats of a short burst: the longest that AXI3 has, which the ports of AMD's HBM speak (PG276)."""

_GROUP_BEATS = 8  # maximum number of beats of a group

_GROUP_BITS = _GROUP_BEATS.bit_length()


class StridedReader(Component):
    """Reads ``bursts`` groups of ``burst_beats`` consecutive beats that start ``stride_beats`` beats apart.

    For lines, a group is the planes of a chunk that the run uses, the stride the stored planes. If both are equal, the
    groups are read as one sequence, in AXI bursts of ``burst_limit`` beats, `SHORT_BEATS` or 4 KiB, whichever is less.
    Else each group is a burst, or two where a 4 KiB boundary cuts it. A burst is requested only while fewer than
    ``outstanding`` are under way and the FIFO has room for the longest of the run, so the ``r`` channel never waits.

    Requests keep up with a beat a cycle for groups of any shape, but where a boundary cuts one. Beats pass the FIFO in
    2 cycles. Lines by cycles in simulation, for 1, 2 and 4 of 8 stored planes, by latency and by the number of reads
    that memory takes at a time (``tests/bench/bench_memory.py``)::

                        16 reads            64 reads           128 reads
        200 ns     0.31  0.62  1.00    1.00  1.00  1.00    1.00  1.00  1.00
        300 ns     0.21  0.42  0.81    0.84  1.00  1.00    1.00  1.00  1.00
        400 ns     0.16  0.31  0.62    0.63  1.00  1.00    1.00  1.00  1.00

    ``fifo_beats``, the depth of the FIFO, and ``burst_limit`` are powers of two; the limit is at least 8, the longest
    group, and at most half the FIFO, so that one burst arrives while the next is requested.
    """

    def __init__(
        self, data_bits: int, *, fifo_beats: int = 128, burst_limit: int = 64, outstanding: int = OUTSTANDING_READS
    ) -> None:
        if fifo_beats < 2 * _GROUP_BEATS or fifo_beats & (fifo_beats - 1):
            raise ValueError(f"fifo_beats must be a power of two, at least {2 * _GROUP_BEATS}, not {fifo_beats}")
        most = min(fifo_beats // 2, MAX_BEATS)
        if not _GROUP_BEATS <= burst_limit <= most or burst_limit & (burst_limit - 1):
            raise ValueError(f"burst_limit must be a power of two, {_GROUP_BEATS} to {most}, not {burst_limit}")
        if outstanding < 4:
            raise ValueError(f"outstanding must be at least 4, not {outstanding}")
        self._fifo_beats = fifo_beats
        self._burst_limit = burst_limit
        self._outstanding = outstanding
        self._bus = Axi4Signature(data_bits=data_bits, write=False)
        ports = {
            "memory": Out(self._bus),  # read channels of the memory port
            "start": In(1),  # Pulse while not busy: begin. Samples the settings below.
            # Byte address of the first group, a multiple of 4096. All beats must be within the same 2^48 bytes.
            "base": In(64),
            # Beats of a group, and from the start of one to the start of the next; 1 ≤ burst_beats ≤ stride_beats ≤
            # 8.
            "burst_beats": In(_GROUP_BITS),
            "stride_beats": In(_GROUP_BITS),
            "bursts": In(COUNT_BITS),  # groups to read, at least 1
            "short": In(1),  # adjacent groups are read in bursts of `SHORT_BEATS` at most
            "stop": In(1),  # Pulse: request no more. Beats that were requested still come, and must be taken.
            "data": Out(stream.Signature(data_bits)),  # the beats
            "busy": Out(1),  # high from the cycle after `start` until 2 cycles after the last beat was taken
            "error": Out(1),  # Pulse: a response was not OKAY. Its data are passed on all the same.
        }
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        size = self._bus.size
        page_bits = BOUNDARY.bit_length() - 1 - size
        # Adjacent groups are read as blocks. A page of 4 KiB is a multiple of a block, so no boundary cuts one.
        block = min(self._burst_limit, 1 << page_bits)
        short_block = min(block, SHORT_BEATS)
        bits, short_bits = (beats.bit_length() - 1 for beats in (block, short_block))

        # Addresses count beats. The high bits stay those of the base, which keeps the carry chain short.
        address = Signal(ADDRESS_CARRY_BITS - size, reset_less=True)
        high = Signal(64 - ADDRESS_CARRY_BITS, reset_less=True)
        group_beats = Signal(range(block + 1), reset_less=True)
        distance = Signal(range(block + 1), reset_less=True)  # between starts of groups
        touching = Signal(reset_less=True)
        short = Signal(reset_less=True)
        last_beats = Signal(range(block + 1), reset_less=True)  # of the last block
        single = Signal(reset_less=True)  # groups are single beats and not adjacent
        # Room for the next request and, with single beats, one just before; `more_needed` also for one meanwhile.
        needed = Signal(range(block + 1), reset_less=True)
        more_needed = Signal(range(2 * block + 1), reset_less=True)
        crosses = Signal(_GROUP_BEATS, reset_less=True)  # bit i: a group that starts i beats into the last 8 is cut
        multiplier = Signal(_GROUP_BITS, reset_less=True)
        addend = Signal(COUNT_BITS + _GROUP_BITS, reset_less=True)
        # First the beats of the run less one, multiplied bit by bit. From DIVIDE on the groups after the next one, so
        # negative if the current one is the last.
        left = Signal(signed(COUNT_BITS + _GROUP_BITS + 1), reset_less=True)
        last = left[-1]

        # The current group, and the request planned for it, or for its part before a boundary.
        beats_left = Signal(range(block + 1), reset_less=True)
        to_next = Signal(range(block + 1), reset_less=True)  # beats to the next group
        beats = Signal(range(block + 1), reset_less=True)
        advance = Signal(range(block + 1), reset_less=True)  # beats from the request to the one after
        ends_group = Signal(reset_less=True)
        requested = self.memory.ar.valid & self.memory.ar.ready

        # Room in the FIFO that no burst has been promised; the comparison is a cycle late, hence `more_needed`.
        room = Signal(range(self._fifo_beats + 1), init=self._fifo_beats)
        freed = Signal()
        enough = Signal()
        m.d.sync += [
            freed.eq(self.data.valid & self.data.ready),
            room.eq(room - Mux(requested, beats, 0) + freed),
            enough.eq(room >= Mux(requested, more_needed, needed)),
        ]

        # Requests that may still be made: two, or three if one is made in the cycle of the comparison, are enough.
        reads = Signal(range(self._outstanding + 1), init=self._outstanding)
        may_ask = Signal()
        ended = self.memory.r.valid & self.memory.r.payload.last
        m.d.sync += [reads.eq(reads - requested + ended), may_ask.eq(reads >= Mux(requested, 3, 2))]

        m.d.comb += [
            self.memory.ar.payload.addr.eq(Cat(Signal(size, name="zero"), address, high)),
            self.memory.ar.payload.len.eq(beats - 1),
            self.memory.ar.payload.size.eq(size),
            self.memory.ar.payload.burst.eq(BURST_INCR),
        ]

        # Only a group that starts in the last 8 beats of a page can be cut.
        place = address[: _GROUP_BITS - 1]
        to_boundary = _GROUP_BEATS - place
        cut = address[_GROUP_BITS - 1 : page_bits].all() & crosses.bit_select(place, 1)
        asks = Signal()  # request in the next cycle, if there is room
        m.d.sync += self.memory.ar.valid.eq((self.memory.ar.valid & ~self.memory.ar.ready) | (asks & enough & may_ask))
        stopping = Signal()
        with m.If(self.stop):
            m.d.sync += stopping.eq(1)
        with m.FSM():
            with m.State("IDLE"):
                m.d.sync += stopping.eq(0)
                m.d.sync += [
                    address.eq(self.base[size:ADDRESS_CARRY_BITS]),
                    high.eq(self.base[ADDRESS_CARRY_BITS:]),
                    group_beats.eq(self.burst_beats),
                    distance.eq(self.stride_beats),
                    touching.eq(self.burst_beats == self.stride_beats),
                    short.eq(self.short),
                    multiplier.eq(self.burst_beats),
                    addend.eq(self.bursts),
                    left.eq(-1),
                    self.busy.eq(self.start | (room != self._fifo_beats)),
                ]
                with m.If(self.start):
                    m.next = "SHAPE"
            with m.State("SHAPE"):
                m.d.sync += single.eq((group_beats == 1) & ~touching)
                with m.If(touching):
                    m.d.sync += [each.eq(Mux(short, short_block, block)) for each in (group_beats, distance)]
                with m.Else():
                    m.d.sync += multiplier.eq(1)
                m.next = "MULTIPLY"
                with m.If(stopping):
                    m.next = "IDLE"
            with m.State("MULTIPLY"):
                m.d.sync += [multiplier.eq(multiplier >> 1), addend.eq(addend << 1)]
                with m.If(multiplier[0]):
                    m.d.sync += left.eq(left + addend)
                with m.If(stopping):
                    m.next = "IDLE"
                with m.Elif(multiplier == 0):
                    m.next = "DIVIDE"
            with m.State("DIVIDE"):
                m.d.sync += [
                    left.eq(Mux(touching, Mux(short, left >> short_bits, left >> bits), left) - 1),
                    last_beats.eq(Mux(short, left[:short_bits], left[:bits]) + 1),
                    beats_left.eq(group_beats),
                    to_next.eq(distance),
                    needed.eq(Mux(single, 2, group_beats)),
                    more_needed.eq(Mux(single, 3, 2 * group_beats)),
                    crosses.eq(Cat(~touching & (start + group_beats > _GROUP_BEATS) for start in range(_GROUP_BEATS))),
                ]
                m.next = "PLAN"
            with m.State("PLAN"):
                m.d.sync += [
                    beats.eq(Mux(touching & last, last_beats, beats_left)),
                    advance.eq(to_next),
                    ends_group.eq(~cut),
                ]
                m.d.comb += asks.eq(~stopping)
                with m.If(cut):
                    m.d.sync += [beats.eq(to_boundary), advance.eq(to_boundary)]
                m.next = "REQUEST"
            with m.State("REQUEST"):
                # The plan of a single beat is good for the next one too.
                m.d.comb += asks.eq((~self.memory.ar.valid | (single & ~last)) & ~stopping)
                with m.If(requested):
                    m.d.sync += [
                        address.eq(address + advance),
                        beats_left.eq(beats_left - beats),
                        to_next.eq(to_next - beats),
                    ]
                    with m.If(ends_group):
                        m.d.sync += [left.eq(left - 1), beats_left.eq(group_beats), to_next.eq(distance)]
                    with m.If(ends_group & last):
                        m.next = "IDLE"
                    with m.Elif(~single):
                        m.next = "PLAN"
                with m.If(stopping & (requested | ~self.memory.ar.valid)):  # AXI forbids withdrawing a request
                    m.next = "IDLE"

        m.submodules.fifo = fifo = SyncFIFOBuffered(width=self._bus.data_bits, depth=self._fifo_beats)
        m.d.comb += [
            self.memory.r.ready.eq(1),
            fifo.w_data.eq(self.memory.r.payload.data),
            fifo.w_en.eq(self.memory.r.valid),
            self.data.payload.eq(fifo.r_data),
            self.data.valid.eq(fifo.r_rdy),
            fifo.r_en.eq(self.data.ready),
        ]
        m.d.sync += self.error.eq(self.memory.r.valid & (self.memory.r.payload.resp != RESPONSE_OKAY))
        return m
