"""How gradients reach the model."""

from amaranth.hdl import signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import Out

from p4sgd.hw.spec.config import BANKS, WorkerConfig
from p4sgd.hw.spec.fixed import DELTA, MAX_PRECISION

__all__ = ["GRADIENT_BITS", "GradientPort"]

GRADIENT_BITS = DELTA.width + (BANKS - 1).bit_length() + MAX_PRECISION
"""Signed width of an exact gradient: the sum of 8 products of a delta and an 8-bit feature."""


class GradientPort(wiring.Signature):
    """Exact gradients of one chunk of one micro-batch, seen from the gradient unit. No back-pressure.

    Members
    -------
    valid : Out(1)
    chunk : Out(chunk_bits)
    final : Out(1)
        This is the last micro-batch of its mini-batch.
    last : Out(1)
        This is the last chunk of its micro-batch.
    values : Out(ArrayLayout(signed(GRADIENT_BITS), lanes))
    """

    def __init__(self, config: WorkerConfig) -> None:
        super().__init__(
            {
                "valid": Out(1),
                "chunk": Out(config.chunk_bits),
                "final": Out(1),
                "last": Out(1),
                "values": Out(data.ArrayLayout(signed(GRADIENT_BITS), config.lanes)),
            }
        )
