"""Why a frame is not acted on."""

from enum import IntEnum
from typing import Self

__all__ = ["VERDICT", "Drop"]


class Drop(IntEnum):
    """The first check that a frame fails, in the order of the checks; each has a counter on either side.

    Attributes
    ----------
    help : str
        What is wrong with the frame.
    """

    help: str

    def __new__(cls, value: int, text: str) -> Self:
        member = int.__new__(cls, value)
        member._value_ = value
        member.help = text
        return member

    RUNT = 0, "fewer bytes than a packet"
    LONG = 1, "more bytes than a packet"
    ETHERTYPE = 2, "of another protocol"
    VERSION = 3, "of another version of the packet format"
    RESERVED = 4, "not 0 where the format is"
    ADDRESS = 5, "for somebody else"
    TYPE = 6, "of no known type, or of one for the other side"
    JOB = 7, "of another job, or of none that is served"
    WORKERS = 8, "of a job with another number of workers"
    SHARD = 9, "for another shard, of none of the job's, or with a bitmap that does not go with it"
    SLOT = 10, "of no slot that there is"
    SOURCE = 11, "from another MAC address than the shard's or the aggregator's, or from another port"
    STALE = 12, "of a round that is over, or that cannot be yet"
    DUPLICATE = 13, "saying what is known"


VERDICT = (Drop.JOB, Drop.WORKERS, Drop.SHARD, Drop.SLOT, Drop.SOURCE)
"""What an aggregator checks that depends on its settings; bit i of a probe's verdict is check i, failed.

Without a job nothing further is checked, and without a right shard no source.
"""
