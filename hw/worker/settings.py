"""What the worker tells its engines, and what they say of themselves."""

from amaranth.hdl import unsigned
from amaranth.lib import data, wiring
from amaranth.lib.wiring import Out

from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.events import ENGINE_EVENTS
from p4sgd.hw.spec.run import COUNT_BITS

__all__ = ["ENGINE_SETTINGS", "EngineCommands", "EngineState"]

ENGINE_SETTINGS = data.StructLayout(
    {
        "precision": unsigned(registers.FORMAT["precision"].bits),
        "stored": unsigned(registers.FORMAT["stored"].bits),
        "signed": unsigned(1),
        "chunks": unsigned(registers.CHUNKS["value"].bits),
        "total_chunks": unsigned(COUNT_BITS),
        "micro_batches": unsigned(registers.MICRO_BATCHES["value"].bits),
        "gradient_shift": unsigned(registers.RATE["gradient_shift"].bits),
        "shrink": unsigned(registers.SHRINK_FACTOR["value"].bits),
        "threshold": unsigned(registers.THRESHOLD["value"].bits),
        "stale": unsigned(1),
    }
)
"""Settings of a run, stable from its start to its end; ``total_chunks`` is the number of chunks of the run."""


class EngineCommands(wiring.Signature):
    """Pulses from the worker to its engines.

    Members
    -------
    load, zero : Out(1)
        Fill the model from memory, or with zeros.
    train : Out(1)
        Do the run.
    store : Out(1)
        Write the model to memory.
    abort : Out(1)
        Give up what was begun, but not a store; idle when nothing more will come from memory. Then a reset must follow.
    """

    def __init__(self) -> None:
        super().__init__({name: Out(1) for name in ("load", "zero", "train", "store", "abort")})


class EngineState(wiring.Signature):
    """What the worker sees of an engine, each from a register.

    Members
    -------
    idle : Out(1)
        No command is under way.
    weight_saturated, memory_error : Out(1)
        Pulses.
    took_line, lines_left, line_waiting, awaiting_sums : Out(1)
        For the counters: a line was taken; not all lines of the run were, until 2 cycles after the last; one is there;
        if it must wait, it is for sums that have not come.
    <event> : Out(1)
        Pulses, one for each of `ENGINE_EVENTS`.
    in_flight : Out(range(in_flight + 1))
        Micro-batches between the start of their forward and of their backward pass.
    """

    def __init__(self, config: WorkerConfig) -> None:
        flags = (
            "idle",
            "weight_saturated",
            "memory_error",
            "took_line",
            "lines_left",
            "line_waiting",
            "awaiting_sums",
            *ENGINE_EVENTS,
        )
        super().__init__({flag: Out(1) for flag in flags} | {"in_flight": Out(range(config.in_flight + 1))})
