"""What passes between an engine and the rest of the worker, perhaps on another die, goes from register to register."""

import pytest
from support.yosys import netlist

from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.worker.worker import ENGINE, WORKER, worker_verilog

SCRIPT = "proc; flatten; opt_clean; opt_dff; opt_clean"

REGISTERS = {"$dff", "$dffe", "$sdff", "$sdffe", "$sdffce"}

SETTLES = {("sink", "groups"), ("sink", "settings")}
"""Settings that logic may choose before they cross: there are cycles enough for that (`SETTLE_CYCLES`)."""

LENGTH = ("sink", "memory__ar__payload")
"""The length of a burst is computed behind a register: a memory port has register slices where it crosses."""

PORTS = {"rst", "dots__payload", "dots__valid", "deltas__payload", "deltas__valid", "commands", "settings", "groups"}


@pytest.fixture(scope="module")
def texts():
    return worker_verilog(WorkerConfig(engines=1, lanes=8, chunks=2, line_fifo_depth=8, slots=2))


def with_logic(module, boundary):
    """Ports of a boundary, (bits, direction) by name, on the way of which there is logic beside registers or ports.

    A ``source`` drives the module, a ``sink`` is driven by it.
    """
    drivers, loads = {}, {}
    for cell in module["cells"].values():
        for pin, bits in cell["connections"].items():
            for bit in bits:
                if cell["port_directions"][pin] == "output":
                    drivers[bit] = (cell["type"], pin)
                else:
                    loads.setdefault(bit, set()).add((cell["type"], pin))
    found = set()
    for name, (bits, direction) in boundary.items():
        for bit in (bit for bit in bits if isinstance(bit, int)):
            ends = {drivers[bit]} if direction == "sink" and bit in drivers else loads.get(bit, set())
            wanted = "Q" if direction == "sink" else "D"
            if direction == "sink" and bit not in drivers:
                continue  # from a port of the module, or of nothing
            if any(kind not in REGISTERS or pin != wanted for kind, pin in ends):
                found.add((direction, name))
    return found


def test_an_engine_has_a_register_at_every_port(texts, tmp_path):
    module = netlist(texts[1], ENGINE, SCRIPT, tmp_path)
    directions = {"input": "source", "output": "sink"}
    ports = {name: (port["bits"], directions[port["direction"]]) for name, port in module["ports"].items()}
    assert set(ports) >= PORTS | {"state"}
    found = with_logic(module, {name: port for name, port in ports.items() if name != "clk"})
    assert LENGTH in found
    assert {name for _, name in found if not name.startswith("memory__")} == set()


def test_the_rest_has_a_register_at_every_port_of_an_engine(texts, tmp_path):
    module = netlist(texts[0], WORKER, SCRIPT, tmp_path, boxes=texts[1])
    (engine,) = (name for name, cell in module["cells"].items() if cell["type"] == ENGINE)
    cell = module["cells"].pop(engine)
    directions = {"output": "source", "input": "sink"}
    ports = {name: (bits, directions[cell["port_directions"][name]]) for name, bits in cell["connections"].items()}
    assert set(ports) >= PORTS | {"state"}
    assert with_logic(module, {name: port for name, port in ports.items() if name != "clk"}) == SETTLES
