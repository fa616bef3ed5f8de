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
"""Longest time to wait for a link, of a board that was loaded just now: transceivers, and then lanes to be aligned."""

_LOOK_S = 0.01
"""Time between two looks."""

_SNAPSHOT_READS = 100
"""How often to look whether a snapshot is there, which takes a few cycles of the MAC's clock."""


class BoardMac:
    """A MAC, whose link comes up by itself; when it is opened there was time for that.

    Parameters
    ----------
    name
        Whose it is, for messages.
    address
        The board.
    cage
        Number of its QSFP28 cage.

    Raises
    ------
    MissingKernelError
        If the xclbin has no MAC for this cage.
    UserError, P4sgdError
        As of `BoardKernel`; then and later if there is no MAC that this program knows.
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
        """Whether it has forward error correction on."""
        return bool(self._client.read(cmac.CONTROL)["rs_fec"])

    def set_rs_fec(self, on: bool) -> None:
        """Have forward error correction on or off. If that is new, the link goes away and comes back."""
        if on == self.rs_fec:
            return
        for reset in (1, 0):
            self._client.write(cmac.CONTROL, rs_fec=on, reset=reset)

    def await_link(self) -> None:
        """Wait until the link is up, as long as it may take."""
        end = time.monotonic() + _UP_S
        while not self._client.read(cmac.STATUS)["up"] and time.monotonic() < end:
            time.sleep(_LOOK_S)

    def link_state(self) -> LinkState:
        """Its link, now."""
        self._client.write(cmac.SNAPSHOT)
        is_shown = any(not self._client.read(cmac.SNAPSHOT)["pending"] for _ in range(_SNAPSHOT_READS))
        counters = self._client.read_counters(cmac.COUNTERS) if is_shown else {}
        return LinkState(self._client.read(cmac.STATUS), self.rs_fec, counters)

    def close(self) -> None:
        """Give it back. The link stays."""
        self._opened.close()


def open_mac(name: str, address: BoardAddress, cage: int) -> BoardMac | None:
    """A `BoardMac`; None if the xclbin has none, as that of an emulator."""
    try:
        return BoardMac(name, address, cage)
    except MissingKernelError:
        return None
