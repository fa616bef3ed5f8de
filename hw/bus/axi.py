"""AXI4 and AXI4-Lite (ARM IHI 0022), and Ethernet frames on AXI4-Stream."""

from amaranth.hdl import Module, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.stream import RegisterSlice, connect_stream
from p4sgd.hw.primitives import Component
from p4sgd.hw.spec.register_map import ADDRESS_BITS

__all__ = ["ADDRESS_CARRY_BITS", "BOUNDARY", "BURST_INCR", "FRAME_BEAT_BYTES", "LITE_DATA_BITS", "MAX_BEATS"]
__all__ += ["MEMORY_ADDRESS_BITS", "RESPONSE_OKAY", "Axi4LiteSignature", "Axi4Signature", "Axi4Slice", "FrameBeat"]


BOUNDARY = 4096  # a burst must not cross a multiple of this many bytes (IHI 0022, A3.4.1)
MAX_BEATS = 256  # maximum number of beats of a burst
BURST_INCR = 0b01  # burst type: consecutive addresses
MEMORY_ADDRESS_BITS = 64  # width of byte addresses
ADDRESS_CARRY_BITS = 48  # low address bits that masters count in, so a buffer must not cross a multiple of 2^48
RESPONSE_OKAY = 0b00  # response of a successful transfer; others are errors


class Axi4Signature(wiring.Signature):
    """A memory port, seen from the master, with what sequential bursts need of AXI4, and a single ID.

    Data are ``data_bits`` wide, a power of two from 8 to 1024; the channels to read or to write may be left out.
    """

    def __init__(self, *, data_bits: int, read: bool = True, write: bool = True) -> None:
        if data_bits not in (8, 16, 32, 64, 128, 256, 512, 1024):
            raise ValueError(f"data_bits must be a power of two, 8 to 1024, not {data_bits}")
        self.data_bits = data_bits
        # Of a request `addr` is in bytes, `len` the number of beats less one, `size` log2 of the bytes of a beat.
        self.request_layout = data.StructLayout({"addr": MEMORY_ADDRESS_BITS, "len": 8, "size": 3, "burst": 2})
        self.write_layout = data.StructLayout({"data": data_bits, "strb": data_bits // 8, "last": 1})
        self.response_layout = data.StructLayout({"resp": unsigned(2)})
        self.read_layout = data.StructLayout({"data": data_bits, "resp": 2, "last": 1})
        writing = {
            "aw": Out(stream.Signature(self.request_layout)),
            "w": Out(stream.Signature(self.write_layout)),
            "b": In(stream.Signature(self.response_layout)),
        }
        reading = {
            "ar": Out(stream.Signature(self.request_layout)),
            "r": In(stream.Signature(self.read_layout)),
        }
        super().__init__((writing if write else {}) | (reading if read else {}))

    @property
    def size(self) -> int:
        """Value of a request's ``size`` for beats of the full width."""
        return (self.data_bits // 8).bit_length() - 1


LITE_DATA_BITS = 32  # width of the data of AXI4-Lite


class Axi4LiteSignature(wiring.Signature):
    """A register port, seen from the master."""

    def __init__(self) -> None:
        address = data.StructLayout({"addr": ADDRESS_BITS})
        ports = {
            "aw": Out(stream.Signature(address)),  # a request, in bytes
            "w": Out(stream.Signature(data.StructLayout({"data": LITE_DATA_BITS, "strb": LITE_DATA_BITS // 8}))),
            "b": In(stream.Signature(data.StructLayout({"resp": unsigned(2)}))),
            "ar": Out(stream.Signature(address)),
            "r": In(stream.Signature(data.StructLayout({"data": LITE_DATA_BITS, "resp": 2}))),
        }
        super().__init__(ports)


FRAME_BEAT_BYTES = 64  # bytes of a beat: the AXI4-Stream of 100G Ethernet MACs is 512 bits wide

FrameBeat = data.StructLayout({"data": 8 * FRAME_BEAT_BYTES, "keep": FRAME_BEAT_BYTES, "last": 1})
"""One beat of a frame, without check sequence: AXI4-Stream's TDATA, TKEEP and TLAST. Byte i is part of the frame if
``keep[i]`` is set; byte 0 is the first on the wire."""


class Axi4Slice(Component):
    """A `RegisterSlice` in each channel of a memory port: a read takes two cycles more."""

    def __init__(self, bus: Axi4Signature) -> None:
        self._bus = bus
        ports = {
            "master": In(bus),  # connects to the master
            "memory": Out(bus),  # connects to the memory, in the master's place
        }
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        for name, member in self._bus.members.items():
            master, memory = (getattr(port, name) for port in (self.master, self.memory))
            m.submodules[name] = each = RegisterSlice(master.payload.shape())
            source, sink = (master, memory) if member.flow is Out else (memory, master)
            connect_stream(m, wiring.flipped(source), each.i)
            connect_stream(m, each.o, wiring.flipped(sink))
        return m
