"""Cycles of a run by cause, predicted without a simulation.

`p4sgd.hw.spec.timing` has the cycles of a mini-batch. This adds up a run, with its end and with waits for slots, for a
worker whose memory keeps up and whose packets are not lost or delayed. The estimate is some cycles a mini-batch off
(``tests/system/test_cycles.py``).
"""

from p4sgd.hw.aggregator.aggregator import Aggregator
from p4sgd.hw.datapath.backward import Gradient
from p4sgd.hw.datapath.model import Model
from p4sgd.hw.spec.config import BANKS, WorkerConfig
from p4sgd.hw.spec.timing import (
    backward_lines,
    backward_spacing,
    chained_lines,
    chaining_cycles,
    forward_cycles,
    mini_batch_cycles,
    round_trip_cycles,
)
from p4sgd.sim.cluster.cluster import CABLE_CYCLES

_ACKNOWLEDGING = 10  # cycles of a worker from the last FULL to its ACK, and from the answer to the end of the run


def network_cycles(workers: int) -> int:
    """Cycles from the PARTIALs that leave so many workers at once to the FULL that comes back, in a simulation."""
    return 2 * CABLE_CYCLES + Aggregator.LATENCY + workers - 1


def predict_cycles(
    config: WorkerConfig, *, batch: int, chunks: int, precision: int, mini_batches: int, network: int, stale: bool
) -> dict[str, int]:
    """Cycles of a run by the counters ``CYCLES_…`` that they would be counted in, without CYCLES_MEMORY.

    Parameters are those of `mini_batch_cycles`, where ``network`` is the cycles from PARTIAL to FULL.
    """
    lines = chunks * precision
    micro_batches, way = batch // BANKS, round_trip_cycles(config, network)
    # So many micro-batches are under way at once; another one waits until the backward pass of the first has begun.
    window = min(config.in_flight, max(1, config.line_fifo_depth // lines))
    wait = max(0, lines + way + 1 - window * lines)
    if stale:
        period = mini_batch_cycles(config, batch, chunks, precision, network, stale=True)
        slots = (mini_batches * micro_batches - 1) // window * wait
        sums = max(slots, round((mini_batches - 1) * (period - micro_batches * lines)))
        chaining = 0
    else:
        slots = (micro_batches - 1) // window * wait
        spacing = backward_spacing(chunks, precision) - lines
        spaced = max((micro_batches - 1) * spacing - slots, (min(window, micro_batches) - 1) * spacing)
        sums = (mini_batches - 1) * way + mini_batches * slots
        chained = chaining_cycles(precision) + chained_lines(chunks, precision) - lines
        chaining = (mini_batches - 1) * chained + mini_batches * spaced
    updated = way + backward_lines(chunks, precision) + Gradient.LATENCY + Model.WRITE_LATENCY
    acknowledged = forward_cycles(config) + 2 * network + _ACKNOWLEDGING
    return {
        "CYCLES_BUSY": mini_batches * micro_batches * lines,
        "CYCLES_NETWORK": sums,
        "CYCLES_CHAINING": chaining,
        "CYCLES_DRAIN": max(updated, acknowledged),
    }
