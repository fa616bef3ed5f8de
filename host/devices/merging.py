"""Which version of the packet a job uses, and how many micro-batches travel in one."""

from collections.abc import Sequence
from dataclasses import dataclass

from p4sgd.hw.spec.packet import KEYED_VERSION, VERSION

__all__ = ["MergeLimit", "cut_evenly", "find_merge_limit"]


@dataclass(frozen=True)
class MergeLimit:
    """What all members of a job understand.

    Parameters
    ----------
    most
        Most micro-batches in a packet of version 2; 0 if some speak version 1 only.
    why
        Who allows no more, and of what kind it is.
    """

    most: int
    why: str

    @property
    def version(self) -> int:
        """Highest version of the packet that all speak."""
        return KEYED_VERSION if self.most else VERSION


def find_merge_limit(workers: Sequence[int], aggregator: int | None, names: Sequence[object]) -> MergeLimit:
    """The limit of a job.

    Parameters
    ----------
    workers
        The register MERGE_MOST of each worker, by shard.
    aggregator
        The same of the aggregator; None if it cannot be asked.
    names
        Names of the workers, by shard.
    """
    members = [(aggregator or 0, "the aggregator")]
    members += [(most, str(name)) for most, name in zip(workers, names, strict=True)]
    most, name = min(members, key=lambda member: member[0])
    if most:
        return MergeLimit(most, f"{name} takes no longer frames")
    who = [name for each, name in members if not each]
    speak = "speaks" if len(who) == 1 else "speak"
    return MergeLimit(0, f"{', '.join(who)} {speak} version {VERSION} only, as hardware does")


def cut_evenly(micro_batches: int, most: int) -> int:
    """Micro-batches in each packet of a mini-batch: as few packets as ``most`` allows, and those about equally long."""
    packets = -(-micro_batches // most)
    return -(-micro_batches // packets)
