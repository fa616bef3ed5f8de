"""Where a board of this machine is, and what it runs."""

import re
from dataclasses import dataclass
from pathlib import Path

from p4sgd.host.errors import UserError

__all__ = ["PREFIX", "BoardAddress", "parse_bdf"]

PREFIX = "xrt:"
"""Of an address of a board, where there may be one of a socket."""

_BDF = re.compile(r"(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


@dataclass(frozen=True)
class BoardAddress:
    """A board by its place on the PCI bus, and the file with its kernels.

    Attributes
    ----------
    bdf
        ``DDDD:BB:DD.F``: domain, bus, device and function.
    xclbin
        What v++ has linked.
    """

    bdf: str
    xclbin: Path

    def __str__(self) -> str:
        return f"{PREFIX}{self.bdf}"


def parse_bdf(text: str) -> str:
    """Read ``xrt:DDDD:BB:DD.F``, of which the domain may be left out; returns the place with its domain.

    Raises
    ------
    UserError
        If it is no such address.
    """
    bdf = text.removeprefix(PREFIX).lower()
    if not text.startswith(PREFIX) or not _BDF.fullmatch(bdf):
        raise UserError(f"{text!r} is no board: give xrt:DDDD:BB:DD.F, as p4sgd info lists them")
    return bdf if bdf.count(":") == 2 else f"0000:{bdf}"
