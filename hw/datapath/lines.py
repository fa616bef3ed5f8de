"""Lines: their places within a run, and the FIFO that keeps them for the backward pass."""

from typing import Any

from amaranth.hdl import Array, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from p4sgd.hw.primitives import Component, pipeline, ram_style
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.fixed import MAX_PRECISION
from p4sgd.hw.spec.image import DESCRIPTOR_BITS, DESCRIPTOR_FIELDS
from p4sgd.hw.spec.run import UNIT_CHUNKS_BITS

__all__ = ["AbsentChunks", "LineFIFO", "LinePosition", "count_micro_batches", "kept_layout", "place_layout"]


def place_layout(config: WorkerConfig) -> data.StructLayout:
    """Layout of what is known of a line."""
    return data.StructLayout(
        {
            "chunk": config.chunk_bits,
            # It is the first or last of its chunk.
            "first_plane": 1,
            "last_plane": 1,
            "top": 1,  # it is plane 0, the most significant
            # The plane before it has no line, but the one before that has: the sum so far counts four times as much.
            "skips": 1,
            # Its chunk is the first or last of its micro-batch.
            "first_chunk": 1,
            "last_chunk": 1,
        }
    )


def kept_layout(config: WorkerConfig) -> data.StructLayout:
    """Layout of a line that is kept for the backward pass, with its place."""
    return data.StructLayout({"line": config.line_bits, "place": place_layout(config)})


_DESCRIPTOR = data.StructLayout(DESCRIPTOR_FIELDS)


class LinePosition(Component):
    """Place of the next line, by counting or by the directories of the image::

        directory ──▶ descriptors ─┐
                                   ├──▶ next descriptor ──▶ place of the next line
        chunks, precision ─────────┘

    An image without directories has all planes of all chunks, as if descriptors said so. A directory is the next line
    if all lines that the one before lists were taken; the line behind it is known 2 cycles later. All outputs but
    ``takes_directory`` are registers, computed while the previous line is there.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        ports = {
            # Pulse before a run. Without directories the place of its first line is there 2 cycles later.
            "start": In(1),
            "step": In(1),  # the line is taken
            # Planes of a chunk, chunks of a micro-batch, log2 of those of a unit, micro-batches of a mini-batch, and
            # whether the image has directories; stable from two cycles before `start`.
            "precision": In(4),
            "chunks": In(17),
            "unit_chunks": In(UNIT_CHUNKS_BITS),
            "micro_batches": In(16),
            "directory": In(1),
            # The next line is a directory; the line; it is taken.
            "takes_directory": Out(1),
            "directory_line": In(config.line_bits),
            "directory_taken": In(1),
            "valid": Out(1),  # the other outputs are valid
            "place": Out(place_layout(config)),  # place of the line
            "plane": Out(3),  # if it is the first of its chunk: number of its plane
            "begins_unit": Out(1),  # its chunk is the first of its unit that is listed
            # Chunks that are not listed are before this one (`AbsentChunks`); a pulse passes over one.
            "absent": Out(1),
            "pass_over": In(1),
            # The micro-batch is the first or last of its mini-batch.
            "first_micro_batch": Out(1),
            "last_micro_batch": Out(1),
        }
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        following: Any = Signal(_DESCRIPTOR, reset_less=True)  # the next descriptor
        known = Signal()  # there is one
        ends_chunk = Signal()
        load = Signal()
        m.d.comb += [
            ends_chunk.eq(self.step & self.place.last_plane),
            load.eq(known & (~self.valid | ends_chunk)),
        ]
        self._follow(m, following, known, load)
        m.d.comb += self.takes_directory.eq(self.directory & ~known & ~self.valid)

        # The current chunk and its lines: `later` has a bit for each plane after the current line.
        later = Signal(_DESCRIPTOR["later"].shape, reset_less=True)
        rest = Signal.like(later)
        begins = Signal()  # the next descriptor is the first of its micro-batch
        place = self.place
        m.d.comb += rest.eq(Mux(later[0], later >> 1, later >> 2))
        with m.If(self.start):
            m.d.sync += [self.valid.eq(0), begins.eq(1)]
        with m.Elif(load):
            m.d.sync += [
                self.valid.eq(1),
                begins.eq(following.last),
                place.chunk.eq(following.chunk),
                place.first_plane.eq(1),
                place.last_plane.eq(following.later == 0),
                place.top.eq(following.first == 0),
                place.skips.eq(0),
                place.first_chunk.eq(begins),
                place.last_chunk.eq(following.last),
                self.plane.eq(following.first),
                later.eq(following.later),
                self.begins_unit.eq(begins | ((following.chunk ^ place.chunk) >> self.unit_chunks).any()),
            ]
        with m.Elif(ends_chunk):
            m.d.sync += self.valid.eq(0)
        with m.Elif(self.step):
            m.d.sync += [
                place.first_plane.eq(0),
                place.last_plane.eq(rest == 0),
                place.top.eq(0),
                place.skips.eq(~later[0]),
                later.eq(rest),
            ]

        m.submodules.absent_chunks = absent = AbsentChunks(self._config)
        m.d.comb += [
            absent.start.eq(self.start),
            absent.load.eq(load),
            absent.chunk.eq(following.chunk),
            absent.last.eq(following.last),
            absent.pass_over.eq(self.pass_over),
            self.absent.eq(absent.absent),
        ]

        ends_micro_batch = ends_chunk & place.last_chunk
        count_micro_batches(m, self.micro_batches, self.start, ends_micro_batch, self.last_micro_batch)
        with m.If(self.start | ends_micro_batch):
            m.d.sync += self.first_micro_batch.eq(self.start | self.last_micro_batch)
        return m

    def _follow(self, m: Module, following: Any, known: Signal, load: Signal) -> None:
        """Keep ``following`` the descriptor after the one that is loaded, and ``known`` whether there is one."""
        planes = Signal(following.later.shape(), reset_less=True)  # without a directory: all but the first
        only_one, second_last = Signal(reset_less=True), Signal(self.chunks.shape(), reset_less=True)
        m.d.sync += [
            planes.eq(Cat(self.precision > plane for plane in range(1, MAX_PRECISION))),
            only_one.eq(self.chunks == 1),
            second_last.eq(self.chunks - 2),
        ]
        count = self._config.line_bits // DESCRIPTOR_BITS
        taken = Signal(self._config.line_bits, reset_less=True)  # the last directory
        number = Signal(range(count), reset_less=True)
        more = Signal()  # descriptors of the directory behind that one
        words = Array(taken.word_select(place, DESCRIPTOR_BITS) for place in range(count))
        listed, first = (
            data.View(_DESCRIPTOR, Value.cast(word)) for word in (words[number], self.directory_line[:DESCRIPTOR_BITS])
        )
        with m.If(self.start):
            m.d.sync += [
                known.eq(~self.directory),
                more.eq(0),
                following.chunk.eq(0),
                following.first.eq(0),
                following.later.eq(planes),
                following.last.eq(only_one),
            ]
        with m.Elif(self.directory_taken):
            m.d.sync += [
                known.eq(1),
                following.eq(first),
                taken.eq(self.directory_line),
                number.eq(1),
                more.eq(~first.last),
            ]
        with m.Elif(load & self.directory):
            m.d.sync += [
                known.eq(more),
                following.eq(listed),
                number.eq(number + 1),
                more.eq(more & ~listed.last & (number != count - 1)),
            ]
        with m.Elif(load):
            m.d.sync += [
                following.chunk.eq(Mux(following.last, 0, following.chunk + 1)),
                following.last.eq(Mux(following.last, only_one, following.chunk == second_last)),
            ]


def count_micro_batches(m: Module, micro_batches: Signal, start: Signal, ends: Value, last: Signal) -> None:
    """Have ``last`` flag the last micro-batch of each mini-batch.

    ``micro_batches`` is the number in one, stable from two cycles before ``start``; in a cycle with ``ends`` one ends.
    """
    left = Signal.like(micro_batches, reset_less=True)  # after this one
    all_left = Signal.like(micro_batches, reset_less=True)
    only_one = Signal(reset_less=True)
    m.d.sync += [all_left.eq(micro_batches - 1), only_one.eq(micro_batches == 1)]
    with m.If(start | (ends & last)):
        m.d.sync += [left.eq(all_left), last.eq(only_one)]
    with m.Elif(ends):
        m.d.sync += [left.eq(left - 1), last.eq(left == 1)]


class AbsentChunks(Component):
    """Counts the chunks that a micro-batch does not list before the one that comes next.

    The forward pass of the first micro-batch of a mini-batch goes through all chunks, as it waits for the weights of
    each, and the backward pass of the last one, which makes them final. An absent chunk takes a cycle of the one and
    two of the other.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self._bits = config.chunk_bits
        ports = {
            "start": In(1),  # pulse before a run
            # The next chunk that is listed, and whether it is the last one of its micro-batch.
            "load": In(1),
            "chunk": In(self._bits),
            "last": In(1),
            "pass_over": In(1),  # an absent chunk is passed over
            "absent": Out(1),  # chunks are left to pass over
        }
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        expected = Signal(self._bits, reset_less=True)  # if none is absent
        left = Signal(self._bits, reset_less=True)
        with m.If(self.start):
            m.d.sync += expected.eq(0)
        with m.Elif(self.load):
            m.d.sync += [
                expected.eq(Mux(self.last, 0, self.chunk + 1)),
                left.eq(self.chunk - expected),
                self.absent.eq(self.chunk != expected),
            ]
        with m.Elif(self.pass_over):
            m.d.sync += [left.eq(left - 1), self.absent.eq(left != 1)]
        return m


_READ_LATENCY = 2  # cycles from an address to its line: the memory is deep, so it needs its output register
_FETCHED = 4  # lines that may be between the memory and the output: enough for a line a cycle


class LineFIFO(Component):
    """FIFO that keeps the lines of the forward pass for the backward pass::

        i ──▶ memory ──▶ output register ──▶ 4 fetched lines ──▶ o

    Holds at least `WorkerConfig.line_fifo_depth` lines; a line a cycle, with a latency of `LATENCY` cycles. ``i.ready``
    is a register and falls a line early, for which the room for fetched lines makes up.
    """

    LATENCY = 1 + _READ_LATENCY + 1

    def __init__(self, config: WorkerConfig) -> None:
        self._depth = config.line_fifo_depth
        self._layout = kept_layout(config)
        ports = {
            "i": In(stream.Signature(self._layout)),  # lines to keep, with their places
            "o": Out(stream.Signature(self._layout)),  # the same, in the same order
        }
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        depth, width = self._depth, self._layout.size
        m = Module()
        memory: Memory = Memory(shape=width, depth=depth, init=[], attrs=ram_style(depth))
        m.submodules.memory = memory
        write = memory.write_port()
        read = memory.read_port()
        m.submodules.fetched = fetched = SyncFIFO(width=width, depth=_FETCHED)

        written = Signal()
        fetch = Signal()
        given = Signal()
        level = Signal(range(depth + 1))  # lines in the memory
        room = Signal(range(_FETCHED + 1), init=_FETCHED)  # for lines to fetch
        m.d.comb += [
            written.eq(self.i.valid & self.i.ready),
            fetch.eq((level != 0) & (room != 0)),
            given.eq(self.o.valid & self.o.ready),
            write.data.eq(self.i.payload),
            write.en.eq(written),
            read.en.eq(fetch),
        ]
        m.d.sync += [
            write.addr.eq(write.addr + written),
            read.addr.eq(read.addr + fetch),
            level.eq(level + written - fetch),
            room.eq(room - fetch + given),
            # One line is held in reserve: `level` does not count a line that comes in this cycle.
            self.i.ready.eq(level < depth - 1),
        ]

        line = Signal(width, reset_less=True)
        coming = pipeline(m, fetch, _READ_LATENCY, "coming")
        with m.If(coming[1]):
            m.d.sync += line.eq(read.data)
        m.d.comb += [
            fetched.w_en.eq(coming[-1]),
            fetched.w_data.eq(line),
            self.o.payload.eq(fetched.r_data),
            self.o.valid.eq(fetched.r_rdy),
            fetched.r_en.eq(self.o.ready),
        ]
        return m
