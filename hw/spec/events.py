"""What a worker tells of its micro-batches as they pass: one-cycle pulses, and the stages that lie between them.

Every event comes once a micro-batch and in the order of the micro-batches, so the n-th pulse of each belongs to
micro-batch n; only ``mini_batch_begins`` comes once a mini-batch.
"""

__all__ = ["ENGINE_EVENTS", "EVENTS", "STAGES"]

ENGINE_EVENTS = (
    "mini_batch_begins",
    "forward_begins",
    "forward_ends",
    "backward_begins",
    "backward_ends",
    "update_begins",
    "update_ends",
)
"""Of an engine: with ``forward_begins`` a mini-batch begins; the forward and the backward pass took the first and the
last line of a micro-batch; the first and the last chunk of the model were written."""

EVENTS = (*ENGINE_EVENTS, "partial_sent", "sums_came", "deltas_came")
"""Of a worker, whose engine 0 speaks for all: also, the endpoint took a partial, the loss unit took sums, deltas left
it. Number i is bit i of the worker's ``events``."""

STAGES = {
    "forward": ("forward_begins", "forward_ends"),
    "network": ("partial_sent", "sums_came"),
    "loss": ("sums_came", "deltas_came"),
    "backward": ("backward_begins", "backward_ends"),
    "update": ("update_begins", "update_ends"),
}
"""What a micro-batch goes through, each with its first and its last event. What lies between two stages is the way
from one to the other, or waiting."""
