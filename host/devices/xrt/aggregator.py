"""The controller of an aggregator on a board of this machine."""

import contextlib

from p4sgd.host.control.board import BoardAddress
from p4sgd.host.devices.xrt.kernel import BoardKernel
from p4sgd.host.switch.fpga import FpgaAggregator

__all__ = ["KERNEL", "BoardAggregator"]

KERNEL = "p4sgd_aggregator"
"""Name of the kernel."""


class BoardAggregator(FpgaAggregator):
    """An aggregator on a board; its port i is the board's cage i.

    Raises
    ------
    UserError
        As of `BoardKernel`.
    P4sgdError
        Then and later, as of `BoardKernel` and `FpgaAggregator`.
    """

    def __init__(self, address: BoardAddress) -> None:
        with contextlib.ExitStack() as opened:
            kernel = opened.enter_context(contextlib.closing(BoardKernel(f"aggregator at {address}", address, KERNEL)))
            super().__init__(kernel.read_register, kernel.write_register)
            self._opened = opened.pop_all()

    def close(self) -> None:
        """Give the board back. The aggregator goes on."""
        self._opened.close()
