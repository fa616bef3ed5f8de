"""Ports of generated tops: as Markdown, as JSON, and as a template to instantiate a top."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata

from p4sgd.build.generate.artifacts import header_comment
from p4sgd.hw.bus.ports import Port
from p4sgd.hw.spec.timing import RESET_CYCLES

_NUMBER = re.compile(r"_\d+$")
"""Number at the end of a bus's name."""

_CHANNELS = {
    "aw": "write request",
    "w": "write data",
    "b": "write response",
    "ar": "read request",
    "r": "read data",
}

_FIELDS = {
    "addr": "byte address",
    "len": "beats less one",
    "size": "log2 of the bytes of a beat, constant",
    "burst": "INCR, constant",
    "id": "0 in requests, ignored in responses",
    "lock": "constant: normal access",
    "cache": "constant: normal memory, modifiable and bufferable, not cached",
    "prot": "constant: unprivileged, secure, data",
    "qos": "constant: no priority",
    "data": "byte 0 is in the lowest bits",
    "strb": "bytes that are written",
    "last": "the last beat",
    "resp": "OKAY, or the run ends",
    "valid": "valid",
    "ready": "ready",
    "keep": "bytes that are part of the frame",
    "user": "Ethernet port that it came in through, or bitmap of those that it leaves through",
}
"""Meaning of a field of a channel."""

_CLOCKING = {
    "clk": "clock, rising edge",
    "rst": f"reset, active high, synchronous to clk, for {RESET_CYCLES} cycles or more",
}

_SINGLE = {"idle": "no run is wanted or under way; the same as CTRL.idle"}


@dataclass(frozen=True)
class TopDocuments:
    """Documents of one top module."""

    top: str  # its name; that of its file with ``.v``
    buses: Mapping[str, tuple[Port, ...]]  # ports by the name of their bus, or their own, without clock and reset

    @property
    def ports(self) -> dict[str, tuple[Port, ...]]:
        """The same with clock and reset, first."""
        return {name: (Port(name, "input", 1),) for name in _CLOCKING} | dict(self.buses)

    def document(self) -> dict[str, object]:
        """Plain data for JSON."""
        ports = [
            {**port._asdict(), "bus": bus if port.name != bus else None, "meaning": meaning(bus, port)}
            for bus, ports in self.ports.items()
            for port in ports
        ]
        return {"file": f"{self.top}.v", "ports": ports}

    def template(self) -> str:
        """An instance of the top with every port, connected to what has its name: a line for each channel."""
        lines: dict[str, list[str]] = {}
        for bus, ports in self.ports.items():
            for port in ports:
                channel = _channel(bus, port)[0] if port.name != bus else ""
                lines.setdefault(f"{bus}_{channel}", []).append(f".{port.name}({port.name})")
        return (
            f"{self.top} {self.top.replace('p4sgd_', '')} (\n    "
            + ",\n    ".join(map(", ".join, lines.values()))
            + "\n);"
        )

    def table(self) -> str:
        """Markdown: a row for each port; buses that differ in their number alone are listed once, ``m_axi_<n>``."""
        kinds: dict[object, list[str]] = {}
        for bus, ports in self.ports.items():
            start = _NUMBER.sub("", bus)
            kinds.setdefault((start, *((port.name.removeprefix(bus), *port[1:]) for port in ports)), []).append(bus)
        rows = ["| port | direction | bits | meaning |", "|---|---|---|---|"]
        for first, *others in kinds.values():
            name = f"{_NUMBER.sub('', first)}_<n>" if others else first
            if others:
                rows.append(f"| `{name}`, n = {', '.join(bus.rpartition('_')[2] for bus in (first, *others))} | | | |")
            for port in self.ports[first]:
                end = port.name.removeprefix(first)
                rows.append(f"| `{name}{end}` | {port.direction} | {port.bits} | {meaning(first, port)} |")
        return "\n".join(rows)


def _channel(bus: str, port: Port) -> tuple[str, str]:
    """Channel and field of a port of a bus: ``("aw", "addr")``; the channel of a stream is ``t``."""
    end = port.name.removeprefix(f"{bus}_")
    channel = "t" if "axi" not in bus else next(name for name in _CHANNELS if end.startswith(name))
    return channel, end.removeprefix(channel)


def meaning(bus: str, port: Port) -> str:
    """What a port is for."""
    if port.name == bus:
        return (_CLOCKING | _SINGLE)[port.name]
    channel, field = _channel(bus, port)
    what = _CHANNELS.get(channel, "beat of a frame")
    return f"{what}: {'OKAY' if field == 'resp' and port.direction == 'output' else _FIELDS[field]}"


def json_text(tops: Iterable[TopDocuments], command: str) -> str:
    """All ports of all tops: name, direction, bits, bus and meaning."""
    found = {each.top: each.document() for each in tops}
    return json.dumps({"generated_by": command, "tops": found}, indent=2) + "\n"


_CORE = """\
CAPI=2:
{first}
name: {name}:{version}
description: Worker and aggregator that train generalized linear models
license: BSD-2-Clause
filesets:
  rtl:
    files: [{files}]
    file_type: verilogSource-2005
  waivers:
    files: [p4sgd.vlt]
    file_type: vlt
targets:
  default:
    filesets: [rtl, "tool_verilator? (waivers)"]
{lints}"""

_LINT = """\
  lint_{name}:
    filesets: [rtl, waivers]
    toplevel: {top}
    flow: lint
    flow_options: {{tool: verilator, verilator_options: [-Wall]}}
"""


def core_name(prefix: str) -> str:
    """Name of the core of FuseSoC, without its version."""
    return f"p4sgd.org:glm:{prefix}p4sgd"


def core(tops: Iterable[str], command: str, prefix: str) -> str:
    """A core of FuseSoC (CAPI2), whose name begins with ``prefix``, with a target for each top that lints it:
    ``lint_worker`` for example.
    """
    names = list(tops)
    return _CORE.format(
        first=header_comment("# {}", command),
        name=core_name(prefix),
        version=metadata.version("p4sgd"),
        files=", ".join(f"{name}.v" for name in names),
        lints="".join(_LINT.format(name=name.removeprefix(f"{prefix}p4sgd_"), top=name) for name in names),
    )
