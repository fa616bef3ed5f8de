"""What frames of several micro-batches would cost the hardware, for the planner of messages."""

from collections.abc import Sequence

from p4sgd.host.distributed.merging import Passes
from p4sgd.hw.datapath.model import Model
from p4sgd.hw.spec.config import BANKS, CLOCK_NS, WorkerConfig
from p4sgd.hw.spec.packet import FRAME_BYTES, VALUES
from p4sgd.hw.spec.timing import BOARDS_NETWORK, round_trip_cycles

__all__ = ["CHUNKS", "PRECISIONS", "hardware_passes"]

CHUNKS: Sequence[int] = (1, 2, 4, 16, 64, 512)
"""Chunks of an engine that are tried: C."""

PRECISIONS: Sequence[int] = (1, 4, 8)
"""Precisions that are tried: P."""

_AROUND = 24
"""Bytes around a frame on the wire: preamble, check sequence and gap."""

_BYTES_A_CYCLE = 100 / 8 * CLOCK_NS
"""Of a cable of 100 Gbit/s."""


def hardware_passes(config: WorkerConfig, batch: int, chunks: int, precision: int) -> Passes:
    """The passes of a worker of the hardware through a mini-batch of B samples, all times in cycles.

    A frame of n micro-batches has 4 more bytes for each more value. It is sent, as a PARTIAL and later with as many
    bytes as now as an ACK, over one cable, and takes the time of its bytes once. All else takes it as long as a frame
    of one: what it would take the aggregator to add longer frames, and the memory for them, are left out. There are
    slots for all frames, as a U280 has for the way between boards.
    """

    def cost(micro_batches: int) -> float:
        longer = 4 * VALUES * (micro_batches - 1)
        return (2 * (FRAME_BYTES + _AROUND) + longer) / _BYTES_A_CYCLE

    lines = chunks * precision
    forward = [float(lines), *[float(max(lines, Model.UPDATE_SPACING))] * (batch // BANKS - 1)]
    latency = round_trip_cycles(config, BOARDS_NETWORK) - cost(1)
    sizes = [1] * len(forward)
    return Passes(forward, [lines] * len(forward), sizes, cost, latency_s=latency, side_by_side=True)
