"""A top of one's own around the generated worker and aggregator, made from what their folder says about their ports."""

import json
import re

from p4sgd.hw.spec.config import NamedConfig

TWO_ENGINES = NamedConfig.of("tiny", engines=2, table_segments=16)
"""The smallest worker with two engines, and with a short table of the loss."""

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


def own_top(folder, prefix=""):
    """Module ``own``: a worker and an aggregator, whose frames go from one to the other. All other ports are its own.
    Its name, and theirs, begin with ``prefix``.

    Every port of the two is connected, by the templates in the README.
    """
    tops = json.loads((folder / "ports.json").read_text())["tops"]
    templates = re.findall(r"```verilog\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    outside, inside = ["input clk", "input rst"], []
    for (name, top), template in zip(tops.items(), templates, strict=True):
        short = name.replace("p4sgd_", "")
        for port in top["ports"][2:]:
            width = f"[{port['bits'] - 1}:0] " if port["bits"] > 1 else ""
            if port["bus"] in ("rx", "tx"):
                inside.append(f"  wire {width}{short}_{port['name']};\n")
            else:
                outside.append(f"{port['direction']} {width}{short}_{port['name']}")
        inside.append(re.sub(r"\((?!clk\)|rst\))(\w+)\)", rf"({short}_\1)", template))
    ports = ",\n  ".join(outside)
    cables = re.sub(r"\b(?=worker|aggregator)", prefix, _CABLES)
    return f"module {prefix}own (\n  {ports}\n);\n{''.join(inside)}{cables}endmodule\n"
