"""AXI4-Stream beats of the 512-bit network bus."""

from amaranth.lib import data

__all__ = ["FrameBeat"]

FrameBeat = data.StructLayout({"data": 512, "keep": 64, "last": 1})
"""One beat: byte i of the frame is ``data[8*i : 8*i + 8]``, valid where ``keep[i]`` is set; ``last`` ends the frame.

Every frame of P4SGD is one beat with all bytes valid (see :mod:`p4sgd.hw.spec.packet`).
"""
