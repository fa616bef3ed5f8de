# amaranth: UnusedElaboratable=no
"""Every hardware component with an example of each: what the lint and the generators are tried on.

Amaranth, which reads the first line, does not complain of examples that are looked at and not elaborated.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
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

_CONFIGURATIONS = {WorkerConfig: _CONFIG, AggregatorConfig: AggregatorConfig(slots=16, jobs=2, ports=8)}

_ARGUMENTS: dict[str, dict[str, Any]] = {
    "aggregator.slots.ReadModifyWrite": {"shape": 24, "depth": 16},
    "bus.axi.Axi4Slice": {"bus": Axi4Signature(data_bits=_CONFIG.port_bits)},
    "bus.register_file.EventCounters": {"count": 5},
    "bus.register_file.RegisterFile": {"registers": worker_map(_CONFIG)},
    "bus.stream.RegisterSlice": {"shape": _CONFIG.port_bits},
    "bus.stream.RegisteredValidFIFO": {"width": 24, "depth": 16},
    "datapath.backward.Gradient": {"spacing": Model.UPDATE_SPACING},
    "datapath.model.Update": {"lanes": _CONFIG.lanes},
    "datapath.strided_reader.StridedReader": {"data_bits": _CONFIG.line_bits},
    "datapath.forward.UnitAccumulator": {"in_width": 44, "out_width": _CONFIG.dot_bits, "whole_units": False},
    "kernel.cmac.CmacKernel": {"mac": "p4sgd_cmac_usplus"},
    "kernel.frames.FrameBuffer": {"depth": 64, "waits": True},
    "kernel.frames.FrameMerge": {"ports": 3, "port_bits": 2},
    "kernel.frames.FrameSplit": {"ports": 3},
    "kernel.selftest.PortTest": {"number": 0},
    "kernel.verilog.VendorPorts": {
        "component": StridedReader(_CONFIG.line_bits),
        "prefixes": {"memory": "m_axi_gmem"},
    },
    "primitives.AdderTree": {"terms": 9, "width": 12},
}
"""What examples are made with besides a configuration, by dotted names below ``p4sgd.hw``."""


def example(name: str) -> Any:
    """An example of the component of this dotted name below ``p4sgd.hw``."""
    module, _, attribute = name.rpartition(".")
    component = getattr(importlib.import_module(f"p4sgd.hw.{module}"), attribute)
    parameters = inspect.signature(component).parameters.values()
    configs = {each.name: _CONFIGURATIONS[each.annotation] for each in parameters if each.annotation in _CONFIGURATIONS}
    return component(**configs, **_ARGUMENTS.get(name, {}))


def find_components() -> Iterator[str]:
    """The dotted names below ``p4sgd.hw`` of all components; a class that others complete is none."""
    for found in pkgutil.walk_packages(p4sgd.hw.__path__, "p4sgd.hw."):
        for name, thing in vars(importlib.import_module(found.name)).items():
            is_component = isinstance(thing, type) and issubclass(thing, wiring.Component) and thing is not BlackBox
            if is_component and thing.__module__ == found.name and hasattr(thing, "elaborate"):
                yield f"{found.name}.{name}".removeprefix("p4sgd.hw.")


COMPONENTS = sorted(find_components())
"""All components, by dotted names below ``p4sgd.hw``."""
