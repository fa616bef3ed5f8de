# amaranth: UnusedElaboratable=no
"""Every hardware component with an example of each: what the lint and the generators are tried on.

Amaranth, which reads the first line, does not complain of examples that are looked at and not elaborated.
"""

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

from amaranth.lib import wiring

import p4sgd.hw
from p4sgd.hw.bus.axi import Axi4Signature
from p4sgd.hw.datapath.model import Model
from p4sgd.hw.datapath.strided_reader import StridedReader
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.registers import worker_map
from p4sgd.hw.verilog import BlackBox

_CONFIG = WorkerConfig.small()

_AGGREGATOR = AggregatorConfig(slots=16, jobs=2, ports=8)

EXAMPLES: dict[str, Callable[[Any], wiring.Component]] = {
    "aggregator.admission.Admission": lambda make: make(_AGGREGATOR),
    "aggregator.aggregator.Aggregator": lambda make: make(_AGGREGATOR),
    "aggregator.answers.Answers": lambda make: make(_AGGREGATOR),
    "aggregator.slot_manager.SlotManager": lambda make: make(_AGGREGATOR),
    "aggregator.slots.ReadModifyWrite": lambda make: make(24, 16),
    "aggregator.slots.SlotTable": lambda make: make(_AGGREGATOR),
    "aggregator.slots.SumTable": lambda make: make(_AGGREGATOR),
    "datapath.backward.Gradient": lambda make: make(_CONFIG, spacing=Model.UPDATE_SPACING),
    "bus.axi.Axi4Slice": lambda make: make(Axi4Signature(data_bits=_CONFIG.port_bits)),
    "bus.register_file.EventCounters": lambda make: make(5),
    "bus.register_file.RegisterFile": lambda make: make(worker_map(_CONFIG)),
    "bus.stream.RegisterSlice": lambda make: make(_CONFIG.port_bits),
    "kernel.verilog.VendorPorts": lambda make: make(StridedReader(_CONFIG.line_bits), {"memory": "m_axi_gmem"}),
    "datapath.units.UnitAccumulator": lambda make: make(
        _CONFIG.plane_sum_bits + 8, _CONFIG.dot_bits, whole_units=False
    ),
    "primitives.AdderTree": lambda make: make(9, 12),
    "datapath.forward.DotProduct": lambda make: make(_CONFIG),
    "datapath.lines.AbsentChunks": lambda make: make(_CONFIG),
    "datapath.lines.LineFIFO": lambda make: make(_CONFIG),
    "datapath.lines.LinePosition": lambda make: make(_CONFIG),
    "kernel.kernels.AggregatorKernel": lambda make: make(_AGGREGATOR),
    "kernel.cmac.CmacAdapter": lambda make: make(),
    "kernel.cmac.CmacKernel": lambda make: make(mac="p4sgd_cmac_usplus"),
    "kernel.emulation.EmulatedCmacKernel": lambda make: make(),
    "kernel.emulation.StreamMac": lambda make: make(),
    "kernel.frames.FrameBuffer": lambda make: make(64, waits=True),
    "kernel.frames.FrameMerge": lambda make: make(3, 2),
    "kernel.frames.FrameSplit": lambda make: make(3),
    "kernel.kernels.WorkerKernel": lambda make: make(_CONFIG),
    "kernel.loopback.CageTest": lambda make: make(),
    "kernel.loopback.FrameChecker": lambda make: make(),
    "kernel.loopback.FrameSource": lambda make: make(),
    "kernel.selftest.PortTest": lambda make: make(_CONFIG, 0),
    "kernel.selftest.SelfTestKernel": lambda make: make(_CONFIG),
    "datapath.loss.LossUnit": lambda make: make(_CONFIG),
    "datapath.model_mover.ModelLoader": lambda make: make(_CONFIG),
    "datapath.model_mover.ModelStorer": lambda make: make(_CONFIG),
    "datapath.strided_reader.StridedReader": lambda make: make(_CONFIG.line_bits),
    "datapath.model.Model": lambda make: make(_CONFIG),
    "datapath.model.Update": lambda make: make(_CONFIG.lanes),
    "net.endpoint.Endpoint": lambda make: make(_CONFIG),
    "net.prober.Prober": lambda make: make(_CONFIG),
    "net.packet.FrameCheck": lambda make: make(),
    "net.reception.Reception": lambda make: make(_CONFIG),
    "net.timers.ResendTimer": lambda make: make(_CONFIG),
    "net.timers.StallTimer": lambda make: make(),
    "datapath.partials.PartialSum": lambda make: make(_CONFIG),
    "bus.stream.RegisteredValidFIFO": lambda make: make(24, 16),
    "worker.scoreboard.Scoreboard": lambda make: make(_CONFIG),
    "worker.counters.Counters": lambda make: make(_CONFIG),
    "worker.engine.Engine": lambda make: make(_CONFIG),
    "worker.sequencer.Sequencer": lambda make: make(),
    "worker.sequencer.RunSizes": lambda make: make(_CONFIG),
    "worker.worker.Worker": lambda make: make(_CONFIG),
}
"""How to make an example of each component, by its dotted name below ``p4sgd.hw``."""


def example(name: str) -> wiring.Component:
    """The example of a component named as in `EXAMPLES`."""
    module, _, attribute = name.rpartition(".")
    return EXAMPLES[name](getattr(importlib.import_module(f"p4sgd.hw.{module}"), attribute))


def find_components() -> Iterator[str]:
    """The dotted names below ``p4sgd.hw`` of all components; a class that others complete is none."""
    for found in pkgutil.walk_packages(p4sgd.hw.__path__, "p4sgd.hw."):
        module = importlib.import_module(found.name)
        for name, thing in vars(module).items():
            is_component = isinstance(thing, type) and issubclass(thing, wiring.Component)
            if (
                is_component
                and thing.__module__ == found.name
                and thing is not BlackBox
                and hasattr(thing, "elaborate")
            ):
                yield f"{found.name}.{name}".removeprefix("p4sgd.hw.")
