"""How the weights are read."""

from amaranth.hdl import signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.fixed import WEIGHT

__all__ = ["MODEL_READ_LATENCY", "ReadPort", "weights_layout"]

MODEL_READ_LATENCY = 2
"""Cycles from an address to its data: block RAM with its output register."""


def weights_layout(config: WorkerConfig) -> data.ArrayLayout:
    """The weights of one chunk, lane 0 lowest."""
    return data.ArrayLayout(signed(WEIGHT.width), config.lanes)


class ReadPort(wiring.Signature):
    """Read access to the model, seen from the reader.

    Members
    -------
    address : Out(chunk_bits)
        Chunk to read, from the half that the top bit names where the model keeps two versions.
    enable : Out(1)
        The address is valid in this cycle.
    data : In(weights_layout)
        Weights of the chunk whose address was presented `MODEL_READ_LATENCY` cycles before.
    """

    def __init__(self, config: WorkerConfig) -> None:
        super().__init__(
            {
                "address": Out(config.chunk_bits),
                "enable": Out(1),
                "data": In(weights_layout(config)),
            }
        )
