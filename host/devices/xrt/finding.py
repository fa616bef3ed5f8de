"""Which boards this machine has, by what XRT's driver in the kernel says; XRT itself is not needed."""

import re
from dataclasses import dataclass
from pathlib import Path

from p4sgd.host.control.board import PREFIX

__all__ = ["DRIVER", "FoundBoard", "find_boards"]

DRIVER = Path("/sys/bus/pci/drivers/xocl")
"""Boards whose user function XRT's driver has taken."""

_PLACE = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


@dataclass(frozen=True)
class FoundBoard:
    """A board; as a text its address.

    Attributes
    ----------
    bdf
        Its place on the PCI bus.
    shell
        The shell that it has; empty if it does not say.
    is_ready
        Whether it can be used; else its shell is not loaded, or it is being reset.
    """

    bdf: str
    shell: str
    is_ready: bool

    def __str__(self) -> str:
        return f"{PREFIX}{self.bdf}"

    @property
    def description(self) -> str:
        """Address, shell and state."""
        return f"{self} ({self.shell or 'unknown shell'}{'' if self.is_ready else ', not ready'})"


def find_boards() -> list[FoundBoard]:
    """The boards, in the order of their places."""
    if not DRIVER.is_dir():
        return []
    places = sorted(entry for entry in DRIVER.iterdir() if _PLACE.fullmatch(entry.name))
    return [FoundBoard(place.name, _shell(place), _text(place / "ready") in ("1", "0x1")) for place in places]


def _shell(place: Path) -> str:
    return next(filter(None, map(_text, sorted(place.glob("rom.*/VBNV")))), "")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
