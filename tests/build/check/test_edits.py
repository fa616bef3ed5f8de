"""`p4sgd build check` tells what an edit changes, of whatever kind, but for what an engineer may choose."""

import shutil
from dataclasses import replace

import pytest
from support.vendor_folders import NEEDS_TCL, plant

from p4sgd.build.check.check import CHECKS, check
from p4sgd.build.check.edits import check_edits
from p4sgd.build.check.folder import open_folder

pytestmark = NEEDS_TCL

FAULTS = {
    ("debug", "link_hw.cfg"): [("m_axi_gmem0", "m_axi_gmem1")],
    ("debug", "p4sgd_worker_debug.tcl"): [("generate_synth_checkpoint false", "generate_synth_checkpoint true")],
    ("demo", "heartbeat.tcl"): [("xcu280-fsvh2892-2L-e", "xcu50-fsvh2104-2L-e"), ("place_design", "# place_design")],
    ("demo", "heartbeat.xdc"): [("LOC B33", "LOC B34")],
    ("generated", "files.f"): [
        ("p4sgd_worker.v\n", ""),
        ("p4sgd_worker.v", "worker.v"),
    ],
    ("generated", "p4sgd.core"): [("p4sgd_worker.v, ", "")],
    ("generated", "p4sgd.vlt"): [
        ('lint_off -rule DECLFILENAME -file "*p4sgd_*.v"', "lint_off -rule DECLFILENAME"),
        ("lint_off -rule DECLFILENAME", 'lint_off -rule WIDTHTRUNC -file "*p4sgd_*.v"\nlint_off -rule DECLFILENAME'),
    ],
    ("generated", "p4sgd_aggregator.v"): [("input clk;", "input clk; /* the clock\n input clk_2;\n */")],
    ("generated", "p4sgd_aggregator_registers.h"): [("0x000u", "0x004u")],
    ("generated", "p4sgd_packet.h"): [("64", "60")],
    ("generated", "p4sgd_worker.v"): [(".rst(rst)", ".rst(1'b0)")],
    ("generated", "packet.json"): [('"bits": 8', '"bits": 16')],
    ("generated", "packet.md"): [("| `", "| `x")],
    ("generated", "ports.json"): [('"direction": "input"', '"direction": "output"')],
    ("generated", "registers.json"): [('"name": "MAGIC"', '"name": "MAGIK"')],
    ("selftest", "judge.tcl"): [("160", "180")],
    ("selftest", "p4sgd_cmac1_ip.tcl"): [("CMACE4_X0Y6", "CMACE4_X0Y5")],
    ("selftest", "p4sgd_cmac_ip.tcl"): [("RX_EQ_MODE {DFE}", "RX_EQ_MODE {LPM}")],
    ("selftest", "selftest_registers.md"): [("| `0x", "| `0x1")],
    ("vitis", "Makefile"): [
        ("KERNELS_hw := p4sgd_worker p4sgd_cmac", "KERNELS_hw := p4sgd_worker"),
        ("JUDGE_hw := judge.tcl\n", ""),
    ],
    ("vitis", "hw_emu.toml"): [("port = 1", "port = 0"), ('kind = "fpga"', 'kind = "process"')],
    ("vitis", "judge.tcl"): [
        ("} 160 {", "} 300 {"),
        (" */p4sgd_cmac_1/inst/adapter", ""),
    ],
    ("vitis", "link_hw.cfg"): [
        ("HBM[0:31]", "HBM[0:15]"),
        ("slr=", "slir="),
        ("slr=", "[vivado]\nprop=run.impl_1.STEPS.PLACE_DESIGN.TCL.PRE=other.tcl\n[connectivity]\nslr="),
        ("slr=", "[clock]\nfreqHz=300000000:p4sgd_worker_1\n[connectivity]\nslr="),
    ],
    ("vitis", "link_hw_emu.cfg"): [("nk=p4sgd_worker:2", "nk=p4sgd_worker:3"), ("save-temps", "save_temps")],
    ("vitis", "p4sgd_cmac.xdc"): [
        ("\nset_false_path", "\nset_false_path -from [get_clocks *] -to [get_clocks *]\nset_false_path"),
        ("-id CDC-6", "-id CDC-*"),
    ],
    ("vitis", "p4sgd_cmac_ip.tcl"): [
        ("INCLUDE_RS_FEC {1}", "INCLUDE_RS_FEC {0}"),
        ("    CONFIG.CMAC_CORE_SELECT {CMACE4_X0Y5} \\\n", ""),
        (
            "generate_target all",
            "set_property CONFIG.USER_INTERFACE {LBUS} [get_ips p4sgd_cmac_usplus]\ngenerate_target all",
        ),
    ],
    ("vitis", "p4sgd_cmac_kernel.v"): [("assign axis_tx__valid = axis_tx_tvalid", "assign axis_tx__valid = 1'b1")],
    ("vitis", "p4sgd_registers.h"): [("P4SGD_CTRL 0x000u", "P4SGD_CTRL 0x004u")],
    ("vitis", "p4sgd_worker.xml"): [('hostSize="0x8"', 'hostSize="0x4"')],
    ("vitis", "p4sgd_worker_kernel.v"): [("1'h1 ", "1'h0 ")],
    ("vitis", "package_kernel.tcl"): [
        ("SUPPORTS_NARROW_BURST 0", "SUPPORTS_NARROW_BURST 1"),
        ("    set_property sdx_kernel true [ipx::current_core]\n", ""),
    ],
    ("vitis", "package_p4sgd_worker.tcl"): [("p4sgd::clock 250000000\n", ""), ("clock 250000000", "clock 250")],
    ("vitis", "place.tcl"): [
        ("p4sgd_worker_1/inst", "worker_1/inst"),
        ("pblock_dynamic_SLR$die", "pblock_SLR$die"),
    ],
    ("vitis", "registers.json"): [('"offset": 512', '"offset": 520')],
    ("vitis", "registers.rdl"): [("0x200", "0x300")],
    ("vitis", "rules.mk"): [("ROUTE_DESIGN.TCL.POST", "ROUTE_DESIGN.TCL.PRE"), (".DELETE_ON_ERROR:\n", "")],
    ("vivado", "Makefile"): [("RELEASES :=", "RELEASES := 2019.2")],
    ("vivado", "address_map.json"): [('"address": 0', '"address": 4096')],
    ("vivado", "block_design.tcl"): [
        ('ne "100%"', 'eq "50%"'),
        ("max_link_width X16", "max_link_width X8"),
        ("lappend parameters USER_CLK_SEL_LIST$stack $clock($stack)\n", ""),
        ("pcie_blk_locn", "pcie_block_locn"),
        ("wire xdma/axi_aclk $fifo/s_axis_aclk", "wire global_clock/BUFG_O $fifo/s_axis_aclk"),
        ("-to_step write_bitstream", "-to_step route_design"),
        ("    validate_bd_design\n", ""),
        ("    wait_on_run impl_1\n", "    catch {wait_on_run impl_1}\n"),
        ("create_bd_port -dir I -type rst", "create_bd_port -dir I -type clk"),
    ],
    ("vivado", "board.xdc"): [
        ("PACKAGE_PIN D32", "PACKAGE_PIN D33"),
        ("set_false_path -from", "set_property DIFF_TERM_ADV TERM_100 [get_ports pcie_perst_n]\nset_false_path -from"),
    ],
    ("vivado", "engine_clock.xdc"): [("-period 4.000", "-period 5.000"), ("create_clock", "# create_clock")],
    ("vivado", "gates.tcl"): [
        ("$slack < 0", "$slack < -1"),
        ("$found > $watts", "0 > $watts"),
    ],
    ("vivado", "out_of_context.tcl"): [
        ("    opt_design\n    place_design\n", "    place_design\n    opt_design\n"),
        ("    report_drc -file [file join $out rules_$stage.rpt]\n", ""),
    ],
    ("vivado", "p4sgd_cmac.xdc"): [
        ("-datapath_only -from $mac", "-from $mac"),
        ("set_false_path -to [get_pins {", "set_false_path -to [get_pins {}] ;# {"),
    ],
    ("vivado", "p4sgd_worker.xdc"): [
        ("[get_cells {worker/engine*/stable_reg[*]}]", "[get_cells -hierarchical]"),
        ("set_multicycle_path -hold", "# "),
        ("set_multicycle_path -setup", "create_clock -period 4 [get_ports ap_clk]\n#"),
    ],
    ("vivado", "p4sgd_worker_kernel.v"): [(".rst(rst)", ".rst(1'b0)")],
    ("vivado", "package_kernel.tcl"): [("PROCESSING_ORDER LATE", "PROCESSING_ORDER EARLY")],
    ("vivado", "package_p4sgd_worker.tcl"): [("xcu280-fsvh2892-2L-e", "xcu50-fsvh2104-2L-e")],
    ("vivado", "project.tcl"): [
        ("p4sgd::open_project", "proc p4sgd::judge_slack {args} {}\np4sgd::open_project"),
        ("\np4sgd::judge", "\n# p4sgd::judge"),
        ("\np4sgd::judge", "\ncatch p4sgd::judge"),
        (
            "p4sgd::make_bitstream",
            "set_property STEPS.ROUTE_DESIGN.TCL.POST other.tcl [get_runs impl_1]\np4sgd::make_bitstream",
        ),
    ],
    ("vivado", "rules.mk"): [
        ("exit 2; \\\n\tfi\n\ncheck", "exit 0; \\\n\tfi\n\ncheck"),
        ("\trm -f $(VERDICT)\n", ""),
    ],
}
"""Texts by kind of folder and file, and what takes the place of each."""

CHOICES = {
    ("generated", "p4sgd_aggregator.v"): [
        ("input clk;", "input clk;  // rising edge"),
        ("endmodule\n", "endmodule // it\n"),
    ],
    ("vivado", "p4sgd_worker.xdc"): [
        (
            "-setup 4 -to $settings\nset_multicycle_path -hold 3",
            "-hold 3 -to $settings\nset_multicycle_path -setup 4",
        )
    ],
    ("vivado", "floorplan.tcl"): [
        (
            "[get_pblocks p4sgd_slr0] [get_cells ${p4sgd_top}worker/engine0]",
            "[get_pblocks p4sgd_slr1] [get_cells ${p4sgd_top}worker/engine0]",
        )
    ],
    ("vivado", "project.tcl"): [
        (
            "p4sgd::make_bitstream",
            "set_property strategy Performance_Explore [get_runs impl_1]\n# mine\np4sgd::make_bitstream",
        ),
        ("board.xdc 8", "board.xdc 16"),
    ],
    ("vivado", "out_of_context.tcl"): [
        (
            "    place_design\n",
            "    place_design -directive Explore\n    report_utilization -file [file join $out placed.rpt]\n",
        )
    ],
    ("vivado", "block_design.tcl"): [
        ("    cell hbm ", "    cell more xilinx.com:ip:util_ds_buf {C_BUF_TYPE BUFG}\n    cell hbm ")
    ],
    ("vitis", "place.tcl"): [
        ("worker/engine0 gmem1_slice1}", "gmem1_slice1 worker/engine0}"),
        ("0 {worker/engine0 ", "2 {worker/engine0}\n    0 {"),
    ],
    ("vitis", "link_hw.cfg"): [
        ("slr=", "slr=p4sgd_worker_1:SLR1\nslr="),
        ("save-temps=1", "save-temps=0\n[vivado]\nprop=run.impl_1.strategy=Performance_Explore\n"),
    ],
    ("vitis", "hw_emu.toml"): [("resend_us = 20", "resend_us = 40")],
    ("vitis", "README.md"): [("hours", "many hours")],
}
"""The same, of edits with which nothing is wrong."""


def _edited(original, scratch, file, before, after):
    shutil.rmtree(scratch / "out", ignore_errors=True)
    return replace(open_folder(plant(original.path, scratch, file, before, after)), original=original)


@pytest.mark.parametrize(("kind", "file"), FAULTS, ids=map(" ".join, FAULTS))
def test_finds(request, tmp_path, kind, file):
    original = open_folder(request.getfixturevalue(f"{kind}_folder"))
    for before, after in FAULTS[kind, file]:
        problems = list(check_edits(_edited(original, tmp_path, file, before, after)))
        assert {problem.file for problem in problems} == {file}, (before, problems)


def test_names_the_line_what_it_says_and_what_was_there(vivado_folder, tmp_path):
    """Of a call in a procedure that was not edited, that is the line that calls the procedure."""
    script = (vivado_folder / "project.tcl").read_text().splitlines()
    line = next(number for number, text in enumerate(script, 1) if text.startswith("p4sgd::add_host"))
    folder = _edited(open_folder(vivado_folder), tmp_path, "project.tcl", "PCIE4C_X1Y0", "PCIE4C_X1Y1")
    [problem] = map(str, check_edits(folder))
    assert problem.startswith(f"project.tcl:{line}: set_property -dict ")
    assert problem.endswith("PCIE4C_X1Y1; generated is PCIE4C_X1Y0")


@pytest.mark.parametrize(("kind", "file"), CHOICES, ids=map(" ".join, CHOICES))
def test_leaves_choices(request, tmp_path, kind, file):
    original = open_folder(request.getfixturevalue(f"{kind}_folder"))
    for before, after in CHOICES[kind, file]:
        folder = _edited(original, tmp_path, file, before, after)
        report = check(folder, {name: CHECKS[name] for name in CHECKS if name not in ("manifest", "verilog")})
        assert not report.problems, (before, list(map(str, report.problems)))
        assert "edits" in report.done


def test_folders_of_other_releases_cannot_be_compared(demo_folder, tmp_path):
    """Their generator makes other files from the same command."""
    folder = _edited(open_folder(demo_folder), tmp_path, "heartbeat.xdc", "LOC B33", "LOC B34")
    files = folder.manifest["files"] | {"heartbeat.tcl": "another"}
    for original in (None, replace(folder.original, manifest={"files": files})):
        report = check(replace(folder, original=original), {"edits": CHECKS["edits"]})
        assert report.skipped == {"edits": "needs the release of p4sgd that made the folder, to make it anew"}


def test_many_differences_are_counted(generated_folder, tmp_path):
    folder = _edited(open_folder(generated_folder), tmp_path, "p4sgd_worker.v", "assign", "assing")
    *named, last = map(str, check_edits(folder))
    assert len(named) == 8
    more = (generated_folder / "p4sgd_worker.v").read_text().count("assign ") - len(named)
    assert last == f"p4sgd_worker.v: differs in {more} more places"
