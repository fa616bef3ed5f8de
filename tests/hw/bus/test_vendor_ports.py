"""VendorPorts: names, directions and widths of its ports."""

import gc
import re

import pytest
from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from support.verilog_ports import ports_of

from p4sgd.hw.bus.axi import Axi4LiteSignature, Axi4Signature, FrameBeat
from p4sgd.hw.kernel.verilog import VendorPorts
from p4sgd.hw.verilog import to_verilog

REQUEST = {"addr": 64, "len": 8, "size": 3, "burst": 2}
ATTRIBUTES = {"lock": 1, "cache": 4, "prot": 3, "qos": 4}


class Ports(wiring.Component):
    """Every kind of member that a worker has."""

    def __init__(self):
        super().__init__(
            {
                "control": In(Axi4LiteSignature()),
                "memory": Out(Axi4Signature(data_bits=128)).array(2),
                "labels": Out(Axi4Signature(data_bits=256, write=False)),
                "tx": Out(stream.Signature(FrameBeat)),
                "rx": In(stream.Signature(FrameBeat)),
                "words": Out(stream.Signature(16)),
                "idle": Out(1),
                "start": In(3),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.d.comb += self.idle.eq(self.start.any())
        return m


def channel(prefix, fields, out):
    there, back = ("output", "input") if out else ("input", "output")
    ports = {f"{prefix}{name}": (there, bits) for name, bits in {**fields, "valid": 1}.items()}
    return {**ports, f"{prefix}ready": (back, 1)}


PREFIXES = {"control": "s_axi_control", "memory": "m_axi_gmem", "labels": "m_axi_labels", "tx": "axis_tx", "rx": "rx"}


@pytest.mark.parametrize(("id_bits", "attributes"), [(0, False), (3, False), (1, True)])
def test_names_directions_and_widths(id_bits, attributes):
    ids = {"id": id_bits} if id_bits else {}
    request = REQUEST | ids | (ATTRIBUTES if attributes else {})
    beat = {"data": 512, "keep": 64, "last": 1}
    expected = {
        **channel("s_axi_control_aw", {"addr": 12}, False),
        **channel("s_axi_control_w", {"data": 32, "strb": 4}, False),
        **channel("s_axi_control_b", {"resp": 2}, True),
        **channel("s_axi_control_ar", {"addr": 12}, False),
        **channel("s_axi_control_r", {"data": 32, "resp": 2}, True),
        **channel("m_axi_labels_ar", request, True),
        **channel("m_axi_labels_r", {"data": 256, "resp": 2, "last": 1} | ids, False),
        **channel("axis_tx_t", beat, True),
        **channel("rx_t", beat, False),
        **channel("words__", {"payload": 16}, True),
        "idle": ("output", 1),
        "start": ("input", 3),
    }
    for bus in ("m_axi_gmem0", "m_axi_gmem1"):
        expected |= {
            **channel(f"{bus}_aw", request, True),
            **channel(f"{bus}_w", {"data": 128, "strb": 16, "last": 1}, True),
            **channel(f"{bus}_b", {"resp": 2} | ids, False),
            **channel(f"{bus}_ar", request, True),
            **channel(f"{bus}_r", {"data": 128, "resp": 2, "last": 1} | ids, False),
        }
    ports = VendorPorts(Ports(), PREFIXES, id_bits=id_bits, attributes=attributes)
    assert ports_of(to_verilog(ports, "top"), "top") == expected


def test_requests_are_to_modifiable_and_bufferable_memory():
    """UG1037: AxCACHE 0011, AxPROT 000, no locks, no priority."""
    text = to_verilog(VendorPorts(Ports(), PREFIXES, id_bits=1, attributes=True), "top")
    assigned = dict(re.findall(r"^  assign (m_axi_gmem0_a[rw](?:id|lock|cache|prot|qos)) = (.*);", text, re.MULTILINE))
    for channel_name in ("aw", "ar"):
        values = {
            name: assigned[f"m_axi_gmem0_{channel_name}{name}"] for name in ("id", "lock", "cache", "prot", "qos")
        }
        assert values == {"id": "1'h0", "lock": "1'h0", "cache": "4'h3", "prot": "3'h0", "qos": "4'h0"}


@pytest.mark.filterwarnings("ignore::amaranth.hdl.UnusedElaboratable")
def test_mistakes_are_refused():
    with pytest.raises(ValueError, match="no member 'nothing'"):
        VendorPorts(Ports(), {"nothing": "m_axi"})
    with pytest.raises(ValueError, match="two ports would be named 'axis_tdata'"):
        VendorPorts(Ports(), {"tx": "axis", "rx": "axis"})
    for name in ("idle", "words"):
        with pytest.raises(TypeError, match=f"{name} of Ports is neither"):
            VendorPorts(Ports(), {name: "axis"})
    gc.collect()  # what was refused is never elaborated: Amaranth says so when it goes
