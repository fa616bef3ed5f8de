"""What the programs of switches and their controllers must agree on besides the protocol."""

from p4sgd.hw.spec.aggregator import MAX_JOBS

__all__ = ["FLOOD_GROUP", "GENERATION_BITS", "NODE_RID", "group_of"]

GENERATION_BITS = 16
"""Bits of the number that tells the slots of a job from those that earlier jobs have left."""

FLOOD_GROUP = 2 * MAX_JOBS
"""Multicast group that frames of other protocols are flooded to."""

NODE_RID = 1
"""Replication number of the nodes of all groups on Tofino: frames that have it do not go back where they came from."""


def group_of(place: int) -> int:
    """Multicast group of the ports of the job in a place; 0 is none."""
    return MAX_JOBS + place
