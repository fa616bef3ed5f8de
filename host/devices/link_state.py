"""What an Ethernet MAC says of its link."""

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["LinkState"]


@dataclass(frozen=True)
class LinkState:
    """A link as its MAC sees it.

    Attributes
    ----------
    status
        The fields of :data:`p4sgd.hw.spec.cmac.STATUS`.
    rs_fec
        Whether the MAC has forward error correction on.
    counters
        Those of :data:`p4sgd.hw.spec.cmac.COUNTERS`, since the board was loaded; empty if the MAC has no clock.
    """

    status: Mapping[str, int]
    rs_fec: bool
    counters: Mapping[str, int]
