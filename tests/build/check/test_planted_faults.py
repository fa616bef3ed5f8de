"""Every check of a generated folder finds the faults that it is there for, and names where and what."""

import re
from dataclasses import replace

import pytest
from support.vendor_folders import NEEDS_TCL, plant

from p4sgd.build.check.check import CHECKS, check
from p4sgd.build.check.folder import open_folder

pytestmark = NEEDS_TCL

FAULTS = {
    ("debug", "scripts", "package_p4sgd_cmac.tcl"): [
        ("p4sgd::ip p4sgd_cmac_debug.tcl\n", "", "nothing makes p4sgd_cmac_usplus_vio"),
    ],
    ("vitis", "kernels", "p4sgd_cmac.xml"): [
        ('interrupt="false"', 'interrupt="true"', "interrupt is true; by the registers it is false"),
    ],
    ("vitis", "kernels", "p4sgd_worker_kernel.v"): [
        ("m_axi_gmem0_arlen", "m_axi_gmem0_length", r"no m_axi_gmem0_arlen\n.*port m_axi_gmem0_length is of no bus"),
        ("output [511:0] axis_tx_tdata", "output [255:0] axis_tx_tdata", "axis_tx_tdata has 256 bits .*, not 512"),
        ("input axis_rx_tvalid", "output axis_rx_tvalid", "axis_rx_tvalid is an output .* read_only"),
    ],
    ("vitis", "kernels", "p4sgd_worker.xml"): [
        ('"axis_rx"', '"axis_in"', r"the Verilog has no ports axis_in_\*"),
        ('dataWidth="256"', 'dataWidth="512"', "m_axi_gmem1_rdata has 256 bits"),
        ('offset="0x200"', 'offset="0x208"', "argument gmem0: its offset is 0x208; LINES0_0_ADDRESS_LOW is at 0x200"),
        ('id="1"', 'id="2"', "its number is 2, and should be 1"),
        ('id="2" port="axis_tx"', 'id="2" port="m_axi_gmem0"', "is not of its kind"),
        ("ap_ctrl_hs", "ap_ctrl_none", "hwControlProtocol is ap_ctrl_none; by the registers it is ap_ctrl_hs"),
        ("kernel:p4sgd_worker:", "kernel:worker:", "the kernel is called"),
    ],
    ("vitis", "kernels", "package_p4sgd_cmac.tcl"): [
        ("GRX_P gt_rxp", "GRX_P gt_rx", "the Verilog has no port gt_rx\n.*port gt_rxp is of no bus"),
    ],
    ("vitis", "kernels", "package_p4sgd_worker.tcl"): [
        ("kernel 1.0", "kernel 2.0", "version is 2.0, but 1.0"),
    ],
    ("vitis", "scripts", "p4sgd_cmac.xdc"): [
        ("consume_r_gry_reg", "consume_r_grey_reg", "has no .*/consume_r_grey_reg"),
        ("consume_r_gry_reg[*]", "consume_r_gry[*]", r"has no .*/consume_r_gry\[\*\]"),
        ("consume_r_gry_reg[*]", "consume_r_gry_reg", "has no .*/consume_r_gry_reg"),
        ("gt_txusrclk2", "gt_txclk", "the Verilog has no mac/gt_txclk"),
        ("get_ports ap_clk", "get_ports ap_clock", "the Verilog has no ap_clock"),
    ],
    ("vitis", "scripts", "p4sgd_worker.xdc"): [
        ("engine*/stable_reg", "engine*/table_reg", r"the Verilog has no worker/engine\*/table_reg\[\*\]"),
    ],
    ("vitis", "scripts", "package_kernel.tcl"): [
        ("-vendor $vendor", "-vendor $vendors", r"package_p4sgd_\w+.tcl:\d+: can't read .vendors\b"),
        ("update_compile_order", "update_compile_ordre", "there is no command update_compile_ordre"),
        ("-import_files", "-import_all", "ipx::package_project has no option -import_all"),
        ("ipx::add_port_map $signal", "ipx::add_port_map", "2 to 2 arguments, not 1"),
        ("$top.v]", "$top.sv]", r"add_files names p4sgd_\w+.sv"),
        ("$name -clock ap_clk", "$name -clock ap_clock", "clocks of buses are .*ap_clock.* should be ap_clk"),
    ],
    ("vitis", "scripts", "package_p4sgd_cmac.tcl"): [
        ("p4sgd::constraints p4sgd_cmac.xdc\n", "", "is read by no script"),
        ("GRX_P gt_rxp", "GRX_P gt_txp", "GRX_P of master gt_serial is gt_txp, an output"),
        ("GRX_P gt_rxp", "GRX_P gt_rxn", "GRX_P of master gt_serial is gt_rxn, an input .* whose name ends so"),
        ("gt_serial master", "gt_serial slave", "GRX_P of slave gt_serial is gt_rxp, an input .* should be an output"),
        ("slave diff_clock", "slave clock_pair", "gt_refclk is of no known kind: xilinx.com:interface:clock_pair:1.0"),
    ],
    ("vitis", "scripts", "package_p4sgd_worker.tcl"): [
        ("package_kernel.tcl]", "package_core.tcl]", "package_p4sgd_worker.tcl:2: .* no file .*package_core.tcl"),
        ("p4sgd::make_core", "p4sgd::bake_core", r"package_p4sgd_worker.tcl:\d+: there is no command p4sgd::bake_core"),
        ("p4sgd::bus axis_rx\n", "", "clocks of buses are "),
        ("gmem0 0x200", "gmem0 0x204", "register gmem0 is at 0x204; LINES0_0_ADDRESS_LOW is at 0x200"),
        ("p4sgd_worker_kernel", "p4sgd_kernel", "add_files names p4sgd_kernel.v"),
    ],
    ("vitis", "scripts", "place.tcl"): [
        ("} {\n    set region", "} {{\n    set region", "place.tcl:.*missing close-brace"),
        ("worker/engine0 ", "worker/engine99 ", "the Verilog has no /worker/engine99"),
        ("worker/engine0", "engine0", "the Verilog has no /engine0"),
        ("    0 {", "    3 {", r"place.tcl:\d+: an Alveo U280 has no SLR3"),
    ],
    ("vitis", "scripts", "p4sgd_cmac_ip.tcl"): [
        ("-module_name p4sgd_cmac_usplus", "-module_name", "has no value"),
        ("p4sgd_cmac_usplus", "p4sgd_mac", r"makes p4sgd_cmac_usplus.*cmac_ip.tcl:\d+: .* no instance of p4sgd_mac"),
    ],
    ("vivado", "block design", "block_design.tcl"): [
        ('"true" : "false"', '"false" : "false"', "USER_SAXI_00 of hbm is false; it should be true"),
        ("NUM_MI 2", "NUM_MI 3", "NUM_MI of control is 3; it should be 2"),
        ("    connect_bd_net [get_bd_ports hbm_cattrip] [get_bd_pins too_hot/Res]\n", "", "hbm_cattrip is driven 0"),
        ("    wire xdma/axi_aclk $name/ap_clk\n", "", "cmac_1/ap_clk is driven 0 .*worker_1/ap_clk is driven 0 times"),
        ("    wire xdma/axi_aresetn $name/ap_rst_n\n", "", "p4sgd_worker_1/ap_rst_n is driven 0 times"),
        ("    wire global_clock/BUFG_O $mac/clk_gt_freerun\n", "", "p4sgd_cmac_1/clk_gt_freerun is driven 0 times"),
        ("    wire board_clock/IBUF_OUT global_clock/BUFG_I\n", "", "global_clock/BUFG_I is driven 0 times"),
        (" hbm/AXI_[format %02d $channel]_ACLK", "", r"hbm/AXI_\d\d_ACLK is driven 0 times"),
        ("xdma/axi_aresetn $name/ap_rst_n", "global_clock/BUFG_O $name/ap_clk", "worker_1/ap_clk is driven 2 times"),
        ("wire xdma/axi_aclk $name/ap_clk", "wire xdma/axi_clk $name/ap_clk", "there is no xdma/axi_clk"),
        ("wire xdma/axi_aclk $name/ap_clk", "wire xdma/axi_aclk $name/ap_clock", "there is no p4sgd_worker_1/ap_clock"),
        ("wire xdma/axi_aclk $name/ap_clk", "wire xdma/sys_clk $name/ap_clk", "a net is driven by nothing"),
        ("bus_between xdma/M_AXI_LITE", "bus_between xdma/M_AXI_LIGHT", "xdma has no bus M_AXI_LIGHT"),
        ("ip:proc_sys_reset", "ip:sys_reset", "memory_reset is of no known IP"),
    ],
    ("vivado", "block design", "project.tcl"): [
        (
            "p4sgd::stream_between p4sgd_cmac_1/axis_rx p4sgd_worker_1/axis_rx\n",
            "",
            r"cmac_1/axis_rx .* 0 .*\n.*worker_1/axis_rx",
        ),
        ("stream_between p4sgd_cmac", "bus_between p4sgd_cmac", "cmac_1/axis_rx and .*/axis_rx have no FIFO"),
        ("p4sgd::connect_memory 31 {p4sgd_worker_1/m_axi_gmem1 {31}}\n", "", "m_axi_gmem1 is connected 0 times"),
        ("connect_memory 31", "connect_memory 1", "hbm/SAXI_01 is connected 2"),
        ("gmem1 {31}", "gmem1 {30}", "HBM_MEM30 is both"),
        ("0x1000", "0x0", "is at 0x0, where xdma/M_AXI_LITE has"),
        ("0x1000", "0x800", "is at 0x800, where xdma/M_AXI_LITE has"),
        ("_1/axis_rx p4sgd", "_1/axis_in p4sgd", "cmac_1 has no bus axis_in"),
        (":p4sgd_cmac:", ":p4sgd_mac:", "there is no p4sgd_cmac"),
    ],
    ("vivado", "scripts", "engine.tcl"): [
        ("p4sgd_worker_engine", "p4sgd_engine", "top module is p4sgd_engine"),
        (" engine_clock.xdc", " worker_clock.xdc", "is read by no script"),
    ],
    ("vivado", "scripts", "engine_clock.xdc"): [
        ("get_ports clk", "get_ports ap_clk", "the Verilog has no ap_clk"),
    ],
    ("vivado", "scripts", "p4sgd_cmac.xdc"): [
        ("shown_held_reg[*]/C", "held_reg[*]/C", "the Verilog has no adapter/counters/held_reg"),
    ],
    ("vivado", "scripts", "floorplan.tcl"): [
        ("engine0", "engine99", "the Verilog has no worker/engine99"),
        ("SLR2:SLR2", "SLR3:SLR3", "an Alveo U280 has no SLR3"),
    ],
    ("vivado", "scripts", "out_of_context.tcl"): [
        ("-mode out_of_context", "-mood out_of_context", "(out_of_context|engine).tcl.* has no option -mood"),
    ],
    ("vitis", "manifest", "link_hw.cfg"): [("SLR2", "SLR1", "link_hw.cfg: was changed")],
    ("vitis", "paths", "link_hw.cfg"): [("save-temps=1", "temp_dir=/home/me/out", "link_hw.cfg:6: /home/me")],
    ("vitis", "paths", "rules.mk"): [("OUT := out", "OUT := /tmp/out", r"rules.mk:\d+: /tmp/out is an abs")],
    ("vitis", "schema", "p4sgd_worker.xml"): [
        ("</args>", "", r"p4sgd_worker.xml:\d+: is not XML"),
        ('mode="slave"', 'mode="servant"', r"port\[1\].*servant"),
        ('id="1"', 'id="0"', r"arg\[2\]: duplicated"),
        (' language="ip_c"', "", "missing required attribute"),
    ],
    ("vitis", "verilog", "p4sgd_cmac_kernel.v"): [
        ("  assign axis_tx__valid ", "  asign axis_tx__valid ", r"p4sgd_cmac_kernel.v:\d+: .*'axis_tx__valid'"),
    ],
    ("vitis", "links", "link_hw.cfg"): [
        ("_1.m_axi_gmem1:", "_1.m_axi_gmem2:", "no instance .*worker_1.m_axi_gmem2.*gmem1 is given memory 0 times"),
        ("nk=p4sgd_worker:1", "nk=p4sgd_worker:2", "p4sgd_worker_2.m_axi_gmem0 is given memory 0 times"),
        ("nk=p4sgd_worker:1", "nk=p4sgd_worker:1:fast", "fast.m_axi_gmem0 is given memory 0 times"),
        ("nk=p4sgd_cmac:1\n", "", "stream_connect: no instance has a stream p4sgd_cmac_1.axis_tx"),
        ("_1.axis_rx:p4sgd_worker", "_1.axis_tx:p4sgd_worker", "axis_tx receives and cannot be a source"),
        (":p4sgd_worker_1.axis_rx:16", ":p4sgd_worker_1.axis_rx", "a FIFO of no beats"),
        ("SLR2", "SLR1", "cfg:18: slr: p4sgd_cmac_1 is on SLR1; .* are on SLR2"),
    ],
    ("vitis", "links", "link_hw_emu.cfg"): [
        ("_aggregator_1.axis_rx1", "_aggregator_1.axis_rx0", "axis_rx0 is connected 2 times.*axis_rx1 is connected 0"),
        ("cmac_2.axis_tx:", "cmac_1.axis_tx:", "worker_2.axis_tx and p4sgd_emulated_cmac_1.axis_tx are not of"),
    ],
    ("selftest", "links", "link_hw.cfg"): [
        ("p4sgd_cmac1_1.axis_tx:", "p4sgd_cmac_1.axis_tx:", "axis_tx1 and p4sgd_cmac_1.axis_tx are not of the same"),
    ],
    ("demo", "manifest", "heartbeat.v"): [("endmodule", "endmodule ", "was changed")],
    ("demo", "scripts", "heartbeat.tcl"): [
        ("read_xdc heartbeat.xdc", "read_xdc heart.xdc", "read_xdc names heart.xdc, which is no file"),
        ("synth_design -top heartbeat", "synth_design -top beat", "the top module is beat, which its Verilog has not"),
    ],
    ("demo", "verilog", "heartbeat.v"): [("endmodule", "endmodul", r"heartbeat.v:\d+: ")],
    ("vivado", "scripts", "package_p4sgd_worker.tcl"): [
        ("gmem1 0x078", "gmem1 0x07c", "register gmem1 is at 0x07c; LABELS_ADDRESS_LOW is at 0x078"),
        ("AP_IDLE 2 1", "AP_IDLE 3 1", "AP_IDLE has bit and width .*'3', '1'.* should have 2, 1"),
        ("s_axi_control 4096", "s_axi_control 8192", "the registers take 8192 bytes, and should take 4096"),
    ],
    ("vivado", "block design", "address_map.json"): [
        ('"registers": 4096', '"registers": 8192', "p4sgd_cmac: registers are at 8192, and in project.tcl at 4096"),
        ('"bytes": 268435456', '"bytes": 536870912', "p4sgd_worker: memories are at"),
    ],
}
"""Faults by kind of folder, check and file: a text, what takes its place, and what is found then."""


@pytest.mark.parametrize(
    ("kind", "name", "file", "before", "after", "message"),
    [pytest.param(*key, *fault, id=f"{key[2]}: {fault[1]}") for key, faults in FAULTS.items() for fault in faults],
)
def test_finds(request, tmp_path, kind, name, file, before, after, message):
    folder = open_folder(plant(request.getfixturevalue(f"{kind}_folder"), tmp_path, file, before, after))
    if name == "verilog":  # the other kernels need not be read
        tops = {top: each for top, each in folder.tops.items() if each == file}
        folder = replace(folder, manifest=folder.manifest | {"kernels": {}, "tops": tops})
    found = "\n".join(map(str, CHECKS[name].function(folder)))
    assert re.search(message, found, re.DOTALL), found


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("p4sgd_worker_kernel.v", "module p4sgd_worker_kernel(", "module another_kernel("),
        ("p4sgd_worker.xml", 'dataWidth="32"', 'dataWidth="wide"'),
    ],
)
def test_a_file_that_cannot_be_followed_is_told(vitis_folder, tmp_path, name, before, after):
    folder = plant(vitis_folder, tmp_path, name, before, after)
    told = list(map(str, check(open_folder(folder), {n: CHECKS[n] for n in CHECKS if n != "verilog"}).problems))
    assert told[0] == f"{name}: was changed since it was generated"
    assert any("cannot be followed" in each for each in told), told
