"""Loading of weights from memory into the model, and storing them back."""

from typing import Any

from amaranth.hdl import Array, Cat, Module, Signal
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.axi import ADDRESS_CARRY_BITS, BURST_INCR, RESPONSE_OKAY, Axi4Signature
from p4sgd.hw.datapath.model import MODEL_READ_LATENCY, ReadPort, weights_layout
from p4sgd.hw.primitives import Component
from p4sgd.hw.spec.config import WorkerConfig

__all__ = ["ModelLoader", "ModelStorer"]


class ModelLoader(Component):
    """Joins `WorkerConfig.weight_beats` beats from memory port 0 to the weights of one chunk, the first beat lowest.

    A chunk takes a cycle for each beat, and one more. The model is loaded once a run, so this need not be faster.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self._beats = config.weight_beats
        self._port_bits = config.port_bits
        ports = {
            "beats": In(stream.Signature(config.port_bits)),  # beats of memory
            "chunks": Out(stream.Signature(weights_layout(config))),  # weights, chunk by chunk
            "zero": In(1),  # pulse while no beats come: set `chunks.payload` to zeros, to clear the model
        }
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        word = Signal(self._beats * self._port_bits, reset_less=True)
        count = Signal(range(self._beats))
        m.d.comb += [self.chunks.payload.eq(word), self.beats.ready.eq(~self.chunks.valid)]
        with m.If(self.chunks.ready):
            m.d.sync += self.chunks.valid.eq(0)
        with m.If(self.beats.valid & self.beats.ready):
            m.d.sync += [word.eq(Cat(word, self.beats.payload)[self._port_bits :]), count.eq(count + 1)]
            with m.If(count == self._beats - 1):
                m.d.sync += [count.eq(0), self.chunks.valid.eq(1)]
        with m.If(self.zero):
            m.d.sync += word.eq(0)
        return m


class ModelStorer(Component):
    """Writes the weights of ``chunks`` chunks to memory, one AXI burst a chunk.

    A chunk is at most 256 bytes and aligned to its size, so no burst crosses a 4 KiB boundary. It takes 9 cycles, or 13
    with two ports an engine, if the memory is always ready.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._bus = Axi4Signature(data_bits=config.port_bits, read=False)
        ports = {
            "memory": Out(self._bus),  # write channels of memory port 0
            "weights": Out(ReadPort(config)),  # access to the model
            "start": In(1),  # pulse while idle
            "chunks": In(17),  # chunks to store, at least 1; stable
            "base": In(64),  # byte address, a multiple of 4096; stable
            "done": Out(1),  # pulse: all is written and acknowledged
            "error": Out(1),  # pulse: a response was not OKAY
        }
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        config = self._config
        beats = config.weight_beats
        chunk_bytes = beats * config.port_bytes
        m = Module()
        chunk = Signal(17, reset_less=True)
        address = Signal(ADDRESS_CARRY_BITS, reset_less=True)
        word = Signal(beats * config.port_bits, reset_less=True)
        beat = Signal(range(beats + 1))
        written: Any = Signal(self.memory.w.payload.shape(), reset_less=True)
        word_beats = Array(word.word_select(number, config.port_bits) for number in range(beats))
        wait = Signal(range(MODEL_READ_LATENCY + 1))
        request = self.memory.aw
        m.d.sync += self.done.eq(0)
        m.d.comb += [
            self.weights.address.eq(chunk),
            request.payload.addr.eq(Cat(address, self.base[ADDRESS_CARRY_BITS:])),
            request.payload.len.eq(beats - 1),
            request.payload.size.eq(self._bus.size),
            request.payload.burst.eq(BURST_INCR),
            self.memory.w.payload.data.eq(written.data),
            self.memory.w.payload.last.eq(written.last),
            self.memory.w.payload.strb.eq(~0),
            self.memory.b.ready.eq(1),
        ]
        answered = self.memory.b.valid
        m.d.sync += self.error.eq(answered & (self.memory.b.payload.resp != RESPONSE_OKAY))
        with m.FSM():
            with m.State("IDLE"):
                m.d.sync += [chunk.eq(0), address.eq(self.base), wait.eq(MODEL_READ_LATENCY)]
                with m.If(self.start):
                    m.next = "READ"
            with m.State("READ"):
                m.d.comb += self.weights.enable.eq(wait == MODEL_READ_LATENCY)
                m.d.sync += [wait.eq(wait - 1), beat.eq(0)]
                with m.If(wait == 0):
                    m.d.sync += [word.eq(self.weights.data), request.valid.eq(1)]
                    m.next = "WRITE"
            with m.State("WRITE"):
                with m.If(request.ready):
                    m.d.sync += request.valid.eq(0)
                with m.If(~self.memory.w.valid | self.memory.w.ready):
                    m.d.sync += [
                        written.data.eq(word_beats[beat]),
                        written.last.eq(beat == beats - 1),
                        self.memory.w.valid.eq(beat != beats),
                    ]
                    with m.If(beat != beats):
                        m.d.sync += beat.eq(beat + 1)
                with m.If(answered):
                    m.d.sync += [
                        chunk.eq(chunk + 1),
                        address.eq(address + chunk_bytes),
                        wait.eq(MODEL_READ_LATENCY),
                    ]
                    m.next = "READ"
                    with m.If(chunk + 1 == self.chunks):
                        m.d.sync += self.done.eq(1)
                        m.next = "IDLE"
        return m
