"""Simulated memory banks with AXI4 ports."""

from typing import Any

from amaranth.hdl import ClockSignal, Instance, Module, Mux, Signal, ValueLike
from amaranth.lib import data
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In

from p4sgd.hw.bus.axi import BOUNDARY, BURST_INCR, RESPONSE_OKAY, Axi4Signature
from p4sgd.hw.primitives import Component
from p4sgd.hw.spec.config import CLOCK_NS
from p4sgd.sim.cluster.link import Noise, Pause
from p4sgd.sim.cluster.protocol import MemoryTiming

MEMORY_TIMING = data.StructLayout({"latency": 15, "outstanding": 9, "refresh": 1})
"""A `MemoryTiming` as inputs."""


_REQUESTS = MemoryTiming.MOST_OUTSTANDING  # depth of the queues of requests

_BEATS = 16

_REFRESH_PERIOD, _REFRESH_CYCLES = 3900 // CLOCK_NS, 260 // CLOCK_NS
"""Cycles from one refresh of all banks to the next, and those that it takes: 3.9 µs and 260 ns, the parameters of AMD's
controller (0xD54 and 0xE4 cycles of 875 MHz in github.com/open-power/snap, hardware/setup/create_hbm.tcl)."""

_GAPS = 2000  # instance number of a memory's generator of gaps, beyond its own
_GAP_BITS = 8

_SLAVE_ERROR = 0b10
_DECODE_ERROR = 0b11


class SimMemory(Component):
    """AXI4 memory of ``2**address_bits`` bytes that answers requests in order, with at most one beat per cycle.

    It takes reads while fewer than ``outstanding`` are under way. With ``refresh`` no beat comes or goes for 65 of 975
    cycles, those of each memory at another time, as if all banks of high-bandwidth memory were refreshed at once. With
    ``stall`` every channel pauses at random, independently of the others; with ``gap`` no beat comes or goes for up to
    256 cycles, at random times, and then those that are due come in a bunch. Addresses beyond the memory get DECERR.
    Requests that break a rule of AXI4, or that no master of this project makes, get SLVERR, which makes a run void:
    bursts across a 4 KiB boundary, bursts other than INCR, beats narrower than the bus, and ``last`` on the wrong beat
    of a write. Contents are loaded from ``file`` and saved to it; see ``sim_storage.sv``. The number ``instance``
    selects random numbers, and the time of refreshes.
    """

    def __init__(self, data_bits: int, address_bits: int, *, file: str, instance: int) -> None:
        self._bus = Axi4Signature(data_bits=data_bits)
        self._address_bits = address_bits
        self._file = file
        self._instance = instance
        super().__init__(
            {
                "bus": In(self._bus),
                "seed": In(32),
                "stall": In(8),  # chance of a pause per cycle and channel, in 1/256
                "gap": In(16),  # chance per cycle that a gap begins, in 1/65536
                "timing": In(MEMORY_TIMING),  # a `MemoryTiming`, stable
                "load": In(1),  # a rising edge loads the contents from the file
                "save": In(1),  # or saves them to it
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        size = self._bus.size
        word_bits = self._address_bits - size
        m.submodules.noise = noise = Noise(self._instance)
        m.d.comb += noise.seed.eq(self.seed)
        goes = [noise.value[8 * channel : 8 * channel + 8] >= self.stall for channel in range(4)]
        elapsed = Signal(range(_REFRESH_PERIOD), init=self._instance * 389 % _REFRESH_PERIOD)
        awake = Signal(init=1)
        m.d.sync += [
            elapsed.eq(Mux(elapsed == _REFRESH_PERIOD - 1, 0, elapsed + 1)),
            awake.eq(~self.timing.refresh | (elapsed >= _REFRESH_CYCLES)),
        ]
        m.submodules.gaps = gaps = Pause(_GAPS + self._instance, _GAP_BITS)
        m.d.comb += [gaps.seed.eq(self.seed), gaps.chance.eq(self.gap)]
        answers = awake & ~gaps.paused

        read_enable, read_address, read_data = Signal(), Signal(word_bits), Signal(self._bus.data_bits)
        write_enable, write_address = Signal(), Signal(word_bits)
        m.submodules.storage = Instance(
            "sim_storage",
            p_WIDTH=self._bus.data_bits,
            p_ADDRESS_BITS=word_bits,
            p_FILE=self._file,
            i_clk=ClockSignal(),
            i_read_enable=read_enable,
            i_read_address=read_address,
            o_read_data=read_data,
            i_write_enable=write_enable,
            i_write_address=write_address,
            i_write_data=self.bus.w.payload.data,
            i_write_strobe=self.bus.w.payload.strb,
            i_load=self.load,
            i_save=self.save,
        )
        self._read(m, goes[0], goes[1] & answers, read_enable, read_address, read_data)
        self._write(m, goes[2], goes[3] & answers, write_enable, write_address)
        return m

    def _requests(
        self, m: Module, name: str, channel: Any, goes: Any, room: ValueLike = 1
    ) -> tuple[SyncFIFOBuffered, data.View, Signal]:
        """A queue of requests, with the time when each may be answered: queue, first request, whether that is due."""
        layout = data.StructLayout({"addr": 64, "len": 8, "bad": 1, "due": 16})
        size = self._bus.size
        page_bits = BOUNDARY.bit_length() - 1
        last_beat = channel.payload.addr[size:page_bits] + channel.payload.len
        m.submodules[name] = queue = SyncFIFOBuffered(width=layout.size, depth=_REQUESTS)
        entry = data.View(layout, queue.w_data)
        now = Signal(16, name=f"{name}_now")
        was_due = Signal(name=f"{name}_was_due")  # the 16-bit time may wrap while the answer waits
        accepting = Signal(name=f"{name}_accepting")  # held until a request comes
        m.d.sync += now.eq(now + 1)
        m.d.comb += [
            entry.addr.eq(channel.payload.addr),
            entry.len.eq(channel.payload.len),
            entry.bad.eq(
                (last_beat >= 1 << (page_bits - size))
                | (channel.payload.burst != BURST_INCR)
                | (channel.payload.size != size)
            ),
            entry.due.eq(now + self.timing.latency - 3),
            channel.ready.eq(accepting & queue.w_rdy & room),
            queue.w_en.eq(channel.valid & channel.ready),
        ]
        with m.If(~accepting | queue.w_en):
            m.d.sync += accepting.eq(goes)
        head = data.View(layout, queue.r_data)
        is_due = Signal(name=f"{name}_is_due")
        m.d.comb += is_due.eq(queue.r_rdy & (was_due | ~(now - head.due)[15]))
        m.d.sync += was_due.eq(is_due & ~queue.r_en)
        return queue, head, is_due

    def _read(self, m: Module, accept: Any, goes: Any, enable: Signal, address: Signal, read_data: Signal) -> None:
        size = self._bus.size
        under_way = Signal(range(_REQUESTS + 1))
        few = under_way < self.timing.outstanding
        queue, request, due = self._requests(m, "reads", self.bus.ar, accept, few)
        beat = Signal(8)
        room = Signal(range(_BEATS + 1), init=_BEATS)
        last = beat == request.len
        outside = request.addr[self._address_bits :].any()
        layout = self._bus.read_layout
        m.submodules.beats = beats = SyncFIFOBuffered(width=layout.size, depth=_BEATS)
        answer = data.View(layout, beats.w_data)
        fetched = Signal()  # the storage answers a cycle later
        was_last = Signal()
        response = Signal(2)
        given = self.bus.r.valid & self.bus.r.ready
        m.d.comb += [
            enable.eq(due & goes & (room != 0)),
            address.eq(request.addr[size : self._address_bits] + beat),
            queue.r_en.eq(enable & last),
            answer.data.eq(read_data),
            answer.last.eq(was_last),
            answer.resp.eq(response),
            beats.w_en.eq(fetched),
            self.bus.r.payload.eq(data.View(layout, beats.r_data)),
            self.bus.r.valid.eq(beats.r_rdy),
            beats.r_en.eq(self.bus.r.ready),
        ]
        m.d.sync += [
            fetched.eq(enable),
            was_last.eq(last),
            response.eq(_response(outside, request.bad)),
            room.eq(room - enable + given),
            under_way.eq(under_way + (self.bus.ar.valid & self.bus.ar.ready) - (given & self.bus.r.payload.last)),
        ]
        with m.If(enable):
            m.d.sync += beat.eq(Mux(last, 0, beat + 1))

    def _write(self, m: Module, accept: Any, goes: Any, enable: Signal, address: Signal) -> None:
        size = self._bus.size
        queue, request, due = self._requests(m, "writes", self.bus.aw, accept)
        beat = Signal(8)
        outside = request.addr[self._address_bits :].any()
        misplaced = Signal()  # a beat of this burst had a wrong `last`
        wrong_last = self.bus.w.payload.last != (beat == request.len)
        accepting = Signal()  # held until a beat comes
        taken = self.bus.w.valid & self.bus.w.ready
        m.d.comb += [
            address.eq(request.addr[size : self._address_bits] + beat),
            self.bus.w.ready.eq(due & accepting & ~self.bus.b.valid),
            enable.eq(taken & ~outside),
            queue.r_en.eq(taken & self.bus.w.payload.last),
        ]
        with m.If(~accepting | taken):
            m.d.sync += accepting.eq(goes)
        with m.If(self.bus.b.ready):
            m.d.sync += self.bus.b.valid.eq(0)
        with m.If(taken):
            m.d.sync += [beat.eq(beat + 1), misplaced.eq(misplaced | wrong_last)]
            with m.If(self.bus.w.payload.last):
                m.d.sync += [
                    beat.eq(0),
                    self.bus.b.valid.eq(1),
                    self.bus.b.payload.resp.eq(_response(outside, request.bad | misplaced | wrong_last)),
                    misplaced.eq(0),
                ]


def _response(outside: Any, bad: Any) -> Any:
    return Mux(outside, _DECODE_ERROR, Mux(bad, _SLAVE_ERROR, RESPONSE_OKAY))
