"""Every hardware component with an example of each: what the lint and the generators are tried on."""

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

from amaranth.lib import wiring

import p4sgd.hw
from p4sgd.hw.bus import axi4
from p4sgd.hw.external import External
from p4sgd.hw.memory.strided_reader import StridedReader
from p4sgd.hw.model.model import Model
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.registers import worker_map

_CONFIG = WorkerConfig.small()

_AGGREGATOR = AggregatorConfig(slots=16, jobs=2, ports=8)

EXAMPLES: dict[str, Callable[[Any], wiring.Component]] = {
    "aggregator.admission.Admission": lambda make: make(_AGGREGATOR),
    "aggregator.aggregator.Aggregator": lambda make: make(_AGGREGATOR),
    "aggregator.answers.Answers": lambda make: make(_AGGREGATOR),
    "aggregator.keeper.Keeper": lambda make: make(_AGGREGATOR),
    "aggregator.read_modify_write.ReadModifyWrite": lambda make: make(24, 16),
    "aggregator.slot_table.SlotTable": lambda make: make(_AGGREGATOR),
    "aggregator.sum_table.SumTable": lambda make: make(_AGGREGATOR),
    "backward.gradient.Gradient": lambda make: make(_CONFIG, spacing=Model.UPDATE_SPACING),
    "bus.axi4_slice.Axi4Slice": lambda make: make(axi4.Signature(data_bits=_CONFIG.port_bits)),
    "bus.event_counters.EventCounters": lambda make: make(5),
    "bus.register_file.RegisterFile": lambda make: make(worker_map(_CONFIG)),
    "bus.register_slice.RegisterSlice": lambda make: make(_CONFIG.port_bits),
    "bus.vendor_ports.VendorPorts": lambda make: make(StridedReader(_CONFIG.line_bits), {"memory": "m_axi_gmem"}),
    "forward.accumulator.Accumulator": lambda make: make(_CONFIG.plane_sum_bits + 8, _CONFIG.dot_bits),
    "forward.adder_tree.AdderTree": lambda make: make(9, 12),
    "forward.dot_product.DotProduct": lambda make: make(_CONFIG),
    "forward.line_fifo.LineFIFO": lambda make: make(_CONFIG),
    "forward.line_position.LinePosition": lambda make: make(_CONFIG),
    "kernel.aggregator_kernel.AggregatorKernel": lambda make: make(_AGGREGATOR),
    "kernel.cmac_adapter.CmacAdapter": lambda make: make(),
    "kernel.cmac_kernel.CmacKernel": lambda make: make(mac="p4sgd_cmac_usplus"),
    "kernel.frame_buffer.FrameBuffer": lambda make: make(64, waits=True),
    "kernel.frame_merge.FrameMerge": lambda make: make(3, 2),
    "kernel.frame_split.FrameSplit": lambda make: make(3),
    "kernel.worker_kernel.WorkerKernel": lambda make: make(_CONFIG),
    "loss.loss_unit.LossUnit": lambda make: make(_CONFIG),
    "memory.model_loader.ModelLoader": lambda make: make(_CONFIG),
    "memory.model_storer.ModelStorer": lambda make: make(_CONFIG),
    "memory.strided_reader.StridedReader": lambda make: make(_CONFIG.line_bits),
    "model.model.Model": lambda make: make(_CONFIG),
    "model.update.Update": lambda make: make(_CONFIG.lanes),
    "net.endpoint.Endpoint": lambda make: make(_CONFIG),
    "net.prober.Prober": lambda make: make(_CONFIG),
    "net.receive.FrameCheck": lambda make: make(),
    "net.reception.Reception": lambda make: make(_CONFIG),
    "net.resend_timer.ResendTimer": lambda make: make(_CONFIG),
    "net.stall_timer.StallTimer": lambda make: make(),
    "net.udp_receiver.UdpReceiver": lambda make: make(3),
    "net.udp_sender.UdpSender": lambda make: make(8),
    "partials.partial_sum.PartialSum": lambda make: make(_CONFIG),
    "partials.prompt_fifo.PromptFIFO": lambda make: make(24, 16),
    "worker.chaining.Chaining": lambda make: make(_CONFIG),
    "worker.counters.Counters": lambda make: make(_CONFIG),
    "worker.engine.Engine": lambda make: make(_CONFIG),
    "worker.sequencer.Sequencer": lambda make: make(),
    "worker.totals.Totals": lambda make: make(_CONFIG),
    "worker.worker.Worker": lambda make: make(_CONFIG),
}
"""How to make an example of each component, by its dotted name below ``p4sgd.hw``."""


def example(name: str) -> wiring.Component:
    """The example of a component named as in `EXAMPLES`."""
    module, _, attribute = name.rpartition(".")
    return EXAMPLES[name](getattr(importlib.import_module(f"p4sgd.hw.{module}"), attribute))


def find_components() -> Iterator[str]:
    """The dotted names below ``p4sgd.hw`` of all components that are there, not of what stands for one."""
    for found in pkgutil.walk_packages(p4sgd.hw.__path__, "p4sgd.hw."):
        module = importlib.import_module(found.name)
        for name, thing in vars(module).items():
            is_component = isinstance(thing, type) and issubclass(thing, wiring.Component)
            if is_component and thing.__module__ == found.name and thing is not External:
                yield f"{found.name}.{name}".removeprefix("p4sgd.hw.")
