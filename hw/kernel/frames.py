"""Frames inside a kernel: buffered, split to ports and merged.

A buffer that hands on whole frames.

Frames of one stream to several ports.

Frames of several ports on one stream.
"""

from typing import Any

from amaranth.hdl import Array, Cat, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.axi import FrameBeat

__all__ = ["FrameBuffer", "FrameMerge", "FrameSplit"]


class FrameBuffer(wiring.Component):
    """Keeps a frame until its last beat has come, and then hands it on without gaps, or drops it.

    A beat a cycle. The first beat of a frame is on ``o`` two cycles after its last has come, if those before it have
    left.

    Parameters
    ----------
    depth
        Beats that there is room for, a power of two. A longer frame is dropped.
    waits
        Whether the source waits until there is room. Else a frame that finds none is dropped.

    Members
    -------
    i : In(stream of FrameBeat)
        Always ready if the source cannot wait.
    bad : In(1)
        With the last beat: the frame is dropped.
    cut : In(1)
        The frame that is coming ends here, without a last beat, and is dropped. Not with a beat.
    o : Out(stream of FrameBeat)
    kept, dropped_bad, dropped_full : Out(1)
        Pulses: what has become of a frame. One that was cut is a bad one.
    """

    def __init__(self, depth: int, *, waits: bool) -> None:
        if depth < 2 or depth & (depth - 1):
            raise ValueError(f"depth must be a power of two, at least 2, not {depth}")
        self._depth = depth
        self._waits = waits
        super().__init__(
            {
                "i": In(stream.Signature(FrameBeat)),
                "bad": In(1),
                "cut": In(1),
                "o": Out(stream.Signature(FrameBeat)),
                "kept": Out(1),
                "dropped_bad": Out(1),
                "dropped_full": Out(1),
            }
        )

    i: Any
    bad: Signal
    cut: Signal
    o: Any
    kept: Signal
    dropped_bad: Signal
    dropped_full: Signal

    def elaborate(self, platform: object) -> Module:
        m = Module()
        memory: Memory = Memory(shape=FrameBeat, depth=self._depth, init=[])
        m.submodules.memory = memory
        write, read = memory.write_port(), memory.read_port()
        # One bit more than an address has: a full buffer is not an empty one.
        write_at = Signal(range(2 * self._depth))
        begin_at = Signal(range(2 * self._depth))  # of the frame that is coming; those before it are whole
        read_at = Signal(range(2 * self._depth))
        lost = Signal()  # of the frame that is coming a beat found no room
        full = write_at == read_at ^ self._depth
        fits = ~full & ~lost
        takes, ends = Signal(), Signal()
        m.d.comb += [
            # A frame that fills the buffer alone will never find room.
            self.i.ready.eq(fits | lost | (begin_at == read_at) if self._waits else 1),
            takes.eq(self.i.valid & self.i.ready),
            ends.eq(takes & self.i.payload.last),
            self.kept.eq(ends & fits & ~self.bad),
            self.dropped_full.eq(ends & ~fits),
            self.dropped_bad.eq((ends & fits & self.bad) | (self.cut & (lost | (write_at != begin_at)))),
            write.addr.eq(write_at[:-1]),
            write.data.eq(self.i.payload),
            write.en.eq(takes & fits),
        ]
        with m.If(self.kept):
            m.d.sync += begin_at.eq(write_at + 1)
        with m.If(takes):
            m.d.sync += [lost.eq(~fits), write_at.eq(write_at + fits)]
        with m.If(self.cut | (ends & ~self.kept)):
            m.d.sync += write_at.eq(begin_at)
        with m.If(self.cut | ends):
            m.d.sync += lost.eq(0)

        fetches = (read_at != begin_at) & (~self.o.valid | self.o.ready)
        m.d.comb += [read.addr.eq(read_at[:-1]), read.en.eq(fetches), self.o.payload.eq(read.data)]
        with m.If(fetches):
            m.d.sync += [read_at.eq(read_at + 1), self.o.valid.eq(1)]
        with m.Elif(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        return m


class FrameSplit(wiring.Component):
    """Gives every beat to each port of its bitmap, to all at once.

    A beat a cycle. A port that does not take its beats makes those wait that are for it, and what comes behind them.

    Parameters
    ----------
    ports
        How many.
    depth
        Beats of the FIFO before each port, so that no ready depends on anything outside.

    Members
    -------
    frames : In(stream of {beat: FrameBeat, ports})
        ``ports`` is the bitmap of the ports that the frame leaves through, the same in all its beats.
    tx : Out(stream of FrameBeat).array(ports)
    """

    def __init__(self, ports: int, *, depth: int = 16) -> None:
        self._depth = depth
        super().__init__(
            {
                "frames": In(stream.Signature(data.StructLayout({"beat": FrameBeat, "ports": ports}))),
                "tx": Out(stream.Signature(FrameBeat)).array(ports),
            }
        )

    frames: Any
    tx: list[stream.Interface]

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


class FrameMerge(wiring.Component):
    """Takes a frame from each port in turn, from one that has one, and says which it came through.

    A beat a cycle. What is taken stands in FIFOs first, so no ready depends on anything outside.

    Parameters
    ----------
    ports
        How many.
    port_bits
        Width of a port's number.
    depth
        Beats of a FIFO.

    Members
    -------
    rx : In(stream of FrameBeat).array(ports)
    frames : Out(stream of {beat: FrameBeat, port})
        The beats of a frame follow each other, without those of another in between.
    """

    def __init__(self, ports: int, port_bits: int, *, depth: int = 16) -> None:
        self._ports = ports
        self._depth = depth
        self._payload = data.StructLayout({"beat": FrameBeat, "port": port_bits})
        super().__init__(
            {
                "rx": In(stream.Signature(FrameBeat)).array(ports),
                "frames": Out(stream.Signature(self._payload)),
            }
        )

    rx: list[stream.Interface]
    frames: Any

    def elaborate(self, platform: object) -> Module:
        m = Module()
        queues = [SyncFIFOBuffered(width=FrameBeat.size, depth=self._depth) for _ in self.rx]
        for port, (rx, queue) in enumerate(zip(self.rx, queues, strict=True)):
            m.submodules[f"queue{port}"] = queue
            m.d.comb += [queue.w_data.eq(rx.payload), queue.w_en.eq(rx.valid), rx.ready.eq(queue.w_rdy)]

        # Whose turn it is: in a frame that of its port; else of the first that has one, from the one after the last on.
        last = Signal(range(self._ports))
        inside = Signal()
        turn = Signal(range(self._ports))
        m.d.comb += turn.eq(last)
        with m.If(~inside):
            with m.Switch(last):
                for port in range(self._ports):
                    with m.Case(port):
                        for distance in range(self._ports, 0, -1):  # a later one prevails
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
