"""Ethernet frames inside a kernel: buffered as a whole, split to ports, and merged from ports."""

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.axi import FrameBeat
from p4sgd.hw.primitives import Component

__all__ = ["FrameBuffer", "FrameMerge", "FrameSplit"]


class FrameBuffer(wiring.Component):
    """Buffer that passes on whole frames without gaps, or drops them.

    The first beat of a frame is on ``o`` two cycles after its last has come, if those before it have left. ``depth``
    beats fit, a power of two of at least 2, or ValueError; a longer frame is dropped, and without ``waits`` any that
    finds no room.
    """

    i: In(stream.Signature(FrameBeat))  # always ready if ``waits`` is False
    bad: In(1)  # with the last beat: drop the frame
    cut: In(1)  # drop the frame that is coming, which gets no last beat; not in the same cycle as a beat
    o: Out(stream.Signature(FrameBeat))  # the frames that were kept
    # Pulses: a frame was kept, was bad or cut, or found no room.
    kept: Out(1)
    dropped_bad: Out(1)
    dropped_full: Out(1)

    def __init__(self, depth: int, *, waits: bool) -> None:
        if depth < 2 or depth & (depth - 1):
            raise ValueError(f"depth must be a power of two, at least 2, not {depth}")
        self._depth = depth
        self._waits = waits
        super().__init__()

    def elaborate(self, platform: object) -> Module:
        m = Module()
        memory: Memory = Memory(shape=FrameBeat, depth=self._depth, init=[])
        m.submodules.memory = memory
        write, read = memory.write_port(), memory.read_port()
        # Pointers have one bit more than an address, to tell a full buffer from an empty one. A frame is written from
        # `begin_at` on, and readers see it once `begin_at` has passed it; to drop it, `write_at` goes back.
        write_at = Signal(range(2 * self._depth))
        begin_at = Signal(range(2 * self._depth))
        read_at = Signal(range(2 * self._depth))
        # Comparisons of pointers are registers, made a cycle ahead from the neighbours of `read_at`.
        read_before = Signal.like(read_at, init=-1 % (2 * self._depth))
        read_after = Signal.like(read_at, init=1)
        full = Signal()  # write_at == read_at ^ depth
        alone = Signal(init=1)  # begin_at == read_at: there is no whole frame
        fresh = Signal(init=1)  # write_at == begin_at: no beat of the frame that is coming was written
        lost = Signal()  # a beat of the frame that is coming found no room
        fits = ~full & ~lost
        takes, ends, drops, fetches = Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            # Do not wait for room if the frame fills the buffer alone, since there will never be any.
            self.i.ready.eq(fits | lost | alone if self._waits else 1),
            takes.eq(self.i.valid & self.i.ready),
            ends.eq(takes & self.i.payload.last),
            drops.eq(self.cut | (ends & (~fits | self.bad))),
            self.kept.eq(ends & fits & ~self.bad),
            self.dropped_full.eq(ends & ~fits),
            self.dropped_bad.eq((ends & fits & self.bad) | (self.cut & (lost | ~fresh))),
            write.addr.eq(write_at[:-1]),
            write.data.eq(self.i.payload),
            write.en.eq(takes & fits),
            fetches.eq(~alone & (~self.o.valid | self.o.ready)),
        ]
        with m.If(self.kept):
            m.d.sync += begin_at.eq(write_at + 1)
        with m.If(takes):
            m.d.sync += [lost.eq(~fits), write_at.eq(write_at + fits)]
        with m.If(drops):
            m.d.sync += write_at.eq(begin_at)
        with m.If(self.cut | ends):
            m.d.sync += [lost.eq(0), fresh.eq(1)]
        with m.Elif(write.en):
            m.d.sync += fresh.eq(0)
        # A frame that is dropped leaves the buffer full only if no beat of it was written.
        m.d.sync += [
            full.eq(~fetches & Mux(drops, full & fresh, Mux(write.en, write_at == read_before ^ self._depth, full))),
            alone.eq(~self.kept & Mux(fetches, read_after == begin_at, alone)),
        ]

        m.d.comb += [read.addr.eq(read_at[:-1]), read.en.eq(fetches), self.o.payload.eq(read.data)]
        with m.If(fetches):
            m.d.sync += [read_before.eq(read_at), read_at.eq(read_after), read_after.eq(read_after + 1)]
            m.d.sync += self.o.valid.eq(1)
        with m.Elif(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        return m


class FrameSplit(Component):
    """Sends every beat to all ports of its bitmap at once.

    A port that does not take its beats holds up later beats for it, and all behind those. A FIFO of ``depth`` beats
    before each port cuts the combinational paths between them.
    """

    def __init__(self, ports: int, *, depth: int = 16) -> None:
        self._depth = depth
        members = {
            # ``ports`` is the bitmap of the ports that a frame leaves through, the same in all its beats.
            "frames": In(stream.Signature(data.StructLayout({"beat": FrameBeat, "ports": ports}))),
            "tx": Out(stream.Signature(FrameBeat)).array(ports),
        }
        super().__init__(members)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        queues = [SyncFIFOBuffered(width=FrameBeat.size, depth=self._depth) for _ in self.tx]
        moves = Signal()
        room = Cat(queue.w_rdy for queue in queues)
        m.d.comb += [
            self.frames.ready.eq((~self.frames.payload.ports | room).all()),
            moves.eq(self.frames.valid & self.frames.ready),
        ]
        for port, (tx, queue) in enumerate(zip(self.tx, queues, strict=True)):
            m.submodules[f"queue{port}"] = queue
            m.d.comb += [
                queue.w_data.eq(self.frames.payload.beat),
                queue.w_en.eq(moves & self.frames.payload.ports[port]),
                tx.payload.eq(queue.r_data),
                tx.valid.eq(queue.r_rdy),
                queue.r_en.eq(tx.ready),
            ]
        return m


class FrameMerge(Component):
    """Merges the frames of several ports round-robin, with the number of their port.

    A FIFO of ``depth`` beats behind each port cuts the combinational paths between them. ``port_bits`` are at least 1.
    """

    def __init__(self, ports: int, port_bits: int, *, depth: int = 16) -> None:
        self._ports = ports
        self._port_bits = port_bits
        self._depth = depth
        self._payload = data.StructLayout({"beat": FrameBeat, "port": port_bits})
        members = {
            "rx": In(stream.Signature(FrameBeat)).array(ports),
            # One after the other, never interleaved; ``port`` is where a frame came from.
            "frames": Out(stream.Signature(self._payload)),
        }
        super().__init__(members)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        queues = [SyncFIFOBuffered(width=FrameBeat.size, depth=self._depth) for _ in self.rx]
        for port, (rx, queue) in enumerate(zip(self.rx, queues, strict=True)):
            m.submodules[f"queue{port}"] = queue
            m.d.comb += [queue.w_data.eq(rx.payload), queue.w_en.eq(rx.valid), rx.ready.eq(queue.w_rdy)]

        # Whose turn it is: within a frame, its port's; otherwise, that of the next port that has a frame.
        last = Signal(self._port_bits)
        inside = Signal()
        turn = Signal(self._port_bits)
        m.d.comb += turn.eq(last)
        with m.If(~inside):
            with m.Switch(last):
                for port in range(self._ports):
                    with m.Case(port):
                        for distance in range(self._ports, 0, -1):  # the last assignment wins: the nearest port
                            candidate = (port + distance) % self._ports
                            with m.If(queues[candidate].r_rdy):
                                m.d.comb += turn.eq(candidate)

        valid = Array(queue.r_rdy for queue in queues)[turn]
        beat = data.View(FrameBeat, Array(queue.r_data for queue in queues)[turn])
        free = Signal()
        m.d.comb += free.eq(~self.frames.valid | self.frames.ready)
        m.d.comb += Cat(queue.r_en for queue in queues).eq(free << turn)
        with m.If(free):
            m.d.sync += [
                self.frames.valid.eq(valid),
                self.frames.payload.beat.eq(beat),
                self.frames.payload.port.eq(turn),
            ]
            with m.If(valid):
                m.d.sync += [last.eq(turn), inside.eq(~beat.last)]
        return m
