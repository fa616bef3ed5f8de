"""A generated folder, as checks that compare its files with each other read it: ports of its Verilog, XML, IP."""

import re
from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple
from xml.etree import ElementTree

from p4sgd.build.check.folder import Folder, open_folder
from p4sgd.build.check.problem import Problem
from p4sgd.build.check.sandbox import Call, Run
from p4sgd.hw.bus.ports import Port
from p4sgd.hw.kernel.verilog import Bus, BusKind
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.config import WorkerConfig
from support.verilog_ports import COMMENT, read_ports

_BUS = re.compile(r"^((?:[sm]_axi|axis)_\w+?)_((?:aw|w|b|ar|r)(?:addr|data|valid)|t(?:data|valid))$")
"""A port that every bus of its kind has: name of the bus, and name of the port within the bus."""


def find_buses(ports: Iterable[Port]) -> list[Bus]:
    """Buses that ports form, by kind and then in the order of the ports."""
    found: dict[str, dict[str, Port]] = {}
    for port in ports:
        if match := _BUS.match(port.name):
            found.setdefault(match[1], {})[match[2]] = port
    buses = []
    for name, signals in found.items():
        kind = next(kind for kind in BusKind if name.startswith(f"{kind.value}_"))
        data = max((signals[each].bits for each in ("tdata", "rdata", "wdata") if each in signals), default=0)
        # Whoever drives these begins the transfers.
        starts = [signals[each] for each in ("tvalid", "arvalid", "awvalid") if each in signals]
        buses.append(Bus(name, kind, data, any(port.direction == "output" for port in starts)))
    return sorted(buses, key=lambda bus: list(BusKind).index(bus.kind))


class VendorFolder(Folder):
    """A folder for AMD's tools; what its files say is read once."""

    @classmethod
    def open(cls, path) -> "VendorFolder":
        return cls(path, open_folder(path).manifest)

    @property
    def worker(self) -> WorkerConfig:
        """Sizes of the worker, or of the one whose ports a self-test has."""
        return WorkerConfig(**self.manifest["worker"])

    @property
    def aggregator(self) -> AggregatorConfig:
        """Sizes of the aggregator."""
        return AggregatorConfig(**self.manifest["aggregator"])

    @property
    def described(self) -> list[str]:
        """Kernels that have an XML file: Vitis needs it, Vivado does not."""
        return [name for name in self.kernels if f"{name}.xml" in self.files]

    @cached_property
    def verilog(self) -> dict[str, str]:
        """Verilog of each kernel, without comments."""
        return {name: COMMENT.sub("", self.text(f"{top}.v")) for name, top in self.kernels.items()}

    @cached_property
    def ports(self) -> dict[str, list[Port]]:
        """Ports of each kernel's top module."""
        return {name: read_ports(self.verilog[name], top) for name, top in self.kernels.items()}

    def buses(self, kernel: str, *kinds: BusKind) -> list[Bus]:
        """Buses of a kernel's top module, those of some kinds or all."""
        return [bus for bus in find_buses(self.ports[kernel]) if not kinds or bus.kind in kinds]

    @cached_property
    def xml(self) -> dict[str, ElementTree.Element]:
        """Element ``kernel`` of each kernel's XML, where there is one."""
        found = {}
        for name in self.described:
            try:
                element = ElementTree.fromstring(self.text(f"{name}.xml")).find("kernel")
            except ElementTree.ParseError:
                element = None
            if element is not None:
                found[name] = element
        return found


class Made(NamedTuple):
    """IP of the vendor's, or a cell of it in a block design, that a script makes."""

    kind: str
    name: str
    call: Call  # that made it
    parameters: dict[str, tuple[str, Call]]  # the last values, without braces, and the calls that set them

    def value(self, name: str) -> str:
        """Value of a parameter, ``not set`` if there is none."""
        return self.parameters[name][0] if name in self.parameters else "not set"

    def wrong(self, name: str, reason: str) -> Problem:
        """That a parameter is not what it should be."""
        call = self.parameters[name][1] if name in self.parameters else self.call
        return Problem(call.file, f"{name} of {self.name} is {self.value(name)}; {reason}", call.line)


def made_by(run: Run) -> list[Made]:
    """IP that the script makes."""
    found: dict[str, Made] = {}  # by what stands for it
    for call in run.calls:
        if call.command == "create_ip":
            name = option_of(call, "module_name") or ""
            found[f"get_ips {name}"] = Made(option_of(call, "name") or "", name, call, {})
        elif call.command == "create_bd_cell":
            name, vlnv = call.others[0], option_of(call, "vlnv") or "::"
            found[f"create_bd_cell {name}"] = Made(vlnv.split(":")[2], name, call, {})
        elif call.command == "set_property" and call.others and call.others[-1] in found:
            settings = option_of(call, "dict") or " ".join(call.others[:-1])
            given = re.findall(r"CONFIG\.(\w+) +(?:\{([^}]*)\}|(\S+))", settings)
            found[call.others[-1]].parameters.update({name: (a or b, call) for name, a, b in given})
    return list(found.values())


def properties_of(run: Run) -> dict[tuple[str, str], str]:
    """Values of `set_property` by the object, as the sandbox names it, and the property."""
    calls = (call.others for call in run.calls if call.command == "set_property" and len(call.others) == 3)
    return {(owner, name): value for name, value, owner in calls}


def file_read(call: Call) -> str | None:
    """Name of the file that a command reads, if it reads one."""
    readers = ("add_files", "read_verilog", "read_xdc")
    return call.others[-1].rpartition("/")[2] if call.command in readers else None


def option_of(call: Call, name: str) -> str | None:
    """Value of an option, None if it is not given."""
    try:
        return call.arguments[call.arguments.index(f"-{name}") + 1]
    except (ValueError, IndexError):
        return None
