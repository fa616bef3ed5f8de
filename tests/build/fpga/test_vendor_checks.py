"""Every check of a folder for AMD's tools finds the faults that it is there for."""

import re

import pytest
from support.vendor_checks import CHECKS, plant, problems
from support.vendor_checks.folder import open_vendor_folder, run_script

from p4sgd.build.fpga.check import NoTclError, check

FAULTS = {
    "an unknown command": (
        "scripts",
        "package_p4sgd_worker.tcl",
        ("p4sgd::make_core", "p4sgd::bake_core"),
        r"package_p4sgd_worker.tcl:\d+: there is no command p4sgd::bake_core",
    ),
    "an unknown command in a procedure": (
        "scripts",
        "package_kernel.tcl",
        ("update_compile_order", "update_compile_ordre"),
        r"there is no command update_compile_ordre",
    ),
    "an unknown option": (
        "scripts",
        "package_kernel.tcl",
        ("-import_files", "-import_all"),
        r"ipx::package_project has no option -import_all",
    ),
    "an option without a value": (
        "scripts",
        "p4sgd_cmac_ip.tcl",
        ("-module_name p4sgd_cmac_usplus", "-module_name"),
        "has no value",
    ),
    "a command with too few words": (
        "scripts",
        "package_kernel.tcl",
        ("ipx::add_port_map $signal", "ipx::add_port_map"),
        "2 to 2 arguments, not 1",
    ),
    "a script that is not there": (
        "scripts",
        "package_p4sgd_worker.tcl",
        ("package_kernel.tcl]", "package_core.tcl]"),
        r"package_p4sgd_worker.tcl:2: the folder has no file .*package_core.tcl",
    ),
    "a file that is not there": (
        "scripts",
        "package_kernel.tcl",
        ("$name.v]", "$name.sv]"),
        r"add_files names p4sgd_\w+.sv",
    ),
    "braces that do not match": (
        "scripts",
        "place.tcl",
        ("} {\n    set region", "} {{\n    set region"),
        r"place.tcl:.*missing close-brace",
    ),
    "a bus that is not there": (
        "scripts",
        "package_p4sgd_worker.tcl",
        ("p4sgd::bus axis_tx", "p4sgd::bus axis_out"),
        r"the Verilog of p4sgd_worker has no bus axis_out",
    ),
    "memory ports that may send narrow bursts": (
        "scripts",
        "package_kernel.tcl",
        ("SUPPORTS_NARROW_BURST 0", "SUPPORTS_NARROW_BURST 1"),
        "SUPPORTS_NARROW_BURST is 1, and should be 0",
    ),
    "a bus without a clock": (
        "scripts",
        "package_p4sgd_worker.tcl",
        ("p4sgd::bus axis_rx\n", ""),
        "bus axis_rx is given no clock",
    ),
    "a wrong offset in the script": (
        "scripts",
        "package_p4sgd_worker.tcl",
        ("gmem0 0x200", "gmem0 0x204"),
        r"register gmem0 is at 0x204; p4sgd_worker.xml has it at 0x200",
    ),
    "a register that is not there": (
        "scripts",
        "p4sgd_cmac.xdc",
        ("consume_r_gry_reg", "consume_r_grey_reg"),
        r"p4sgd_cmac.xdc:\d+: the Verilog has no component/adapter/tx_crossing/consume_r_grey_reg",
    ),
    "flip-flops called as their register": (
        "scripts",
        "p4sgd_cmac.xdc",
        ("consume_r_gry_reg[*]", "consume_r_gry[*]"),
        r"p4sgd_cmac.xdc:\d+: the Verilog has no component/adapter/tx_crossing/consume_r_gry\[\*\]",
    ),
    "flip-flops called as one": (
        "scripts",
        "p4sgd_cmac.xdc",
        ("consume_r_gry_reg[*]", "consume_r_gry_reg"),
        r"p4sgd_cmac.xdc:\d+: the Verilog has no component/adapter/tx_crossing/consume_r_gry_reg",
    ),
    "settings that are not there": (
        "scripts",
        "p4sgd_worker.xdc",
        ("engine*/stable_reg", "engine*/table_reg"),
        r"p4sgd_worker.xdc:\d+: the Verilog has no component/worker/engine\*/table_reg\[\*\]",
    ),
    "a pin that is not there": (
        "scripts",
        "p4sgd_cmac.xdc",
        ("gt_txusrclk2", "gt_txclk"),
        "the Verilog has no component/mac/gt_txclk",
    ),
    "a port that is not there": (
        "scripts",
        "p4sgd_cmac.xdc",
        ("get_ports ap_clk", "get_ports ap_clock"),
        r"p4sgd_cmac.xdc:\d+: the Verilog has no ap_clock",
    ),
    "constraints that nothing reads": (
        "scripts",
        "package_p4sgd_cmac.tcl",
        ("p4sgd::constraints p4sgd_cmac.xdc\n", ""),
        "p4sgd_cmac.xdc: is read by no script",
    ),
    "a top that is not there": (
        "scripts",
        "package_p4sgd_worker.tcl",
        ("p4sgd_worker_kernel", "p4sgd_kernel"),
        "package_p4sgd_worker.tcl: the top module is p4sgd_kernel, which its Verilog has not",
    ),
    "an engine that is not there": (
        "scripts",
        "place.tcl",
        ("worker/engine0 ", "worker/engine99 "),
        r"place.tcl:\d+: the Verilog has no /component/worker/engine99",
    ),
    "a wrong way to the engines": (
        "scripts",
        "place.tcl",
        ("component/worker/engine0", "worker/engine0"),
        "the Verilog has no /worker/engine0",
    ),
    "a worker of another name": (
        "scripts",
        "place.tcl",
        ("p4sgd_worker_1/inst", "worker_1/inst"),
        r"place.tcl:\d+: no instance of p4sgd_worker is called worker_1",
    ),
    "a filter that finds nothing": (
        "scripts",
        "place.tcl",
        ("p4sgd_worker_1/inst", "p4sgd_worker_1/inst_0"),
        r"place.tcl:\d+: no instance of a kernel is found by NAME =~ \*/p4sgd_worker_1/inst_0",
    ),
    "a MAC of another name": (
        "scripts",
        "p4sgd_cmac_ip.tcl",
        ("p4sgd_cmac_usplus", "p4sgd_mac"),
        r"nothing makes p4sgd_cmac_usplus.*p4sgd_cmac_ip.tcl:\d+: the Verilog has no instance of p4sgd_mac",
    ),
    "an unknown parameter": (
        "scripts",
        "p4sgd_cmac_ip.tcl",
        ("CMAC_CORE_SELECT", "CMAC_CORE_SELEKT"),
        r"p4sgd_cmac_ip.tcl:\d+: cmac_usplus has no parameter CMAC_CORE_SELEKT",
    ),
    "a core that is no kernel": (
        "scripts",
        "package_kernel.tcl",
        ("    set_property sdx_kernel true [ipx::current_core]\n", ""),
        "sdx_kernel of ipx::current_core is not set, and should be true",
    ),
    "a kernel of another type": (
        "scripts",
        "package_kernel.tcl",
        ("sdx_kernel_type rtl", "sdx_kernel_type hls"),
        "sdx_kernel_type of ipx::current_core is hls, and should be rtl",
    ),
    "a kernel without a clock": (
        "scripts",
        "package_p4sgd_worker.tcl",
        ("p4sgd::clock 250000000\n", ""),
        "ap_clk is declared as nothing.*ap_rst_n is declared as nothing.*ap_rst_n does not go with.*FREQ_HZ .* not set",
    ),
    "a clock of another rate": (
        "scripts",
        "package_p4sgd_worker.tcl",
        ("clock 250000000", "clock 250"),
        "value of ipx::add_bus_parameter FREQ_HZ is 250, and should be 250000000",
    ),
    "a bus with another clock": (
        "scripts",
        "package_kernel.tcl",
        ("-busif $name -clock ap_clk", "-busif $name -clock ap_clock"),
        "the clock of bus axis_tx is ap_clock, and should be ap_clk",
    ),
    "lanes the wrong way": (
        "scripts",
        "package_p4sgd_cmac.tcl",
        ("GRX_P gt_rxp GRX_N gt_rxn GTX_P gt_txp", "GRX_P gt_txp GRX_N gt_rxn GTX_P gt_rxp"),
        "GRX_P of master gt_serial is gt_txp, an output.*GTX_P of master gt_serial is gt_rxp, an input",
    ),
    "lanes with the other sign": (
        "scripts",
        "package_p4sgd_cmac.tcl",
        ("GRX_P gt_rxp GRX_N gt_rxn", "GRX_P gt_rxn GRX_N gt_rxp"),
        "GRX_P of master gt_serial is gt_rxn, an input of the Verilog: it should be an input whose name ends so",
    ),
    "transceivers as a slave": (
        "scripts",
        "package_p4sgd_cmac.tcl",
        ("gt_serial master", "gt_serial slave"),
        "GRX_P of slave gt_serial is gt_rxp, an input .* should be an output",
    ),
    "an interface of an unknown kind": (
        "scripts",
        "package_p4sgd_cmac.tcl",
        ("slave diff_clock", "slave clock_pair"),
        "gt_refclk is of no known kind: xilinx.com:interface:clock_pair:1.0",
    ),
    "a kernel that is not made": (
        "makefile",
        "Makefile",
        ("p4sgd_worker p4sgd_cmac", "p4sgd_worker"),
        "Makefile: KERNELS_hw is p4sgd_worker, and should be p4sgd_cmac p4sgd_worker",
    ),
    "a script for placement that is not run": (
        "makefile",
        "Makefile",
        ("PLACE_hw := place.tcl\n", ""),
        "PLACE_hw is empty, and should be place.tcl",
    ),
    "a renamed port": (
        "kernels",
        "p4sgd_worker.v",
        ("m_axi_gmem0_arlen", "m_axi_gmem0_arlength"),
        r"the Verilog has no m_axi_gmem0_arlen\n.*port m_axi_gmem0_arlength is of no bus",
    ),
    "a bus of another name": (
        "kernels",
        "p4sgd_worker.xml",
        ('"axis_rx"', '"axis_in"'),
        r"the Verilog has no ports axis_in_\*",
    ),
    "another width": (
        "kernels",
        "p4sgd_worker.v",
        ("output [511:0] axis_tx_tdata", "output [255:0] axis_tx_tdata"),
        r"axis_tx_tdata has 256 bits in the Verilog, not 512",
    ),
    "a width in the XML": (
        "kernels",
        "p4sgd_worker.xml",
        ('dataWidth="256"', 'dataWidth="512"'),
        "m_axi_gmem1_rdata has 256 bits",
    ),
    "another direction": (
        "kernels",
        "p4sgd_worker.v",
        ("input axis_rx_tvalid", "output axis_rx_tvalid"),
        r"axis_rx_tvalid is an output .* read_only",
    ),
    "a wrong offset": (
        "kernels",
        "p4sgd_worker.xml",
        ('offset="0x200"', 'offset="0x208"'),
        r"argument gmem0: its offset is 0x208; LINES0_0_ADDRESS_LOW is at 0x200",
    ),
    "memories in another order": (
        "kernels",
        "p4sgd_worker.xml",
        ('id="1"', 'id="2"'),
        "its number is 2, and should be 1",
    ),
    "an argument of a stream as a pointer": (
        "kernels",
        "p4sgd_worker.xml",
        ('id="2" port="axis_tx"', 'id="2" port="m_axi_gmem0"'),
        "is not of its kind",
    ),
    "a protocol without registers": (
        "kernels",
        "p4sgd_worker.xml",
        ("ap_ctrl_hs", "ap_ctrl_none"),
        "hwControlProtocol is ap_ctrl_none; by the registers it is ap_ctrl_hs",
    ),
    "an interrupt without registers": (
        "kernels",
        "p4sgd_cmac.xml",
        ('interrupt="false"', 'interrupt="true"'),
        "p4sgd_cmac.xml: interrupt is true; by the registers it is false",
    ),
    "an IP of another name": (
        "kernels",
        "p4sgd_worker.xml",
        ("kernel:p4sgd_worker:", "kernel:worker:"),
        r"the kernel is called",
    ),
    "an IP of another version": (
        "kernels",
        "package_p4sgd_worker.tcl",
        ("kernel 1.0", "kernel 2.0"),
        "version is 2.0, but 1.0",
    ),
    "transceivers at another port": (
        "kernels",
        "package_p4sgd_cmac.tcl",
        ("GRX_P gt_rxp", "GRX_P gt_rx"),
        "the Verilog has no port gt_rx\n.*port gt_rxp is of no bus",
    ),
    "a memory without channels": (
        "links",
        "link_hw.cfg",
        ("sp=p4sgd_worker_1.m_axi_gmem1:HBM[31]\n", ""),
        "memory p4sgd_worker_1.m_axi_gmem1 has no lines sp=",
    ),
    "a channel of two memories": (
        "links",
        "link_hw.cfg",
        ("HBM[31]", "HBM[30]"),
        r"link_hw.cfg:\d+: HBM\[30\] is .*gmem0's already",
    ),
    "a channel that is not there": (
        "links",
        "link_hw.cfg",
        ("HBM[31]", "HBM[32]"),
        r"the board has no memory HBM\[32\]",
    ),
    "a memory port that is not there": (
        "links",
        "link_hw.cfg",
        ("gmem1:", "gmem7:"),
        "there is no memory port p4sgd_worker_1.m_axi_gmem7",
    ),
    "a kernel that is not there": (
        "links",
        "link_hw.cfg",
        ("nk=p4sgd_cmac:", "nk=p4sgd_mac:"),
        "there is no kernel p4sgd_mac",
    ),
    "a stream the wrong way": (
        "links",
        "link_hw.cfg",
        ("p4sgd_worker_1.axis_tx:", "p4sgd_worker_1.axis_rx:"),
        "no stream leaves a kernel at p4sgd_worker_1.axis_rx",
    ),
    "a stream to nowhere": (
        "links",
        "link_hw_emu.cfg",
        (":p4sgd_aggregator_1.axis_rx1", ":p4sgd_aggregator_1.axis_rx7"),
        "axis_rx1 has no lines stream_connect=",
    ),
    "transceivers that are not connected": (
        "links",
        "link_hw.cfg",
        ("connect=p4sgd_cmac_1/gt_serial:io_gt_qsfp0_00\n", ""),
        "port p4sgd_cmac_1/gt_serial has no lines connect=",
    ),
    "a port of the shell that is not there": (
        "links",
        "link_hw.cfg",
        ("io_gt_qsfp0_00", "io_gt_qsfp_00"),
        "the shell has no io_gt_qsfp_00",
    ),
    "a die that is not there": ("links", "link_hw.cfg", ("SLR2", "SLR3"), "the FPGA has no SLR3"),
    "an option that is not there": (
        "links",
        "link_hw.cfg",
        ("slr=", "die="),
        r"v\+\+ has no option die in section \[connectivity\]",
    ),
    "a clock of another cage": (
        "links",
        "link_hw.cfg",
        ("io_clk_qsfp0_refclka_00", "io_clk_qsfp1_refclka_00"),
        r"link_hw.cfg:\d+: p4sgd_cmac_1/gt_refclk is connected to io_clk_qsfp1_refclka_00, and should be to io_clk",
    ),
    "transceivers at a clock": (
        "links",
        "link_hw.cfg",
        ("gt_serial:io_gt_qsfp0_00", "gt_serial:io_clk_qsfp1_refclka_00"),
        "p4sgd_cmac_1/gt_serial is connected to io_clk_qsfp1_refclka_00, and should be to io_gt_qsfp0_00",
    ),
    "no shell": ("links", "link_hw.cfg", ("platform=", "# platform="), "there are no lines platform=, not one"),
    "a frequency that is none": (
        "links",
        "link_hw.cfg",
        ("kernel_frequency=250", "kernel_frequency=fast"),
        r"link_hw.cfg:\d+: kernel_frequency is fast, and should be 250",
    ),
    "another shell": ("links", "link_hw.cfg", ("u280_gen3x16", "u250_gen3x16"), "platform is xilinx_u250"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_finds(vitis_folder, tmp_path, fault):
    name, file, (before, after), message = FAULTS[fault]
    folder = plant(vitis_folder, tmp_path, file, before, after)
    try:
        found = problems(name, folder)
    except NoTclError as error:
        pytest.skip(str(error))
    assert re.search(message, found, re.DOTALL), found


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("p4sgd_worker.v", "module p4sgd_worker_kernel(", "module another_kernel("),
        ("p4sgd_worker.xml", 'dataWidth="32"', 'dataWidth="wide"'),
        ("link_hw.cfg", "nk=p4sgd_worker:", "nk=p4sgd_worker\n#"),
    ],
)
def test_a_file_that_cannot_be_followed_is_told(vitis_folder, tmp_path, name, before, after):
    folder = plant(vitis_folder, tmp_path, name, before, after)
    told = list(map(str, check(open_vendor_folder(folder), {n: CHECKS[n] for n in CHECKS if n != "verilog"}).problems))
    assert told[0] == f"{name}: was changed since it was generated"
    assert any("cannot be followed" in each for each in told), told


def test_calls_know_their_lines(tmp_path):
    text = "set p [current_project]\nproc go {n} {\n  set_property top $n [current_fileset]\n}\ngo 3\n"
    (tmp_path / "script.tcl").write_text(text)
    try:
        run = run_script(tmp_path, "script.tcl")
    except NoTclError as error:
        pytest.skip(str(error))
    assert [(call.line, call.command) for call in run.calls] == [
        (1, "current_project"),
        (3, "current_fileset"),
        (3, "set_property"),
    ]
    assert not run.problems
