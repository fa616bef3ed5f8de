"""AXI4 memory bus (ARM IHI 0022), as far as sequential bursts need it."""

from amaranth.hdl import unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["ADDRESS_CARRY_BITS", "BOUNDARY", "BURST_INCR", "MAX_BEATS", "RESPONSE_OKAY", "Signature"]

BOUNDARY = 4096
"""A burst must not cross a multiple of this many bytes (IHI 0022, A3.4.1)."""

MAX_BEATS = 256
"""Most beats of a burst."""

BURST_INCR = 0b01
"""Burst type: consecutive addresses."""

ADDRESS_BITS = 64
"""Width of byte addresses."""

ADDRESS_CARRY_BITS = 48
"""Masters count addresses in this many bits and take the rest from the base: a buffer must not cross 2^48 bytes."""

RESPONSE_OKAY = 0b00
"""Response of a successful transfer; others are errors."""


class Signature(wiring.Signature):
    """A memory port, seen from the master. One ID, so transactions of a channel stay in order.

    Parameters
    ----------
    data_bits
        Width of the data: a power of two, 8 to 1024.
    read, write
        Whether the port has the channels for reading and for writing.

    Members
    -------
    aw, ar : Out(stream of {addr, len, size, burst})
        Requests; ``len`` is the number of beats less one, ``size`` log2 of the bytes of a beat.
    w : Out(stream of {data, strb, last})
    b : In(stream of {resp})
    r : In(stream of {data, resp, last})
    """

    def __init__(self, *, data_bits: int, read: bool = True, write: bool = True) -> None:
        if data_bits not in (8, 16, 32, 64, 128, 256, 512, 1024):
            raise ValueError(f"data_bits must be a power of two, 8 to 1024, not {data_bits}")
        self.data_bits = data_bits
        self.request_layout = data.StructLayout({"addr": ADDRESS_BITS, "len": 8, "size": 3, "burst": 2})
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
        """Value of ``size`` for beats of the whole width."""
        return (self.data_bits // 8).bit_length() - 1
