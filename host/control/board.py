"""Where a board of this machine is, and what it runs."""

import re
from dataclasses import dataclass
from pathlib import Path

from p4sgd.host.errors import UserError

__all__ = ["PREFIX", "BoardAddress", "parse_device"]

PREFIX = "xrt:"
"""Of an address of a board, where there may be one of a socket."""

_BDF = re.compile(r"(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_NUMBER = re.compile(r"0|[1-9][0-9]?")


@dataclass(frozen=True)
class BoardAddress:
    """A board, by its place on the PCI bus or as one that Vitis emulates, and the file with its kernels.

    Attributes
    ----------
    device
        What XRT knows it by: ``DDDD:BB:DD.F`` (domain, bus, device and function), or the number of an emulated board,
        which has no such place.
    xclbin
        What v++ has linked.
    """

    device: str
    xclbin: Path

    def __str__(self) -> str:
        return f"{PREFIX}{self.device}"


def parse_device(text: str) -> str:
    """Read ``xrt:DDDD:BB:DD.F``, of which the domain may be left out, or ``xrt:N``; returns what XRT knows it by.

    Raises
    ------
    UserError
        If it is no such address.
    """
    device = text.removeprefix(PREFIX).lower()
    if text.startswith(PREFIX):
        if _NUMBER.fullmatch(device):
            return device
        if _BDF.fullmatch(device):
            return device if device.count(":") == 2 else f"0000:{device}"
    raise UserError(
        f"{text!r} is no board: give xrt:DDDD:BB:DD.F, as p4sgd info lists them, or of one that Vitis emulates xrt:0"
    )
