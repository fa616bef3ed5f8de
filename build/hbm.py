"""Which pseudo channels of a board's high-bandwidth memory each memory of a worker gets."""

from dataclasses import dataclass

from p4sgd.hw.spec.config import WorkerConfig

__all__ = ["HBM_U280", "Hbm", "HbmMap", "map_memories"]


@dataclass(frozen=True)
class Hbm:
    """High-bandwidth memory.

    Attributes
    ----------
    channels
        Pseudo channels, each with an AXI port of its own; one half of them belongs to each stack.
    channel_bytes
        Bytes of one.
    """

    channels: int
    channel_bytes: int


HBM_U280 = Hbm(32, 256 << 20)
"""Of an Alveo U280: two stacks of 4 GiB (DS963; PG276)."""


@dataclass(frozen=True)
class HbmMap:
    """Pseudo channels of a worker's memories.

    Attributes
    ----------
    channels
        Of each memory, in the order of `WorkerConfig.memories`. None are left for the labels where the banks of the
        engines take all: then these belong into the board's other memory.
    bank_bytes
        Bytes of an engine's bank.
    """

    channels: tuple[range, ...]
    bank_bytes: int

    @property
    def image_bytes(self) -> int:
        """Bytes of the largest image, without its labels: of lines and weights, padding included."""
        return self.bank_bytes * (len(self.channels) - 1)


def map_memories(config: WorkerConfig, hbm: Hbm) -> HbmMap:
    """Give every bank of a worker as many channels of its own as every other, evenly spread over both stacks.

    A channel that two masters read is no faster than with one, so none is shared. Labels, 32 bytes a micro-batch, get
    the last channel.

    Raises
    ------
    ValueError
        If there are more banks than channels.
    """
    banks = config.memories - 1
    if banks > hbm.channels:
        raise ValueError(f"{banks} banks of engines do not fit into {hbm.channels} channels of memory")
    apart = hbm.channels // banks
    each = max(1, (hbm.channels - 1) // banks)
    labels = range(hbm.channels - 1, hbm.channels) if banks * each < hbm.channels else range(0)
    starts = range(0, banks * apart, apart)
    return HbmMap((*(range(start, start + each) for start in starts), labels), each * hbm.channel_bytes)
