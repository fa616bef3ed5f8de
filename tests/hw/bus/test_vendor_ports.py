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


def channel(prefix, out, **fields):
    there, back = ("output", "input") if out else ("input", "output")
    ports = {f"{prefix}{name}": (there, bits) for name, bits in {**fields, "valid": 1}.items()}
    return ports | {f"{prefix}ready": (back, 1)}


PREFIXES = {"control": "s_axi_control", "memory": "m_axi_gmem", "labels": "m_axi_labels", "tx": "axis_tx", "rx": "rx"}


@pytest.mark.parametrize(("id_bits", "attributes"), [(0, False), (3, False), (1, True)])
def test_names_directions_and_widths(id_bits, attributes):
    """Requests are to modifiable and bufferable memory: AxCACHE 0011, AxPROT 000, no locks, no priority (UG1037)."""
    ids = {"id": id_bits} if id_bits else {}
    request = {"addr": 64, "len": 8, "size": 3, "burst": 2} | ids
    request |= {"lock": 1, "cache": 4, "prot": 3, "qos": 4} if attributes else {}
    expected = {
        **channel("s_axi_control_aw", False, addr=12),
        **channel("s_axi_control_w", False, data=32, strb=4),
        **channel("s_axi_control_b", True, resp=2),
        **channel("s_axi_control_ar", False, addr=12),
        **channel("s_axi_control_r", True, data=32, resp=2),
        **channel("m_axi_labels_ar", True, **request),
        **channel("m_axi_labels_r", False, data=256, resp=2, last=1, **ids),
        **channel("axis_tx_t", True, data=512, keep=64, last=1),
        **channel("rx_t", False, data=512, keep=64, last=1),
        **channel("words__", True, payload=16),
        "idle": ("output", 1),
        "start": ("input", 3),
    }
    for bus in ("m_axi_gmem0", "m_axi_gmem1"):
        expected |= channel(f"{bus}_aw", True, **request) | channel(f"{bus}_w", True, data=128, strb=16, last=1)
        expected |= channel(f"{bus}_b", False, resp=2, **ids) | channel(f"{bus}_ar", True, **request)
        expected |= channel(f"{bus}_r", False, data=128, resp=2, last=1, **ids)
    text = to_verilog(VendorPorts(Ports(), PREFIXES, id_bits=id_bits, attributes=attributes), "top")
    assert ports_of(text, "top") == expected
    if attributes:
        assigned = re.findall(r"^  assign m_axi_gmem0_a[rw](id|lock|cache|prot|qos) = (.*);", text, re.MULTILINE)
        values = {("id", "1'h0"), ("lock", "1'h0"), ("cache", "4'h3"), ("prot", "3'h0"), ("qos", "4'h0")}
        assert (set(assigned), len(assigned)) == (values, 2 * len(values))


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
