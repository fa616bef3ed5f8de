"""Clock crossings of a MAC's kernel: no logic is before a synchronizer, and what the constraints name is there."""

import re

import pytest
from support import yosys

from p4sgd.build.fpga.cmac import crossing_constraints
from p4sgd.hw.kernel.verilog import CMAC_IP, CMAC_KERNEL, cmac_kernel
from p4sgd.hw.verilog import modules

FLATTEN = "proc; setattr -mod -unset keep_hierarchy *; flatten; opt_clean"

ASYNCHRONOUS = "ARST"
"""Pin by which yosys' registers are set without a clock."""


class Netlist:
    """Registers and nets of a kernel without hierarchy; a dot separates the names of modules."""

    def __init__(self, text, folder):
        module = yosys.netlist(text, CMAC_KERNEL, FLATTEN, folder)
        self.nets = {name: net["bits"] for name, net in module["netnames"].items()}
        self.registers = {}  # by each bit that one drives: its pins, and the bit's place
        inputs = (port["bits"] for port in module["ports"].values() if port["direction"] == "input")
        self.sources = {bit for bits in inputs for bit in bits}  # from a port, the MAC or, below, a register
        for name, cell in module["cells"].items():
            pins = cell["connections"]
            if cell["type"] == CMAC_IP:
                self.sources.update(bit for bits in pins.values() for bit in bits)
                self.mac = {f"{name.replace('.', '/')}/{pin}" for pin in pins}
            elif re.fullmatch(r"\$s?[a]?dffe?|\$sdffce|\$aldffe?", cell["type"]):
                for place, bit in enumerate(pins["Q"]):
                    self.registers[bit] = (pins, place)
        self.sources |= set(self.registers)

    def found(self, path):
        """Registers whose path in Vivado, ``module/name_reg[*]``, matches one with asterisks: names and bits."""
        name = re.sub(r"_reg(\[\*\])?$", "", path).replace("/", ".")
        pattern = re.compile(re.escape(name).replace(r"\*", r"\w+"))
        nets = {net: bits for net, bits in self.nets.items() if pattern.fullmatch(net)}
        return {net: bits for net, bits in nets.items() if all(bit in self.registers for bit in bits)}

    def synchronizers(self):
        """Name of each, and the bits that each bit of its first register samples or is set by."""
        for name, bits in self.nets.items():
            if name.endswith(".stage0"):
                for pins, place in map(self.registers.get, bits):
                    yield name, {bit for bit in (pins["D"][place], *pins.get(ASYNCHRONOUS, [])) if isinstance(bit, int)}


def with_logic(netlist):
    """Synchronizers before which there is something that is no register."""
    return {name for name, sampled in netlist.synchronizers() if sampled - netlist.sources}


@pytest.fixture(scope="module")
def text():
    return cmac_kernel().text


@pytest.fixture(scope="module")
def netlist(text, tmp_path_factory):
    return Netlist(text, tmp_path_factory.mktemp("netlist"))


def test_no_logic_before_a_synchronizer(netlist):
    # Of two FIFOs three each, of counters two, of resets, settings and status.
    assert len({name for name, _ in netlist.synchronizers()}) == 23
    assert with_logic(netlist) == set()


def test_logic_before_a_synchronizer_is_found(text, tmp_path):
    name, body = next((name, body) for name, body in modules(text).items() if name.endswith("up_crossing"))
    spoiled = body.replace("stage0 <= shown_up", "stage0 <= shown_up & ~stage1")
    assert spoiled != body
    found = with_logic(Netlist(text.replace(body, spoiled), tmp_path))
    assert found == {f"{name.removeprefix(chr(92) + CMAC_KERNEL + '.')}.stage0"}


def test_what_the_constraints_name_is_there(netlist):
    paths = re.findall(r"(?<=[{ ])(?:adapter|mac)/[\w/*]+(?:\[\*\])?", crossing_constraints("p4sgd"))
    assert len(paths) > 10
    for path in paths:
        if path in netlist.mac:
            continue
        cell, _, pin = path.rpartition("/") if re.search(r"/(PRE|C|D)$", path) else (path, "", "")
        found = netlist.found(cell)
        assert found, path
        if pin == "PRE":
            found = {name: bits for name, bits in found.items() if ASYNCHRONOUS in netlist.registers[bits[0]][0]}
            assert {name.rpartition(".")[2] for name in found} >= {"stage0", "stage1"}, path
        else:
            assert {len(bits) > 1 for bits in found.values()} == {cell.endswith("[*]")}, path


def test_what_is_waived_is_named_with_a_reason(netlist):
    """Of what the XDC constrains, and of the counters; every source and sink is a pin of a register."""
    waivers = re.findall(r"^create_waiver (.*?[^\\])$", crossing_constraints("p4sgd"), re.MULTILINE | re.DOTALL)
    found = set()
    for waiver in waivers:
        (rule, reason) = re.match(r"-type CDC -id (CDC-\d+) -user p4sgd -description \{(.+)\} ", waiver).groups()
        assert len(reason.split()) > 5
        pins = re.findall(r"-(from|to) \[get_pins \{(.*)\}\]", waiver)
        assert pins
        found |= {(rule, end, path) for end, paths in pins for path in paths.split()}
    for _, end, path in found:
        cell, _, pin = path.rpartition("/")
        assert netlist.found(cell), path
        assert pin in {"from": ("C",), "to": ("D", "PRE")}[end]
    assert {rule for rule, *_ in found} == {"CDC-1", "CDC-4", "CDC-6", "CDC-11"}
    gray = {path.rsplit("/", 2)[1] for rule, end, path in found if (rule, end) == ("CDC-6", "from")}
    assert gray == {"produce_w_gry_reg[*]", "consume_r_gry_reg[*]"}


def test_one_launch_of_a_reset_is_waived_and_there_is_no_other(netlist):
    """What `report_cdc` calls a fan-out (CDC-11): a register that several synchronizers sample, or are set by."""
    loads = {}
    for name, sampled in netlist.synchronizers():
        for bit in sampled:
            loads.setdefault(bit, []).append(name)
    several = [sorted(names) for bit, names in loads.items() if len(names) > 1 and bit in netlist.registers]
    inside = "adapter."
    assert several == [[f"{inside}mac_reset_crossing.stage0", f"{inside}rx_crossing.rst_cdc.stage0"]]
    (bit,) = netlist.nets[f"{inside}mac_rst"]
    assert len(loads[bit]) == 2


def test_a_reset_acts_while_the_clock_of_the_mac_stands_still(netlist):
    """Before the MAC's logic leaves reset, what counts its cycles begins anew: it has no cycle in which to notice."""
    for name in ("adapter.cycles_left", "adapter.mac_rst"):
        assert netlist.nets[name]
        assert all(ASYNCHRONOUS in netlist.registers[bit][0] for bit in netlist.nets[name]), name


def test_pointers_and_modules_on_the_way_are_kept(text):
    """In Vivado no bit of a pointer is merged with an equal one, and no module on a path of a constraint dissolved."""
    for pointer in ("produce_w_gry", "consume_r_gry"):
        assert len(re.findall(rf'^  \(\* keep = "true" \*\)\n  reg \[4:0\] {pointer} ', text, re.MULTILINE)) == 2
    kept = set(re.findall(r'^\(\* keep_hierarchy = "yes" \*\)\nmodule (\S+) ', text, re.MULTILINE))
    first = {name for name, body in modules(text).items() if " stage0 " in body}
    assert first <= kept
    for name in kept:
        *outer, _ = name.split(".")
        assert not outer[1:] or ".".join(outer) in kept | {rf"\{CMAC_KERNEL}"}, "with all around it"
