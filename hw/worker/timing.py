"""Cycles of a mini-batch, predicted from the latencies of the components.

The simulated RTL is held to these figures, to the cycle (``tests/system/test_cycles.py``). A mini-batch of B samples,
C chunks an engine and precision P takes::

    (B/8)·C·P + forward + network + backward + chaining

cycles, where ``network`` is from the PARTIAL that leaves the last worker to the FULL that comes back. The first term is
the lines that are read. The others pass between the last line of a mini-batch and the first of the next. A worker with
few slots waits within a mini-batch, too: if `WorkerConfig.in_flight` micro-batches take less time than a sum takes to
come back. Micro-batches of fewer than `Model.UPDATE_SPACING` lines follow each other at that distance.
"""

from p4sgd.hw.datapath.backward import Gradient
from p4sgd.hw.datapath.forward import DotProduct
from p4sgd.hw.datapath.loss import LossUnit
from p4sgd.hw.datapath.model import Model
from p4sgd.hw.datapath.partials import PartialSum
from p4sgd.hw.net.endpoint import Endpoint
from p4sgd.hw.spec.config import BANKS, WorkerConfig

__all__ = ["READER_LATENCY", "backward_cycles", "chaining_cycles", "forward_cycles", "mini_batch_cycles"]

READER_LATENCY = 2
"""Cycles from the last beat at a memory port to its line, which come before `forward_cycles`."""

_ENGINE_REGISTER = 1
"""The register in which an engine takes deltas."""


def forward_cycles(config: WorkerConfig) -> int:
    """Cycles from taking the last line of a micro-batch to its PARTIAL at the MAC."""
    return DotProduct.latency(config) + PartialSum.latency(config) + Endpoint.TX_LATENCY


def backward_cycles() -> int:
    """Cycles from FULL at the MAC to the first line of the backward pass."""
    return Endpoint.RX_LATENCY + LossUnit.LATENCY + _ENGINE_REGISTER + Gradient.BEGIN_LATENCY


def chaining_cycles(precision: int) -> int:
    """Cycles from the first line of the last backward pass to the first line of the next mini-batch's forward pass.

    These are all planes of the first chunk, its gradient, its update, and the credit of the `Scoreboard`.
    """
    return precision - 1 + Gradient.LATENCY + Model.WRITE_LATENCY + 1


def mini_batch_cycles(
    config: WorkerConfig, batch: int, chunks: int, precision: int, network: int, *, stale: bool = False
) -> float:
    """Average cycles from one mini-batch to the next, if memory keeps up and there are enough slots.

    Parameters
    ----------
    config
        Size of the worker.
    batch, chunks, precision
        B, C and P.
    network
        Cycles from PARTIAL to FULL.
    stale
        Staleness: two mini-batches are under way at once, so the average is half of what one takes, but at least the
        time of its lines.
    """
    spacing = max(chunks * precision, Model.UPDATE_SPACING)
    lines = chunks * precision + (batch // BANKS - 1) * spacing
    whole = lines + forward_cycles(config) + network + backward_cycles() + chaining_cycles(precision)
    return max(batch // BANKS * spacing, whole / 2) if stale else whole
