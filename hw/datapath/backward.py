"""Backward pass: from deltas and kept lines to exact gradients."""

from typing import Any

from amaranth.hdl import Array, Cat, Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.stream import ValidSignature
from p4sgd.hw.datapath.lines import AbsentChunks, count_micro_batches, kept_layout
from p4sgd.hw.dsp import Base, DspAdder
from p4sgd.hw.primitives import KEEP, Component, add, pipeline
from p4sgd.hw.spec.config import BANKS, WorkerConfig
from p4sgd.hw.spec.fixed import DELTA, MAX_PRECISION
from p4sgd.hw.spec.timing import TABLE_ENTRIES

__all__ = ["GRADIENT_BITS", "Gradient", "GradientPort", "SubsetSums"]

_TABLES = 2
"""Tables of a lane, which together have the deltas of all banks."""

_SUBSET = BANKS // _TABLES
"""Deltas of a table."""

_SUM = signed(DELTA.width + (_SUBSET - 1).bit_length())
"""A sum of some of them."""

_LANES_OF_COPY = 8
"""Lanes that read tables by one copy of the bit that selects the half, which otherwise had thousands of loads."""

GRADIENT_BITS = DELTA.width + (BANKS - 1).bit_length() + MAX_PRECISION
"""Signed width of an exact gradient: a sum of 8 products of a delta and an 8-bit feature."""


class GradientPort(wiring.Signature):
    """Exact gradients of a chunk of a micro-batch, seen from their source. No back-pressure."""

    def __init__(self, config: WorkerConfig) -> None:
        ports = {
            "valid": Out(1),  # the other members are valid in this cycle
            "chunk": Out(config.chunk_bits),  # number of the chunk
            "final": Out(1),  # the micro-batch is the last of its mini-batch
            "last": Out(1),  # the chunk is the last of its micro-batch
            "values": Out(data.ArrayLayout(signed(GRADIENT_BITS), config.lanes)),  # one exact gradient for each lane
        }
        super().__init__(ports)


class SubsetSums(Component):
    """Sums of all subsets of each four deltas, for all tables at once, a subset a cycle.

    Subsets come in the order of a Gray code, so each is the one before with a delta more or less::

        deltas ──▶ one of four, or its negative ──▶ + ──▶ sum
                                                    ▲      │
                                                    └──────┘

    A walk takes `TABLE_ENTRIES` cycles. The first subset, the empty one, is written after a reset and at the end of
    each walk, for the next: so the second comes a cycle after ``start``. Two walkers would need half the cycles, but
    memories of their own in every lane and a choice between these: 5,376 LUTs, 31 % of an engine, to save up to 5
    cycles of micro-batches with fewer than 16 lines, as updates of a chunk are 11 apart.
    """

    def __init__(self) -> None:
        ports = {
            "start": In(1),  # begin a walk; not while ``walks``
            "deltas": In(data.ArrayLayout(signed(DELTA.width), BANKS)),  # stable from ``start`` until ``last``
            "walks": Out(1),
            "nearly": Out(1),  # the next cycle is that of the last subset
            "last": Out(1),  # the last subset of a walk
            # A subset, bit i for delta i of each table, and its sum of each.
            "valid": Out(1),
            "subset": Out(_SUBSET),
            "sums": Out(data.ArrayLayout(_SUM, _TABLES)),
        }
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        index = Signal(range(TABLE_ENTRIES))
        following = Signal.like(index)
        changing = Signal(range(_SUBSET))  # the bit that changes next: the trailing ones of the index
        leaves = Signal()
        m.d.comb += [
            self.walks.eq(index != 0),
            self.nearly.eq(index == TABLE_ENTRIES - 2),
            self.last.eq(index == TABLE_ENTRIES - 1),
            following.eq(index + 1),
            leaves.eq(self.subset.bit_select(changing, 1)),
        ]
        steps = self.start | self.walks
        valid = Signal(init=1)
        m.d.sync += valid.eq(steps)
        m.d.comb += self.valid.eq(valid)
        with m.If(steps):
            m.d.sync += [
                index.eq(following),
                changing.eq(Mux(~following[0], 0, Mux(~following[1], 1, Mux(~following[2], 2, 3)))),
                self.subset.eq(following ^ following >> 1),
            ]
        for table in range(_TABLES):
            delta = Signal(signed(DELTA.width), name=f"delta{table}")
            m.d.comb += delta.eq(Array(self.deltas[table * _SUBSET + bit] for bit in range(_SUBSET))[changing])
            with m.If(self.last):
                m.d.sync += self.sums[table].eq(0)
            with m.Elif(steps):
                m.d.sync += self.sums[table].eq(add(self.sums[table], delta ^ leaves.as_signed(), carry=leaves))
        return m


class Gradient(Component):
    """Exact gradients ``G_j = Σ_b δ_b · q[b, j]`` of deltas δ and features q, one plane of one chunk a cycle::

        deltas ──▶ FIFO ──▶ SubsetSums ──▶ two tables of sums of four deltas each      of every lane j, written alike
                                               │
        line ──▶ its bits (b, j) of the lane ──▶ a, b
                                               ▼
                                             DspAdder: Horner's rule, G = 2·G ± (a + b)
                                               │ after the last line of a chunk
                                               ▼
                                           gradients

    The deltas of a micro-batch are the same for all its lines, so sums are looked up. Tables have two halves: one is
    read while the other is filled with the deltas of the next micro-batch.

    Throughput is a line a cycle. A plane without a line takes a cycle, too, since an adder in a DSP slice can double
    its sum, but not more: to add to four times would take 43 LUTs a lane, 16 % of an engine, and save a tenth of the
    time of sparse data (hw/ZEROS.md). Gradients are at least 2 cycles apart, those of the same chunk ``spacing``
    cycles, 3 or more, because the model cannot take them sooner; starts of micro-batches `TABLE_ENTRIES` cycles. The
    first line is taken `BEGIN_LATENCY` cycles after the deltas came; gradients come `LATENCY` cycles after the last
    line of their chunk. In the last micro-batch of a mini-batch, whose update makes all weights final, chunks that are
    not listed have gradients of 0, each of which takes two cycles.
    """

    BEGIN_LATENCY = TABLE_ENTRIES
    LATENCY = 1 + DspAdder.LATENCY

    def __init__(self, config: WorkerConfig, *, spacing: int) -> None:
        self._config = config
        self._spacing = spacing
        ports = {
            # Kept lines and their places, in the order of the forward pass.
            "lines": In(stream.Signature(kept_layout(config))),
            # One `DELTA` for each sample of a micro-batch. At most `WorkerConfig.in_flight` micro-batches may wait for
            # their tables.
            "deltas": In(ValidSignature(data.ArrayLayout(signed(DELTA.width), BANKS))),
            # Settings of the run, stable. `micro_batches` is the number in a mini-batch.
            "signed": In(1),
            "micro_batches": In(16),
            "start": In(1),  # pulse before a run, while idle
            "gradients": Out(GradientPort(config)),  # gradients, chunk by chunk
            "began": Out(1),  # pulse: the deltas of a micro-batch have left the FIFO
            "busy": Out(1),  # the tables of a micro-batch are filled and its last line has not been taken
            "took": Out(1),  # a line is being taken
            # That line, or the next if none is being taken, is the first or last of its micro-batch.
            "first_line": Out(1),
            "last_line": Out(1),
        }
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        config = self._config
        m = Module()
        # The next line, and what is known of it by the time it is there.
        here: Any = Signal(kept_layout(config), reset_less=True)
        place = here.place
        valid = Signal()
        load = Signal()
        micro_batch_done = Signal()
        m.d.comb += [
            self.lines.ready.eq(~valid | self.took),
            load.eq(self.lines.valid & self.lines.ready),
            self.first_line.eq(place.first_plane & place.first_chunk),
            self.last_line.eq(place.last_plane & place.last_chunk),
            micro_batch_done.eq(self.took & self.last_line),
        ]
        with m.If(self.lines.ready):
            m.d.sync += valid.eq(self.lines.valid)
        with m.If(load):
            m.d.sync += here.eq(self.lines.payload)

        final = Signal(reset_less=True)  # the micro-batch is the last of its mini-batch
        count_micro_batches(m, self.micro_batches, self.start, micro_batch_done, final)

        # Deltas wait here for their tables. The FIFO has room for all micro-batches in flight.
        m.submodules.waiting = waiting = SyncFIFO(width=BANKS * DELTA.width, depth=config.in_flight)
        m.submodules.subset_sums = subset_sums = SubsetSums()
        filled = Signal(2)  # a half of the tables is filled, or both; and a line is left of its micro-batch
        fills_half = Signal()
        reads_half = Signal()
        m.d.comb += [
            waiting.w_data.eq(self.deltas.payload),
            waiting.w_en.eq(self.deltas.valid),
            waiting.r_en.eq(subset_sums.last),
            self.began.eq(subset_sums.last),
            subset_sums.deltas.eq(waiting.r_data),
            subset_sums.start.eq(waiting.r_rdy & ~subset_sums.walks & ~filled[1]),
            self.busy.eq(filled[0]),
        ]
        m.d.sync += [fills_half.eq(fills_half ^ subset_sums.last), reads_half.eq(reads_half ^ micro_batch_done)]
        with m.If(subset_sums.nearly & ~micro_batch_done):  # the last subset is written before a line can read it
            m.d.sync += filled.eq(Cat(1, filled[0]))
        with m.Elif(micro_batch_done & ~subset_sums.nearly):
            m.d.sync += filled.eq(filled[1])

        # Chunks that are not listed are passed over in the last micro-batch, each as a line of its own.
        m.submodules.absent_chunks = absent = AbsentChunks(config)
        passes, passed_over, may_complete = Signal(), Signal(), Signal()
        must_double, doubles = Signal(), Signal()  # there is a plane without a line before this one
        arriving = self.lines.payload.place
        m.d.comb += [
            absent.start.eq(self.start),
            absent.load.eq(load & arriving.first_plane),
            absent.chunk.eq(arriving.chunk),
            absent.last.eq(arriving.last_chunk),
            absent.pass_over.eq(passed_over),
            passes.eq(absent.absent & final),
        ]
        goes = valid & self.busy
        m.d.comb += [
            passed_over.eq(goes & passes & may_complete),
            doubles.eq(goes & must_double),
            self.took.eq(goes & ~passes & ~must_double & (~place.last_plane | may_complete)),
        ]
        with m.If(load):
            m.d.sync += must_double.eq(arriving.skips)
        with m.Elif(doubles):
            m.d.sync += must_double.eq(0)

        # Gradients of the same chunk are kept apart. Chunks come in ascending order, so those that complete from now on
        # have at least the number `completed` until the next micro-batch. What it was `spacing` cycles ago bounds all
        # that have completed since, as no more than one micro-batch can have ended.
        completed: Any = Signal(data.StructLayout({"chunk": config.chunk_bits, "odd": 1}))
        odd = Signal(reset_less=True)  # the number of the line's micro-batch
        chunk = Mux(passes, completed.chunk, place.chunk)
        completes = (self.took & place.last_plane) | passed_over
        with m.If(self.start):
            m.d.sync += [completed.eq(0), odd.eq(1)]
        with m.Else():
            with m.If(micro_batch_done):
                m.d.sync += [completed.chunk.eq(0), completed.odd.eq(~completed.odd)]
            with m.Elif(completes):
                m.d.sync += completed.chunk.eq(chunk + 1)
            with m.If(load & arriving.first_plane & arriving.first_chunk):
                m.d.sync += odd.eq(~odd)
        earlier = pipeline(m, completed, self._spacing - 2, "completed", reset_less=True)[-1]
        arriving_odd = odd ^ (arriving.first_plane & arriving.first_chunk)
        stays_apart, arrives_apart = (
            (micro_batch == earlier.odd) | (number < earlier.chunk)
            for micro_batch, number in ((odd, place.chunk), (arriving_odd, arriving.chunk))
        )
        m.d.sync += may_complete.eq(Mux(load, arrives_apart, stays_apart) & ~completes)

        # What the adders do with a line, and the line, in registers because of their fan-out.
        line = Signal(config.line_bits, reset_less=True)
        copies = range(-(-config.lanes // _LANES_OF_COPY))
        halves = [Signal(name=f"half{copy}", reset_less=True, attrs=KEEP) for copy in copies]
        base = Signal(Base, reset_less=True)
        negative = Signal(reset_less=True)
        clear = Signal(reset_less=True)
        begins = passed_over | (self.took & place.first_plane)
        m.d.sync += [
            line.eq(here.line),
            *(half.eq(reads_half) for half in halves),
            base.eq(Mux(begins, Base.ZERO, Mux(self.took | doubles, Base.TWICE, Base.SUM))),
            negative.eq(self.took & place.top & self.signed),
            clear.eq(~self.took),
        ]

        # The place of a chunk, delayed to match its gradient.
        entry: Any = Signal(data.StructLayout({"final": 1, "last_chunk": 1, "chunk": config.chunk_bits}), name="place0")
        m.d.comb += [
            entry.final.eq(final),
            entry.last_chunk.eq(place.last_chunk & ~passes),
            entry.chunk.eq(chunk),
        ]
        now = pipeline(m, entry, self.LATENCY, "place", reset_less=True)[-1]
        m.d.comb += [
            self.gradients.valid.eq(pipeline(m, completes, self.LATENCY, "completes")[-1]),
            self.gradients.chunk.eq(now.chunk),
            self.gradients.final.eq(now.final),
            self.gradients.last.eq(now.last_chunk),
        ]

        depth = 2 * TABLE_ENTRIES
        for lane in range(config.lanes):
            m.submodules[f"adder{lane}"] = adder = DspAdder()
            for table, operand in enumerate((adder.a, adder.b)):
                memory: Memory = Memory(shape=_SUM, depth=depth, init=[], attrs={"ram_style": "distributed"})
                m.submodules[f"table{lane}_{table}"] = memory
                write, read = memory.write_port(), memory.read_port(domain="comb")
                bits = Cat(line[bank * config.lanes + lane] for bank in range(table * _SUBSET, (table + 1) * _SUBSET))
                m.d.comb += [
                    write.addr.eq(Cat(subset_sums.subset, fills_half)),
                    write.data.eq(subset_sums.sums[table]),
                    write.en.eq(subset_sums.valid),
                    read.addr.eq(Cat(bits, halves[lane // _LANES_OF_COPY])),
                    operand.eq(read.data),
                ]
            m.d.comb += [
                adder.clear_a.eq(clear),
                adder.clear_b.eq(clear),
                adder.base.eq(base),
                adder.negative.eq(negative),
                self.gradients.values[lane].eq(adder.sum),
            ]
        return m
