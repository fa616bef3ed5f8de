"""Check that Vivado's block design connects every bus of every kernel once and drives every input."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from p4sgd.build.check.commands import IPS, Ip, inputs, is_one_of
from p4sgd.build.check.folder import Folder
from p4sgd.build.check.problem import Problem
from p4sgd.build.check.sandbox import Call, Made
from p4sgd.build.fpga.kernel import find_buses, memory_bus
from p4sgd.build.fpga.vivado import ADDRESS_MAP
from p4sgd.build.generate.boards import map_memories
from p4sgd.hw.worker.worker import WORKER


def check_block_design(folder: Folder) -> Iterator[Problem]:
    """The block design in ``project.tcl``, if the folder is for Vivado."""
    script = "project.tcl"
    if script not in folder.files:
        return
    run = folder.runs[script]
    calls, ips, used = run.calls, run.made, _used(run.calls)
    names = {made.name: made.kind for made in ips}
    kernels = {cell: name for cell, name in names.items() if name in folder.kernels}
    for kernel in folder.kernels:
        if kernel not in kernels.values():
            yield Problem(script, f"there is no {kernel}")
    cells = {}
    for cell, name in names.items():
        if cell not in kernels and name not in IPS:
            yield Problem(script, f"{cell} is of no known IP: {name}")
        else:
            cells[cell] = _as_ip(folder, name) if cell in kernels else IPS[name]
    yield from _buses(script, calls, cells, set(kernels))
    yield from _nets(script, calls, cells, used)
    yield from _addresses(folder, calls, set(kernels))
    yield from _address_map(folder, calls)
    for made in ips:
        for name, value in _parameters(folder, made, used.get(made.name, set())).items():
            if made.value(name).lower() != value.lower():
                yield made.wrong(name, f"it should be {value}")


def _as_ip(folder: Folder, kernel: str) -> Ip:
    """A kernel as IP: its AXI buses, the interfaces that its packaging script adds, and its other ports."""
    ports = {port.name: port for port in folder.ports[kernel]}
    buses = [bus.name for bus in find_buses(ports.values())]
    in_buses = {name for name in ports if name.startswith(tuple(f"{bus}_" for bus in buses))}
    for call in folder.runs[f"package_{kernel}.tcl"].calls:
        if call.command == "ipx::add_bus_interface":
            buses.append(call.others[0])
        elif call.command == "set_property" and call.others[0] == "physical_name":
            in_buses.add(call.others[1])
    of = {
        way: " ".join(name for name, port in ports.items() if port.direction == way and name not in in_buses)
        for way in ("input", "output")
    }
    return Ip(of["input"], outputs=of["output"], buses=" ".join(buses))


def _buses(script: str, calls: Sequence[Call], cells: Mapping[str, Ip], kernels: set[str]) -> Iterator[Problem]:
    """Connected buses exist and are connected once, and no bus of a kernel is left out."""
    joined = [tuple(map(_last, call.others)) for call in calls if call.command == "connect_bd_intf_net"]
    used = Counter(pin for pins in joined for pin in pins)
    for pins in joined:
        if {pin.partition("/")[0] for pin in pins} <= kernels:
            yield Problem(script, f"{' and '.join(pins)} have no FIFO between them, and may be on different dies")
    for cell in kernels:
        used.update({f"{cell}/{bus}": 0 for bus in cells[cell].buses.split()})
    for pin, times in sorted(used.items()):
        cell, _, name = pin.partition("/")
        if name and cell not in cells:
            yield Problem(script, f"there is no {cell} to be connected at {name}")
        elif name and not is_one_of(name, cells[cell].buses):
            yield Problem(script, f"{cell} has no bus {name}")
        elif times != 1:
            yield Problem(script, f"{pin} is connected {times} times")


def _nets(
    script: str, calls: Sequence[Call], cells: Mapping[str, Ip], used: Mapping[str, set[str]]
) -> Iterator[Problem]:
    """Every net has one driver, and every input of a cell and every output of the design is driven once."""
    ports = {call.others[0]: call.option("dir") for call in calls if call.command == "create_bd_port"}
    wanted = {f"{cell}/{name}" for cell, ip in cells.items() for name in inputs(ip, used.get(cell, set()))}
    wanted |= {port for port, direction in ports.items() if direction == "O"}
    driven: Counter[str] = Counter()
    for call in calls:
        if call.command != "connect_bd_net":
            continue
        drivers, strangers = [], []
        for pin in map(_last, call.others):
            cell, _, name = pin.partition("/")
            ip = cells.get(cell, Ip(""))
            if pin in wanted:
                driven[pin] += 1
            elif ports.get(pin) == "I" or is_one_of(name, ip.outputs):
                drivers.append(pin)
            else:
                strangers.append(pin)
        for pin in strangers:
            yield Problem(call.file, f"there is no {pin} to be connected", call.line)
        if not strangers and len(drivers) != 1:
            yield Problem(call.file, f"a net is driven by {' and '.join(drivers) or 'nothing'}", call.line)
    for pin in sorted(wanted):
        if driven[pin] != 1:
            yield Problem(script, f"{pin} is driven {driven[pin]} times, not once")


def _used(calls: Sequence[Call]) -> dict[str, set[str]]:
    """Pins and buses that are connected, by their cells."""
    joined = (call for call in calls if call.command in ("connect_bd_net", "connect_bd_intf_net"))
    used: dict[str, set[str]] = defaultdict(set)
    for argument in (argument for call in joined for argument in call.others):
        cell, _, name = _last(argument).partition("/")
        used[cell].add(name)
    return used


def _last(words: str) -> str:
    """Name of the object in what a stand-in returned."""
    return words.split()[-1]


def _addresses(folder: Folder, calls: Sequence[Call], kernels: set[str]) -> Iterator[Problem]:
    """No two memory ports of kernels share a channel but the last, and no two address ranges of a master overlap."""
    last = f"HBM_MEM{folder.board.hbm.channels - 1}"  # which is the labels', too
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
                yield Problem(call.file, f"{segment} is at {first:#x}, where {master} has {other}", call.line)
        ranges[master].append((bytes_of, segment))
        channel = segment.rpartition("/")[2]
        if master.partition("/")[0] in kernels:
            if channel in owners and channel != last:
                yield Problem(call.file, f"{channel} is both {owners[channel]}'s and {master}'s", call.line)
            owners[channel] = master


def _address_map(folder: Folder, calls: Sequence[Call]) -> Iterator[Problem]:
    """The host finds registers and memories where the block design has them, which are those of the board's map."""
    registers: dict[str, int] = {}
    reached: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for call in calls:
        if call.command == "assign_bd_address":
            segment, offset = _last(call.arguments[-1]), int(call.option("offset") or "0", 0)
            cell, _, bus = segment.partition("/")
            if bus.startswith("s_axi_control/"):
                registers[cell.rpartition("_")[0]] = offset
            master = _last(call.option("target_address_space") or "-")
            reached[master].append((offset, _bytes(call.option("range") or "0")))
    channels = map_memories(folder.worker, folder.board.hbm).channels
    size = folder.board.hbm.channel_bytes
    for number, each in enumerate(channels):
        master = f"{WORKER}_1/{memory_bus(number)}"
        if reached.get(master) != [(channel * size, size) for channel in each]:
            text = f"{master} does not reach channels {each[0]} to {each[-1]}, which this worker has there"
            yield Problem("project.tcl", text)
    known = json.loads(folder.text(ADDRESS_MAP))["kernels"]
    for kernel in folder.kernels:
        memories = [{"address": each[0] * size, "bytes": len(each) * size} for each in channels if kernel == WORKER]
        wanted = {"registers": registers.get(kernel), "memories": memories}
        for name, value in wanted.items():
            if known[kernel][name] != value:
                text = f"{kernel}: {name} are at {known[kernel][name]}, and in project.tcl at {value}"
                yield Problem(ADDRESS_MAP, text)


def _parameters(folder: Folder, made: Made, used: set[str]) -> dict[str, str]:
    """Parameters that IP needs for what is connected to it: ``used``."""
    match made.kind:
        case "hbm":
            ports = {f"USER_SAXI_{port:02}": f"SAXI_{port:02}" for port in range(folder.board.hbm.channels)}
            return {name: "true" if port in used else "false" for name, port in ports.items()}
        case "smartconnect":
            return {f"NUM_{side}I": str(sum(name.startswith(side) for name in used)) for side in "SM"}
    return {}


def _bytes(text: str) -> int:
    """A size in Vivado's notation: ``4K``, ``256M``, or a number."""
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper())
    return int(text, 0) if unit is None else int(text[:-1], 0) * unit
