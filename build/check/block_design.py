"""Does the block design connect every bus of every kernel, once, and drive what the board must have driven?"""

import re
from collections import Counter
from collections.abc import Iterator

from p4sgd.build.check.folder import Folder
from p4sgd.build.check.report import Problem
from p4sgd.build.check.scripts import Call
from p4sgd.build.verilog_ports import find_buses

__all__ = ["check_block_design"]

_CATTRIP = "hbm_cattrip"
"""Port without which the card switches itself off (UG1314)."""

_CLOCK_PAIR = ("_clk_p", "_clk_n")
"""Endings of the pins of a differential clock."""


def check_block_design(folder: Folder) -> Iterator[Problem]:
    """The project of a folder for Vivado."""
    script = "project.tcl"
    if script not in folder.files:
        return
    calls = folder.runs[script].calls
    cells = {call.arguments[-1]: call.option("vlnv") or "" for call in calls if call.command == "create_bd_cell"}
    joined = [call for call in calls if call.command == "connect_bd_intf_net"]
    used = Counter(_last(argument) for call in joined for argument in call.arguments)
    kernels = {cell: vlnv.split(":")[2] for cell, vlnv in cells.items() if vlnv.split(":")[2] in folder.kernels}
    for kernel in folder.kernels:
        if kernel not in kernels.values():
            yield Problem(script, f"there is no {kernel}")
    buses = {}
    for cell, kernel in kernels.items():
        names = {bus.name for bus in find_buses(folder.ports[kernel])}
        names |= {
            call.arguments[0]
            for call in folder.runs[f"package_{kernel}.tcl"].calls
            if call.command == "ipx::add_bus_interface"
        }
        buses[cell] = names
        for name in sorted(names):
            if used[f"{cell}/{name}"] != 1:
                yield Problem(script, f"{cell}/{name} is connected {used[f'{cell}/{name}']} times")
    for pin, times in used.items():
        if pin.partition("/")[0] in kernels or times == 1:
            continue
        yield Problem(script, f"{pin} is connected {times} times")
    for pin in used:
        cell, _, name = pin.partition("/")
        if name and cell not in cells:
            yield Problem(script, f"there is no {cell} to be connected at {name}")
        elif cell in kernels and name not in buses[cell]:
            yield Problem(script, f"{kernels[cell]} has no bus {name}")
    yield from _addresses(script, calls, set(kernels))
    yield from _pins(folder, script, calls)


def _last(words: str) -> str:
    """The name in what a stand-in gives back."""
    return words.split()[-1]


def _addresses(script: str, calls: list[Call], kernels: set[str]) -> Iterator[Problem]:
    """No two memory ports of kernels have a channel in common, and no two ranges of a master overlap."""
    owners: dict[str, str] = {}
    ranges: dict[str, list[tuple[range, str]]] = {}  # by master
    for call in calls:
        if call.command != "assign_bd_address":
            continue
        master, segment = _last(call.option("target_address_space") or "-"), _last(call.arguments[-1])
        first = int(call.option("offset") or "0", 0)
        bytes_of = range(first, first + _bytes(call.option("range") or "0"))
        for others, other in ranges.setdefault(master, []):
            if bytes_of.start < others.stop and others.start < bytes_of.stop:
                yield Problem(script, f"{segment} is at {first:#x}, where {master} has {other}", call.line)
        ranges[master].append((bytes_of, segment))
        channel = segment.rpartition("/")[2]
        if master.partition("/")[0] in kernels:
            if channel in owners:
                yield Problem(script, f"{channel} is both {owners[channel]}'s and {master}'s", call.line)
            owners[channel] = master


def _bytes(text: str) -> int:
    """A size as Vivado takes it: ``4K``, ``256M``, or a number."""
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper())
    return int(text, 0) if unit is None else int(text[:-1], 0) * unit


def _pins(folder: Folder, script: str, calls: list[Call]) -> Iterator[Problem]:
    """Constraints are for ports that the design has; those that need pins have them."""
    ports = {call.arguments[-1] for call in calls if call.command == "create_bd_port"}
    clocks = {
        call.arguments[-1]
        for call in calls
        if call.command == "create_bd_intf_port" and "diff_clock" in (call.option("vlnv") or "")
    }
    wanted = ports | {clock + end for clock in clocks for end in _CLOCK_PAIR}
    placed = set()
    for call in folder.runs["board.xdc"].calls:
        if call.command == "get_ports":
            if call.arguments[0] not in wanted:
                yield Problem("board.xdc", f"the design has no port {call.arguments[0]}", call.line)
        elif call.command == "set_property" and call.arguments[0] == "PACKAGE_PIN":
            if not re.fullmatch(r"[A-Z]{1,2}\d{1,2}", call.arguments[1]):
                yield Problem("board.xdc", f"{call.arguments[1]} is no pin", call.line)
            placed.add(_last(call.arguments[2]))
    for port in sorted(wanted - placed):
        yield Problem("board.xdc", f"port {port} has no pin")
    driven = {_last(word) for call in calls if call.command == "connect_bd_net" for word in call.arguments}
    if _CATTRIP not in ports & driven:
        yield Problem(script, f"{_CATTRIP} is not driven: the card would switch itself off")
