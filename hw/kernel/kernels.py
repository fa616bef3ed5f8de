"""Worker and aggregator as kernels."""

from collections.abc import Callable, Sequence
from typing import Any

from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.aggregator.aggregator import Aggregator
from p4sgd.hw.bus.axi import Axi4Slice, FrameBeat
from p4sgd.hw.bus.stream import connect_stream
from p4sgd.hw.kernel.clocking import PORTS, connect_control, kernel_clock
from p4sgd.hw.kernel.frames import FrameMerge, FrameSplit
from p4sgd.hw.primitives import Component
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.worker.engine import Engine
from p4sgd.hw.worker.worker import Worker, memory_port, worker_signature

__all__ = ["AggregatorKernel", "WorkerKernel", "connect_memory", "slice_name"]


def slice_name(memory: int, number: int) -> str:
    """Submodule name of a register slice to a memory; ``number`` counts from the worker on, from 0."""
    return f"gmem{memory}_slice{number}"


def connect_memory(m: Module, port: Any, kernel: Any, memory: int, slices: int) -> None:
    """Connect a memory port within a kernel to the kernel's ``gmem<memory>``, through a number of register slices."""
    for number in range(slices):
        m.submodules[slice_name(memory, number)] = each = Axi4Slice(port.signature)
        wiring.connect(m, port, each.master)
        port = each.memory
    wiring.connect(m, port, wiring.flipped(getattr(kernel, f"gmem{memory}")))


class WorkerKernel(Component):
    """A `Worker` with the ports of a board. Ports that serve only simulation are left open.

    ``slices`` are the numbers of register slices to each memory, or ValueError: one on each die of the way. Empty for
    none.
    """

    def __init__(
        self,
        config: WorkerConfig,
        *,
        build_id: int = 0,
        engine: Callable[[WorkerConfig], Any] = Engine,
        slices: Sequence[int] = (),
    ) -> None:
        self._config = config
        self._slices = tuple(slices) or (0,) * config.memories
        if len(self._slices) != config.memories:
            raise ValueError(f"slices must be of {config.memories} memories, not {len(self._slices)}")
        self._build_id = build_id
        self._engine = engine
        ports = worker_signature(config).create()
        ports = {
            **PORTS,
            # Memories, numbered as in `WorkerConfig.memories`. Only port 0 of an engine writes.
            **{f"gmem{i}": Out(memory_port(config, ports, i).signature) for i in range(config.memories)},
            # Frames to and from the MAC.
            "axis_tx": Out(stream.Signature(FrameBeat)),
            "axis_rx": In(stream.Signature(FrameBeat)),
        }
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        kernel_clock(m, self.ap_clk, self.ap_rst_n)
        m.submodules.worker = worker = Worker(self._config, build_id=self._build_id, engine=self._engine)
        connect_control(m, self.control, worker.control)
        for i, count in enumerate(self._slices):
            connect_memory(m, memory_port(self._config, worker, i), self, i, count)
        wiring.connect(m, worker.tx, wiring.flipped(self.axis_tx))
        wiring.connect(m, wiring.flipped(self.axis_rx), worker.rx)
        return m


class AggregatorKernel(Component):
    """An `Aggregator` with a pair of streams for each of its ports::

        axis_rx<i> ─▶ FrameMerge ─▶ Aggregator ─▶ FrameSplit ─▶ axis_tx<i>

    A MAC must take or drop its frames, even without a link: answers for one port wait behind those for another.
    """

    def __init__(self, config: AggregatorConfig, *, build_id: int = 0) -> None:
        self._config = config
        self._build_id = build_id
        ports = {
            **PORTS,
            # Frames from and to the MAC of each port.
            "axis_rx": In(stream.Signature(FrameBeat)).array(config.ports),
            "axis_tx": Out(stream.Signature(FrameBeat)).array(config.ports),
        }
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        config = self._config
        m = Module()
        kernel_clock(m, self.ap_clk, self.ap_rst_n)
        m.submodules.merge = merge = FrameMerge(config.ports, config.port_bits)
        m.submodules.aggregator = aggregator = Aggregator(config, build_id=self._build_id)
        m.submodules.split = split = FrameSplit(config.ports)
        connect_control(m, self.control, aggregator.control)
        for port in range(config.ports):
            connect_stream(m, wiring.flipped(self.axis_rx[port]), merge.rx[port])
            connect_stream(m, split.tx[port], wiring.flipped(self.axis_tx[port]))
        connect_stream(m, merge.frames, aggregator.rx)
        connect_stream(m, aggregator.tx, split.frames)
        return m
