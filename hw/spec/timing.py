"""Cycles of a mini-batch, predicted from the latencies of the components.

The simulated RTL is held to these figures, to the cycle (``tests/system/test_cycles.py``), and their terms to those of
the components (``tests/hw/spec/test_latencies.py``). A mini-batch of B samples, C chunks an engine and precision P
takes::

    (B/8)·C·P + forward + network + backward + chaining

cycles, where ``network`` is from the PARTIAL that leaves the last worker to the FULL that comes back. The first term is
the lines, the others pass between the last line of a mini-batch and the first of the next. A worker of few slots waits
within one, too, if `WorkerConfig.in_flight` micro-batches take less time than a sum. Micro-batches of fewer than
`TABLE_ENTRIES` lines follow each other at that distance. The update of a chunk takes `CHUNK_SPACING` cycles, so with
P = 1 backward passes take twice as many cycles as lines, and the first forward pass of a mini-batch, which follows one.
"""

from p4sgd.hw.spec.config import BANKS, CLOCK_NS, WorkerConfig

MAC_CLOCK_NS = 1000 / 322.265625  # clock period of a MAC's user side: 322.27 MHz

NETWORK_NS = {
    "aggregator": (44, 72),
    "merge and split": (16, 16),
    "adapters": (53, 68),
    "FIFOs": (48, 48),
    "frames": (12, 12),
    "cables": (50, 50),
    "MAC and PCS": (169, 169),
    "transceivers": (150, 200),
    "RS-FEC": (273, 273),
}
"""Least and most ns between boards, from the PARTIAL that leaves the last of 8 workers to the FULL that comes to all.
Which of them are simulated, and which the vendor's, is in hw/net/README.md, "How long it takes"."""

BOARDS_NETWORK = -(-sum(most for _, most in NETWORK_NS.values()) // CLOCK_NS)  # the most, in cycles
READER_LATENCY = 2  # cycles from the last beat at a memory port to its line, which come before `forward_cycles`

UPDATE_SPACING = 11
"""Least cycles between gradients of the same chunk: the ten stages of the update, and one to read it back."""

CHUNK_SPACING = 2
"""Least cycles between gradients: half the lanes of a chunk are updated in a cycle."""

TABLE_ENTRIES = 16
"""Least cycles from the start of a backward pass of an engine to the next. Before it, the sums of all subsets of four
deltas are written to tables, one a cycle."""

RESET_CYCLES = 16
"""Least cycles of a reset of a worker or an aggregator, in which pipelines empty: most of their registers have none."""

TREE_RADIX = 3
"""Numbers that a node of an adder tree adds. A ternary adder takes as many LUTs as a binary one (UG574, "Carry Logic"),
and a tree of them half the nodes."""


def tree_latency(terms: int) -> int:
    """Levels of an adder tree, which are its latency in cycles: the least n with ``TREE_RADIX**n >= terms``."""
    levels = 0
    while TREE_RADIX**levels < terms:
        levels += 1
    return levels


MAX_STAGES = 8
"""Stages of the longest cascades in the forward pass. A stage is an adder of a DSP slice, with two lanes."""


def forward_stages(lanes: int) -> int:
    """Stages of each of the cascades that add up the weights of a chunk."""
    return min(MAX_STAGES, lanes // 2)


def forward_cascades(lanes: int) -> int:
    """Cascades of a bank."""
    return lanes // (2 * forward_stages(lanes))


def forward_cycles(config: WorkerConfig) -> int:
    """Cycles from taking the last line of a micro-batch to its PARTIAL at the MAC."""
    weights_read, gated, horner, unit_summed = 2, 1, 1, 2
    summed = forward_stages(config.lanes) + tree_latency(forward_cascades(config.lanes))
    dot_product = weights_read + gated + summed + horner + unit_summed
    partial_sum = 5 + tree_latency(config.engines)
    sent = 1
    return dot_product + partial_sum + sent


def backward_cycles() -> int:
    """Cycles from FULL at the MAC to the first line of the backward pass."""
    received, residual, taken, begun = 3, 6, 1, TABLE_ENTRIES
    return received + residual + taken + begun


def round_trip_cycles(config: WorkerConfig, network: int) -> int:
    """Cycles from the last line of a micro-batch to its first in the backward pass."""
    return forward_cycles(config) + network + backward_cycles()


def chaining_cycles(precision: int) -> int:
    """Cycles from the first line of the last backward pass to the first line of the next mini-batch's forward pass.

    These are all planes of the first chunk, its gradient, its update, and the credit of the scoreboard.
    """
    gradient, update, credit = 3, UPDATE_SPACING - 1, 1
    return precision - 1 + gradient + update + credit


def chained_lines(chunks: int, precision: int) -> int:
    """Cycles that a forward pass takes for the lines of a micro-batch while it follows a backward pass."""
    return chunks * precision + (chunks - 1) * max(0, CHUNK_SPACING - precision)


def backward_lines(chunks: int, precision: int) -> int:
    """Cycles that a backward pass takes for the lines of a micro-batch."""
    return chunks * max(precision, CHUNK_SPACING)


def backward_spacing(chunks: int, precision: int) -> int:
    """Least cycles from the first line of a micro-batch's backward pass to that of the next."""
    return max(backward_lines(chunks, precision), TABLE_ENTRIES)


def mini_batch_cycles(
    config: WorkerConfig, batch: int, chunks: int, precision: int, network: int, *, stale: bool = False
) -> float:
    """Average cycles from one mini-batch to the next, if memory keeps up and there are enough slots.

    With staleness two mini-batches are under way at once, so the average is half of what one takes, but at least the
    time of its lines.
    """
    spacing = backward_spacing(chunks, precision)
    lines = chained_lines(chunks, precision) + (batch // BANKS - 1) * spacing
    whole = lines + round_trip_cycles(config, network) + chaining_cycles(precision)
    return max(batch // BANKS * spacing, whole / 2) if stale else whole
