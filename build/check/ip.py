"""IP of the vendor's, as far as the generated scripts use it: parameters, pins and buses, and whether they are known.

They are the names that our scripts use, not read out of the product guides, which have the last word: PG203 (100G
Ethernet), PG276 (HBM), PG164 (reset), PG247 (SmartConnect), PG195 (XDMA), PB043 and PB046 (buffers, gates). In a name
``#`` stands for a digit.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from p4sgd.build.check.report import Problem
from p4sgd.build.check.scripts import Call

__all__ = ["IPS", "Ip", "check_parameters", "inputs", "is_one_of"]


class Ip(NamedTuple):
    """What can be named of an IP; names are separated by spaces."""

    parameters: str
    inputs: str = ""
    """Pins that must be driven."""
    inputs_beside: Mapping[str, str] = {}
    """Pins that must be driven if another pin or a bus is connected, with that one's name."""
    outputs: str = ""
    buses: str = ""


IPS = {
    "cmac_usplus": Ip(
        "CMAC_CAUI4_MODE NUM_LANES USER_INTERFACE GT_REF_CLK_FREQ TX_FLOW_CONTROL RX_FLOW_CONTROL INCLUDE_RS_FEC "
        "ENABLE_AXI_INTERFACE INCLUDE_STATISTICS_COUNTERS INCLUDE_SHARED_LOGIC RX_MIN_PACKET_LEN ENABLE_PIPELINE_REG "
        "GT_DRP_CLK CMAC_CORE_SELECT GT_GROUP_SELECT"
    ),
    "hbm": Ip(
        "USER_HBM_DENSITY USER_HBM_STACK USER_APB_EN USER_XSDB_INTF_EN USER_SWITCH_ENABLE_0# USER_HBM_REF_CLK_# "
        "USER_AXI_INPUT_CLK_FREQ USER_AXI_INPUT_CLK1_FREQ USER_SAXI_##",
        "HBM_REF_CLK_0 HBM_REF_CLK_1 APB_0_PCLK APB_1_PCLK APB_0_PRESET_N APB_1_PRESET_N",
        {"AXI_##_ACLK": "SAXI_##", "AXI_##_ARESET_N": "SAXI_##"},
        "DRAM_0_STAT_CATTRIP DRAM_1_STAT_CATTRIP",
        "SAXI_##",
    ),
    "proc_sys_reset": Ip("", "slowest_sync_clk ext_reset_in", outputs="peripheral_aresetn"),
    "smartconnect": Ip("NUM_SI NUM_MI", "aclk aresetn", buses="S##_AXI M##_AXI"),
    "util_ds_buf": Ip("C_BUF_TYPE", "", {"BUFG_I": "BUFG_O"}, "BUFG_O IBUF_OUT IBUF_DS_ODIV2", "CLK_IN_D"),
    "util_vector_logic": Ip("C_OPERATION C_SIZE", "Op1 Op2", outputs="Res"),
    "xdma": Ip(
        "mode_selection pcie_blk_locn en_gt_selection select_quad pl_link_cap_max_link_width "
        "pl_link_cap_max_link_speed axi_data_width axisten_freq xdma_axi_intf_mm axilite_master_en "
        "axilite_master_size axilite_master_scale",
        "sys_clk sys_clk_gt sys_rst_n",
        outputs="axi_aclk axi_aresetn",
        buses="M_AXI M_AXI_LITE pcie_mgt",
    ),
}
"""By name."""


def is_one_of(name: str, names: str) -> bool:
    """Whether a name is among such names."""
    return any(re.fullmatch(each.replace("#", r"\d"), name) for each in names.split())


def inputs(ip: Ip, used: Iterable[str]) -> set[str]:
    """Pins that must be driven if ``used`` are the pins and buses that are connected."""
    found = set(ip.inputs.split())
    for pin, beside in ip.inputs_beside.items():
        for name in used:
            if match := re.fullmatch(beside.replace("#", r"(\d)"), name):
                found.add(pin.replace("#", "{}").format(*match.groups()))
    return found


def check_parameters(calls: Iterable[Call]) -> Iterator[Problem]:
    """The vendor's IP is known, and has the parameters that are set."""
    kinds = {}  # by what stands for the IP
    for call in calls:
        if call.command == "create_ip":
            kinds[f"get_ips {call.option('module_name')}"] = call.option("name") or ""
        elif call.command == "create_bd_cell" and (call.option("vlnv") or "").startswith("xilinx.com:"):
            kinds[f"create_bd_cell {call.others[0]}"] = (call.option("vlnv") or "").split(":")[2]
        elif call.command == "set_property" and (settings := call.option("dict")):
            ip = kinds.get(call.others[0])
            for name in re.findall(r"CONFIG\.(\w+)", settings):
                if ip not in IPS or not is_one_of(name, IPS[ip].parameters):
                    yield Problem(call.file, f"{ip} has no parameter {name}", call.line)
