"""A top of one's own around the generated worker and aggregator, made from what their folder says about their ports."""

import json
import re
from pathlib import Path

from p4sgd.hw.spec.config import NamedConfig

TWO_ENGINES = NamedConfig.of("tiny", engines=2, table_segments=16)
"""The smallest worker with two engines, and with a short table of the loss: for slow simulators."""

MEMORY = Path(__file__).with_name("axi_memory.v")
"""A memory behind an AXI4 port, in Verilog."""

_CABLES = """\
  assign aggregator_rx_tdata = worker_tx_tdata;
  assign aggregator_rx_tkeep = worker_tx_tkeep;
  assign aggregator_rx_tlast = worker_tx_tlast;
  assign aggregator_rx_tuser = 1'b0;
  assign aggregator_rx_tvalid = worker_tx_tvalid;
  assign worker_tx_tready = aggregator_rx_tready;
  assign worker_rx_tdata = aggregator_tx_tdata;
  assign worker_rx_tkeep = aggregator_tx_tkeep;
  assign worker_rx_tlast = aggregator_tx_tlast;
  assign worker_rx_tvalid = aggregator_tx_tvalid & aggregator_tx_tuser;
  assign aggregator_tx_tready = worker_rx_tready;
"""

_WRITES = """\
  wire {0}awvalid = 1'b0, {0}wvalid = 1'b0, {0}bready = 1'b0, {0}wlast = 1'b0, {0}awid = 1'b0, {0}awlock = 1'b0;
  wire [63:0] {0}awaddr = 64'd0;
  wire [7:0] {0}awlen = 8'd0;
  wire [2:0] {0}awsize = 3'd0, {0}awprot = 3'd0;
  wire [3:0] {0}awcache = 4'd0, {0}awqos = 4'd0;
  wire [1:0] {0}awburst = 2'd0;
  wire [{1}:0] {0}wdata = {{ {2}{{1'b0}} }};
  wire [{3}:0] {0}wstrb = {{ {4}{{1'b0}} }};
  wire {0}unused_ready, {0}unused_ready_too, {0}unused_valid, {0}unused_id;
  wire [1:0] {0}unused_resp;
"""
"""Write channels that a bus for reading lacks."""

_UNUSED = {"awready": "unused_ready", "wready": "unused_ready_too", "bvalid": "unused_valid", "bid": "unused_id"}
_UNUSED |= {"bresp": "unused_resp"}


def own_top(folder):
    """Module ``own``: a worker with `MEMORY` and an aggregator. Registers, clock and reset are its ports.

    Every port of the two is connected, by the templates in the README. Memory n begins with the words of
    ``memory<n>.hex``, and writes them to ``after<n>.hex`` when ``done`` rises.
    """
    tops = json.loads((folder / "ports.json").read_text())["tops"]
    templates = re.findall(r"```verilog\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    pins = re.findall(r"^ +(?:input|output) .*?(\w+),?$", MEMORY.read_text(), re.MULTILINE)
    outside, inside = ["input clk", "input rst", "input done"], []
    for (name, top), template in zip(tops.items(), templates, strict=True):
        short = name.removeprefix("p4sgd_")
        buses = {}
        for port in top["ports"]:
            width = f"[{port['bits'] - 1}:0] " if port["bits"] > 1 else ""
            buses.setdefault(port["bus"], {})[port["name"]] = port
            if port["bus"] == "s_axi_control" or port["name"] == "idle":
                outside.append(f"{port['direction']} {width}{short}_{port['name']}")
            elif port["bus"]:
                inside.append(f"  wire {width}{short}_{port['name']};\n")
        inside.append(re.sub(r"\((?!clk\)|rst\))(\w+)\)", rf"({short}_\1)", template))
        for bus in [bus for bus in buses if bus and bus.startswith("m_axi")]:
            bits, start = buses[bus][f"{bus}_rdata"]["bits"], f"{short}_{bus}_"
            reads_only = f"{bus}_awaddr" not in buses[bus]
            if reads_only:
                inside.append(_WRITES.format(start, bits - 1, bits, bits // 8 - 1, bits // 8))
            ends = {pin: _UNUSED.get(pin, pin) if reads_only else pin for pin in pins[3:]}
            joined = ", ".join(f".{pin}({start}{end})" for pin, end in ends.items())
            number = bus.rpartition("_")[2]
            inside.append(f"  axi_memory #(.BITS({bits}), .NUMBER({number})) memory{number}\n")
            inside.append(f"    (.clk(clk), .rst(rst), .done(done), {joined});\n")
    ports = ",\n  ".join(outside)
    return f"module own (\n  {ports}\n);\n{''.join(inside)}{_CABLES}endmodule\n"
