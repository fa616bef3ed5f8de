"""The Ethernet MAC of a board's cage."""

import contextlib
import time

from p4sgd.host.errors import P4sgdError
from p4sgd.host.xrt.board import BoardAddress
from p4sgd.host.xrt.kernel import BoardKernel, MissingKernelError
from p4sgd.hw.spec import cmac
from p4sgd.hw.spec.cmac import LinkState
from p4sgd.hw.spec.register_map import RegisterClient, find_other_map

__all__ = ["BoardMac", "open_mac"]


_UP_S = 3.0
"""Longest time to wait for a link after loading a board: transceivers reset, then lanes are aligned."""

_POLL_S = 0.01
"""Time between two polls for the link."""

_SNAPSHOT_READS = 100
"""Reads to wait for a snapshot, which takes a few cycles of the MAC's clock."""


class BoardMac:
    """The MAC of one cage. Its link comes up without software.

    Parameters
    ----------
    name
        Name of the MAC's user, for messages.
    address
        The board and its xclbin.
    cage
        Number of the QSFP28 cage.

    Raises
    ------
    MissingKernelError
        If the xclbin has no MAC for this cage.
    UserError
        As `BoardKernel`.
    P4sgdError
        As `BoardKernel`, also in later calls; or if the registers are not those of a MAC of this version.
    """

    def __init__(self, name: str, address: BoardAddress, cage: int) -> None:
        self._name = f"the MAC of cage {cage} of {name}"
        with contextlib.ExitStack() as opened:
            kernel = BoardKernel(self._name, address, cmac.kernel_name(cage))
            opened.enter_context(contextlib.closing(kernel))
            self._client = RegisterClient(kernel.read_register, kernel.write_register)
            problem = find_other_map(
                self._client,
                cmac.IDENTITY,
                cmac.MAGIC,
                cmac.ABI_VERSION,
                unknown=f"{self._name} is none: its first word",
                who=f"{self._name} has",
            )
            if problem is not None:
                raise P4sgdError(problem)
            self._opened = opened.pop_all()

    @property
    def rs_fec(self) -> bool:
        """Whether forward error correction is on."""
        return bool(self._client.read(cmac.CONTROL)["rs_fec"])

    def set_rs_fec(self, on: bool) -> None:
        """Switch forward error correction on or off. A change resets the link."""
        if on == self.rs_fec:
            return
        for reset in (1, 0):
            self._client.write(cmac.CONTROL, rs_fec=on, reset=reset)

    def await_link(self) -> None:
        """Wait until the link is up, or `_UP_S` seconds have passed."""
        end = time.monotonic() + _UP_S
        while not self._client.read(cmac.STATUS)["up"] and time.monotonic() < end:
            time.sleep(_POLL_S)

    def link_state(self) -> LinkState:
        """Current state of the link."""
        self._client.write(cmac.SNAPSHOT)
        is_shown = any(not self._client.read(cmac.SNAPSHOT)["pending"] for _ in range(_SNAPSHOT_READS))
        counters = self._client.read_counters(cmac.COUNTERS) if is_shown else {}
        return LinkState(self._client.read(cmac.STATUS), self.rs_fec, counters)

    def close(self) -> None:
        """Release the MAC. The link stays up."""
        self._opened.close()


def open_mac(name: str, address: BoardAddress, cage: int) -> BoardMac | None:
    """Open a `BoardMac`; None if the xclbin has no MAC, as in Vitis' emulator."""
    try:
        return BoardMac(name, address, cage)
    except MissingKernelError:
        return None
