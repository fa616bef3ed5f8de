"""What is told while a folder is made."""

from collections.abc import Callable
from enum import Enum
from typing import TypeAlias

__all__ = ["OnProgress", "Step"]


class Step(Enum):
    """A step of the work, in their order, and what it counts."""

    IDENTIFY = ("identifying the data", "bytes")
    READ = ("reading labels", "bytes")
    SORT = ("sorting samples", "bytes")
    PACK = ("packing samples", "samples")
    CHECK = ("checking files", "bytes")

    def __init__(self, title: str, unit: str) -> None:
        self.title = title
        self.unit = unit


OnProgress: TypeAlias = Callable[[Step, int, int], None]
"""Called with a step, how much of it is done, and how much there is."""
