"""A memory port through registers, both ways."""

from typing import Any

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus import axi4
from p4sgd.hw.bus.register_slice import RegisterSlice
from p4sgd.hw.bus.stream import connect_stream

__all__ = ["Axi4Slice"]


class Axi4Slice(wiring.Component):
    """A `RegisterSlice` in each channel of a memory port: a read takes two cycles more, and throughput is the same.

    Channels do not know of each other, so what is ordered within each stays so, and AXI4 orders nothing else.

    Parameters
    ----------
    bus
        Of the port; it may have the channels of one way only.

    Members
    -------
    master : In(bus)
        What the master is connected to.
    memory : Out(bus)
        The port, as if it were the master's.
    """

    def __init__(self, bus: axi4.Signature) -> None:
        self._bus = bus
        super().__init__({"master": In(bus), "memory": Out(bus)})

    master: Any
    memory: Any

    def elaborate(self, platform: object) -> Module:
        m = Module()
        for name, member in self._bus.members.items():
            master, memory = (getattr(port, name) for port in (self.master, self.memory))
            m.submodules[name] = each = RegisterSlice(master.payload.shape())
            source, sink = (master, memory) if member.flow is Out else (memory, master)
            connect_stream(m, wiring.flipped(source), each.i)
            connect_stream(m, each.o, wiring.flipped(sink))
        return m
