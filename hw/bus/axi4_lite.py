"""AXI4-Lite register bus (ARM IHI 0022, part B)."""

from amaranth.hdl import unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.spec.register_map import ADDRESS_BITS

__all__ = ["DATA_BITS", "READ", "RESPONSE", "WRITE", "Signature"]

DATA_BITS = 32

WRITE = data.StructLayout({"data": DATA_BITS, "strb": DATA_BITS // 8})
"""Payload of the w channel."""

RESPONSE = data.StructLayout({"resp": unsigned(2)})
"""Payload of the b channel."""

READ = data.StructLayout({"data": DATA_BITS, "resp": 2})
"""Payload of the r channel."""


class Signature(wiring.Signature):
    """A register port, seen from the master.

    Members
    -------
    aw, ar : Out(stream of {addr})
    w : Out(stream of WRITE)
    b : In(stream of RESPONSE)
    r : In(stream of READ)
    """

    def __init__(self) -> None:
        address = data.StructLayout({"addr": ADDRESS_BITS})
        super().__init__(
            {
                "aw": Out(stream.Signature(address)),
                "w": Out(stream.Signature(WRITE)),
                "b": In(stream.Signature(RESPONSE)),
                "ar": Out(stream.Signature(address)),
                "r": In(stream.Signature(READ)),
            }
        )
