"""Check that Vivado's block design connects every bus of every kernel once and drives every input."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from p4sgd.build.fpga.check import Problem
from p4sgd.build.fpga.kernel import find_buses
from support.vendor_checks.commands import IPS, Ip, inputs, is_one_of
from support.vendor_checks.folder import Call, VendorFolder


def check_block_design(folder: VendorFolder) -> Iterator[Problem]:
    """The block design in ``project.tcl``, if the folder is for Vivado."""
    script = "project.tcl"
    if script not in folder.files:
        return
    calls = folder.runs[script].calls
    vlnvs = {call.others[0]: call.option("vlnv") or "::" for call in calls if call.command == "create_bd_cell"}
    names = {cell: vlnv.split(":")[2] for cell, vlnv in vlnvs.items()}
    kernels = {cell: name for cell, name in names.items() if name in folder.kernels}
    for kernel in folder.kernels:
        if kernel not in kernels.values():
            yield Problem(script, f"there is no {kernel}")
    cells = {}
    for cell, name in names.items():
        if cell not in kernels and name not in IPS:
            yield Problem(script, f"{cell} is of no known IP: {vlnvs[cell]}")
        else:
            cells[cell] = _as_ip(folder, name) if cell in kernels else IPS[name]
    yield from _buses(script, calls, cells, set(kernels))
    yield from _nets(script, calls, cells)


def _as_ip(folder: VendorFolder, kernel: str) -> Ip:
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
    return Ip("", of["input"], outputs=of["output"], buses=" ".join(buses))


def _buses(script: str, calls: list[Call], cells: Mapping[str, Ip], kernels: set[str]) -> Iterator[Problem]:
    """Connected buses exist and are connected once, and no bus of a kernel is left out."""
    joined = [call for call in calls if call.command == "connect_bd_intf_net"]
    used = Counter(_last(argument) for call in joined for argument in call.others)
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


def _nets(script: str, calls: list[Call], cells: Mapping[str, Ip]) -> Iterator[Problem]:
    """Every net has one driver, and every input of a cell and every output of the design is driven once."""
    ports = {call.others[0]: call.option("dir") for call in calls if call.command == "create_bd_port"}
    joined = [call for call in calls if call.command in ("connect_bd_net", "connect_bd_intf_net")]
    used: dict[str, set[str]] = defaultdict(set)
    for argument in (argument for call in joined for argument in call.others):
        cell, _, name = _last(argument).partition("/")
        used[cell].add(name)
    wanted = {f"{cell}/{name}" for cell, ip in cells.items() for name in inputs(ip, used[cell])}
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


def _last(words: str) -> str:
    """Name of the object in what a stand-in returned."""
    return words.split()[-1]
