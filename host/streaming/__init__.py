"""Preparation of data sets larger than memory, in a folder that training reads."""

from collections.abc import Callable
from enum import Enum
from typing import TypeAlias

__all__ = ["OnProgress", "Step"]


class Step(Enum):
    """The steps of a preparation in order, each with a title and the unit of its progress."""

    IDENTIFY = ("identifying the data", "bytes")
    READ = ("reading labels", "bytes")
    SORT = ("sorting samples", "bytes")
    ENCODE = ("encoding texts", "samples")
    SCALE = ("measuring features", "samples")
    PACK = ("packing samples", "samples")
    CHECK = ("checking files", "bytes")

    def __init__(self, title: str, unit: str) -> None:
        self.title = title
        self.unit = unit


OnProgress: TypeAlias = Callable[[Step, int, int], None]
"""Called with a step, how much of it is done, and its total."""
