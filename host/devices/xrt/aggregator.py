"""The controller of an aggregator on a board of this machine."""

import contextlib

from p4sgd.host.control.board import BoardAddress
from p4sgd.host.devices.xrt.kernel import BoardKernel
from p4sgd.host.devices.xrt.mac import open_mac
from p4sgd.host.errors import P4sgdError
from p4sgd.host.switch.fpga import FpgaAggregator

__all__ = ["KERNEL", "BoardAggregator"]

KERNEL = "p4sgd_aggregator"
"""Name of the kernel."""


class BoardAggregator(FpgaAggregator):
    """An aggregator on a board; its port i is the board's cage i.

    Parameters
    ----------
    address
        The board.
    rs_fec
        Whether its links have forward error correction.

    Raises
    ------
    UserError
        As of `BoardKernel`.
    P4sgdError
        Then and later, as of `BoardKernel` and `FpgaAggregator`; also if jobs are served over links that this would
        change.
    """

    def __init__(self, address: BoardAddress, *, rs_fec: bool) -> None:
        name = f"aggregator at {address}"
        with contextlib.ExitStack() as opened:
            kernel = opened.enter_context(contextlib.closing(BoardKernel(name, address, KERNEL)))
            super().__init__(kernel.read_register, kernel.write_register)
            macs = []
            for port in range(self.config.ports):
                if (mac := open_mac(name, address, port)) is not None:
                    opened.callback(mac.close)
                    macs.append(mac)
            if self._running() and any(mac.rs_fec != rs_fec for mac in macs):
                raise P4sgdError(
                    f"{name} serves jobs over links with RS-FEC {'off' if rs_fec else 'on'}: end them first, or say "
                    f"rs_fec = {str(not rs_fec).lower()} in the cluster file"
                )
            for mac in macs:
                mac.set_rs_fec(rs_fec)
            self._opened = opened.pop_all()

    def close(self) -> None:
        """Give the board back. The aggregator goes on."""
        self._opened.close()
