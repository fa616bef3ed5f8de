"""How the host fills the loss table."""

from amaranth.hdl import signed
from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.fixed import INTERCEPT, SLOPE

__all__ = ["TableWritePort"]


class TableWritePort(wiring.Signature):
    """Writes of one segment, seen from the writer.

    Members
    -------
    enable : Out(1)
    index : Out(segment_bits)
    slope : Out(SLOPE), intercept : Out(INTERCEPT)
    """

    def __init__(self, config: WorkerConfig) -> None:
        super().__init__(
            {
                "enable": Out(1),
                "index": Out(config.segment_bits),
                "slope": Out(signed(SLOPE.width)),
                "intercept": Out(signed(INTERCEPT.width)),
            }
        )
