"""The Ethernet MAC of a board's cage."""

import contextlib
import time
from collections.abc import Sequence

from p4sgd.host.boards.kernel import EMULATED_WAIT_S, BoardAddress, MissingKernelError
from p4sgd.host.errors import P4sgdError
from p4sgd.hw.spec import cmac
from p4sgd.hw.spec.cmac import LinkState
from p4sgd.hw.spec.register_map import find_other_map

_TRY_S = 3.0
"""Longest time to wait for a link after a reset: transceivers adapt, then lanes are aligned at both ends."""

_TRIES = 4
"""Resets of the receivers, each followed by such a wait: 12 s. After a board's reset links through a switch needed more
than 5 s, and 10 s were enough (github.com/Xilinx/xup_vitis_network_example, issue 98). OpenNIC's driver gives up
after 5 s (github.com/Xilinx/open-nic, issue 14)."""

_OTHER_FEC_S = 1.5
"""Longest time to wait for a link with the other setting of forward error correction, and then with the own one."""

_POLL_S = 0.01

_SNAPSHOT_READS = 100
"""Reads to wait for a snapshot, which takes a few cycles of the MAC's clock."""


class BoardMac:
    """A MAC. Its link comes up without software, unless its receivers do not adapt at the first try.

    ``name`` is that of the MAC's user, for messages; without a cage it is what stands in for a worker's MAC on a board
    that Vitis emulates. Errors as of `BoardAddress.open_kernel`; P4sgdError if the registers are not those of a MAC of
    this version.
    """

    def __init__(self, name: str, address: BoardAddress, cage: int | None) -> None:
        self._name = f"the stand-in for the MAC of {name}" if cage is None else f"the MAC of cage {cage} of {name}"
        self.is_emulated = address.is_emulated
        self._other_end_fec: bool | None = None
        with contextlib.ExitStack() as opened:
            wanted = cmac.EMULATED_KERNEL if cage is None else cmac.kernel_name(cage)
            kernel = address.open_kernel(self._name, wanted)
            opened.enter_context(contextlib.closing(kernel))
            self._client = kernel.client
            identity = cmac.IDENTITY, cmac.MAGIC, cmac.ABI_VERSION
            unknown, who = f"{self._name} is none: its first word", f"{self._name} has"
            if problem := find_other_map(self._client, *identity, unknown=unknown, who=who):
                raise P4sgdError(problem)
            self._opened = opened.pop_all()

    @property
    def rs_fec(self) -> bool:
        """Whether forward error correction is on."""
        return bool(self._client.read(cmac.CONTROL)["rs_fec"])

    def set_rs_fec(self, on: bool) -> None:
        """Switch forward error correction on or off. A change resets the link."""
        if on != self.rs_fec:
            self._pulse("reset", rs_fec=on)

    def set_loopback(self, on: bool) -> None:
        """Let the transceivers receive what they send, or else what comes in. A change resets the link."""
        if on != bool(self._client.read(cmac.CONTROL)["loopback"]):
            self._pulse("reset", loopback=on)

    def _pulse(self, reset: str, **settings: int) -> None:
        """Set and clear a reset in CONTROL, together with other settings."""
        control = self._client.read(cmac.CONTROL) | settings
        for asserted in (1, 0):
            self._client.write(cmac.CONTROL, **control | {reset: asserted})

    def has(self, status: str) -> bool:
        """Whether a field of STATUS is set: ``up`` or ``aligned``."""
        return bool(self._client.read(cmac.STATUS)[status])

    def reset_receivers(self) -> None:
        """Have the transceivers' receivers adapt anew."""
        self._pulse("rx_reset")

    def find_other_fec(self, is_found: bool) -> None:
        """Note whether lanes were aligned with the present setting of error correction, then take the other again."""
        self._other_end_fec = self.rs_fec if is_found else None
        self.set_rs_fec(not self.rs_fec)

    def link_state(self) -> LinkState:
        """Current state of the link."""
        status = self._client.read(cmac.STATUS) | self._client.read(cmac.LANES)
        self._client.write(cmac.SNAPSHOT)
        is_shown = any(not self._client.read(cmac.SNAPSHOT)["pending"] for _ in range(_SNAPSHOT_READS))
        counters = self._client.read_counters(cmac.COUNTERS) if is_shown else {}
        return LinkState(status, self.rs_fec, counters, None if status["aligned"] else self._other_end_fec)

    def close(self) -> None:
        """Release the MAC. The link stays up."""
        self._opened.close()


def await_links(macs: Sequence[BoardMac], ends: Sequence[BoardMac] = ()) -> None:
    """Wait until links are up, for up to 15 s for all together; for longer, and no more than that, in Vitis' emulator.

    While lanes of a link are not aligned, its receivers are reset every `_TRY_S` seconds. If that does not help, the
    other setting of forward error correction is tried for a moment, to find out whether the other end has it; but not
    at MACs that are the other ``ends`` of some: if both ends changed it, they would still agree.
    """
    if emulated := [mac for mac in [*macs, *ends] if mac.is_emulated]:
        _await(emulated, "up", EMULATED_WAIT_S)
    waiting = [mac for mac in [*macs, *ends] if not mac.is_emulated]
    for _ in range(_TRIES):
        if not (waiting := _await(waiting, "up", _TRY_S)):
            return
        for mac in waiting:
            if not mac.has("aligned"):
                mac.reset_receivers()
    dark = [mac for mac in _await(waiting, "aligned", _POLL_S) if mac in macs]
    for mac in dark:
        mac.set_rs_fec(not mac.rs_fec)
    silent = _await(dark, "aligned", _OTHER_FEC_S)
    for mac in dark:
        mac.find_other_fec(mac not in silent)
    _await(dark, "up", _OTHER_FEC_S)


def _await(macs: Sequence[BoardMac], status: str, seconds: float) -> list[BoardMac]:
    """Wait until all MACs have a status; returns those that have not."""
    end = time.monotonic() + seconds
    while (missing := [mac for mac in macs if not mac.has(status)]) and time.monotonic() < end:
        time.sleep(_POLL_S)
    return missing


def open_mac(name: str, address: BoardAddress, cage: int | None) -> BoardMac | None:
    """Open a `BoardMac`; None if the bitstream has no such MAC, as an aggregator has none in Vitis' emulator."""
    try:
        return BoardMac(name, address, cage)
    except MissingKernelError:
        return None
