"""The folder for Vivado alone: what its checks find, and what is refused."""

import re

import pytest
from click.testing import CliRunner
from support.command_line import p4sgd
from support.vendor_checks import CHECKS, plant, problems
from support.vendor_checks.folder import open_vendor_folder
from support.verilog_ports import instances_of, module_at

from p4sgd.build.fpga.check import NoTclError, check
from p4sgd.build.fpga.vivado import board_constraints, clock_constraints, vivado_files
from p4sgd.host.cli.app import main
from p4sgd.hw.spec.config import WorkerConfig


def test_nothing_is_wrong_with_it(vivado_folder, vitis_folder):
    """Its Verilog is that of the folder for Vitis, in whose test Verilator reads it."""
    checks = {name: CHECKS[name] for name in CHECKS if name != "verilog"}
    report = check(open_vendor_folder(vivado_folder), checks)
    for name in ("p4sgd_worker.v", "p4sgd_cmac.v"):
        ours, theirs = ((folder / name).read_text().partition("\n") for folder in (vivado_folder, vitis_folder))
        assert ours[2] == theirs[2], name
    assert not report.problems, "\n".join(map(str, report.problems))
    if report.skipped:
        pytest.skip(str(report.skipped))


def test_the_floor_plan_has_the_slices_of_the_kernel(vivado_folder):
    """Tiny's labels are read over a boundary between dies."""
    plan, text = (vivado_folder / "floorplan.tcl").read_text(), (vivado_folder / "p4sgd_worker.v").read_text()
    placed = re.findall(r"\[get_pblocks p4sgd_slr(\d)\] \[get_cells \$\{p4sgd_top\}(\S+)\]", plan)
    for _, cell in placed:
        module_at(text, "p4sgd_worker_kernel", cell)
    slices = [(die, cell) for die, cell in placed if "slice" in cell]
    assert slices == [("0", "component/gmem1_slice1"), ("1", "component/gmem1_slice0")]
    inner = instances_of(text, module_at(text, "p4sgd_worker_kernel", "component/worker"))
    assert len(placed) == len(inner) + len(slices)
    assert "these are in the kernel" in plan


@pytest.mark.slow
def test_the_same_bytes_by_the_command_line(vivado_folder, tmp_path):
    """In another process, whose sets have another order."""
    out = tmp_path / "out"
    done = p4sgd("build", "vivado", "--config", "tiny", "--board", "u280", "--out", out, PYTHONHASHSEED="7")
    assert done.returncode == 0, done.stderr
    assert "make bitstream" in done.stdout
    assert {path.name: path.read_bytes() for path in out.iterdir()} == {
        path.name: path.read_bytes() for path in vivado_folder.iterdir()
    }


def test_a_worker_that_takes_all_memory_is_refused_in_a_line(tmp_path):
    done = p4sgd("build", "vivado", "--config", "u280_wide", "--out", tmp_path / "out")
    assert done.returncode == 2
    assert done.stderr.strip().count("\n") == 0
    assert "the worker takes all 32 channels of memory, and the host needs one" in done.stderr


@pytest.mark.parametrize("words", [[], ["--board", "u50"]])
def test_a_board_whose_pins_are_not_known_is_refused(words, tmp_path):
    """It has a shell, so Vitis can build for it; Vivado would get the pins of another board."""
    done = CliRunner().invoke(main, ["build", "vivado", "--config", "u50", *words, "--out", str(tmp_path / "out")])
    assert done.exit_code == 2
    assert "u50" in done.stderr
    assert "u280" in done.stderr
    with pytest.raises(KeyError, match="u50"):
        vivado_files(WorkerConfig.u50(), "u50", "p4sgd", megahertz=250, build_id=0)


FAULTS = {
    "a bus that is left out": (
        "project.tcl",
        ("p4sgd::bus_between p4sgd_cmac_1/axis_rx p4sgd_worker_1/axis_rx\n", ""),
        r"p4sgd_cmac_1/axis_rx is connected 0 times\n.*p4sgd_worker_1/axis_rx is connected 0 times",
    ),
    "a memory port that is left out": (
        "project.tcl",
        ("p4sgd::connect_memory p4sgd_worker_1/m_axi_gmem1 31 {31}\n", ""),
        "p4sgd_worker_1/m_axi_gmem1 is connected 0 times",
    ),
    "a channel of two memories": ("project.tcl", ("gmem1 31 {31}", "gmem1 31 {30}"), "HBM_MEM30 is both"),
    "a port of memory that is taken twice": (
        "project.tcl",
        ("gmem1 31 {31}", "gmem1 1 {31}"),
        "hbm/SAXI_01 is connected 2",
    ),
    "the same address": ("project.tcl", ("0x1000", "0x0"), "is at 0x0, where xdma/M_AXI_LITE has"),
    "addresses that overlap": ("project.tcl", ("0x1000", "0x800"), "is at 0x800, where xdma/M_AXI_LITE has"),
    "a bus of another name": (
        "project.tcl",
        ("_1/axis_rx p4sgd", "_1/axis_in p4sgd"),
        "cmac_1 has no bus axis_in",
    ),
    "no kernel": ("project.tcl", (":p4sgd_cmac:", ":p4sgd_mac:"), "there is no p4sgd_cmac"),
    "a card that switches itself off": (
        "block_design.tcl",
        ("    connect_bd_net [get_bd_ports hbm_cattrip] [get_bd_pins too_hot/Res]\n", ""),
        "hbm_cattrip is driven 0 times",
    ),
    "a port without a pin": (
        "board.xdc",
        ("set_property PACKAGE_PIN D32 [get_ports hbm_cattrip]\n", ""),
        "port hbm_cattrip has no pin",
    ),
    "a port that is not there": (
        "board.xdc",
        ("pcie_perst_n", "pcie_reset_n"),
        r"board.xdc:\d+: the design has no port pcie_reset_n",
    ),
    "a kernel without a clock": (
        "block_design.tcl",
        ("    wire xdma/axi_aclk $name/ap_clk\n", ""),
        "p4sgd_cmac_1/ap_clk is driven 0 times, not once\n.*p4sgd_worker_1/ap_clk is driven 0 times, not once",
    ),
    "a kernel without a reset": (
        "block_design.tcl",
        ("    wire xdma/axi_aresetn $name/ap_rst_n\n", ""),
        "p4sgd_worker_1/ap_rst_n is driven 0 times, not once",
    ),
    "a MAC without its free clock": (
        "block_design.tcl",
        ("    wire global_clock/BUFG_O $mac/clk_gt_freerun\n", ""),
        "p4sgd_cmac_1/clk_gt_freerun is driven 0 times, not once",
    ),
    "a buffer that nothing drives": (
        "block_design.tcl",
        ("    wire board_clock/IBUF_OUT global_clock/BUFG_I\n", ""),
        "global_clock/BUFG_I is driven 0 times, not once",
    ),
    "a channel of memory without a clock": (
        "block_design.tcl",
        (" hbm/AXI_[format %02d $channel]_ACLK", ""),
        r"hbm/AXI_\d\d_ACLK is driven 0 times, not once",
    ),
    "a stack of memory whose clock is that of a port that is not there": (
        "block_design.tcl",
        ("        lappend parameters USER_CLK_SEL_LIST$stack $clock($stack)\n", ""),
        r"block_design.tcl:\d+: the clock of stack 1 is AXI_16_ACLK, but it has no port 16",
    ),
    "a stack of memory whose clock is that of the other stack": (
        "block_design.tcl",
        ("LIST$stack $clock($stack)", "LIST$stack $clock(0)"),
        r"block_design.tcl:\d+: the clock of stack 1 is AXI_00_ACLK, but it has no port 0",
    ),
    "two clocks of a kernel": (
        "block_design.tcl",
        ("wire xdma/axi_aresetn $name/ap_rst_n", "wire global_clock/BUFG_O $name/ap_clk"),
        "p4sgd_worker_1/ap_clk is driven 2 times, not once",
    ),
    "a driver of another name": (
        "block_design.tcl",
        ("wire xdma/axi_aclk $name/ap_clk", "wire xdma/axi_clk $name/ap_clk"),
        r"block_design.tcl:\d+: there is no xdma/axi_clk to be connected",
    ),
    "a pin of another name": (
        "block_design.tcl",
        ("wire xdma/axi_aclk $name/ap_clk", "wire xdma/axi_aclk $name/ap_clock"),
        r"block_design.tcl:\d+: there is no p4sgd_worker_1/ap_clock to be connected",
    ),
    "a net between inputs": (
        "block_design.tcl",
        ("wire xdma/axi_aclk $name/ap_clk", "wire xdma/sys_clk $name/ap_clk"),
        "a net is driven by nothing",
    ),
    "a bus of the vendor's with another name": (
        "block_design.tcl",
        ("bus_between xdma/M_AXI_LITE", "bus_between xdma/M_AXI_LIGHT"),
        "xdma has no bus M_AXI_LIGHT",
    ),
    "IP of another name": ("block_design.tcl", ("ip:proc_sys_reset", "ip:sys_reset"), "memory_reset is of no known IP"),
    "a pin that is none": ("board.xdc", ("PACKAGE_PIN D32", "PACKAGE_PIN 32"), "32 is no pin"),
}


def _found(check, original, scratch, file, before, after):
    """What a check finds in a copy of the folder with a fault."""
    try:
        return problems(check, plant(original, scratch, file, before, after))
    except NoTclError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("fault", FAULTS)
def test_the_block_design_is_looked_at(vivado_folder, tmp_path, fault):
    file, (before, after), message = FAULTS[fault]
    found = _found("block design", vivado_folder, tmp_path, file, before, after)
    assert re.search(message, found, re.DOTALL), found


OTHER_FAULTS = {
    "an unknown option": (
        "out_of_context.tcl",
        ("-mode out_of_context", "-mood out_of_context"),
        r"(out_of_context|engine).tcl.* has no option -mood",
    ),
    "a clock's port that is not there": (
        "engine_clock.xdc",
        ("get_ports clk", "get_ports ap_clk"),
        r"engine_clock.xdc:\d+: the Verilog has no ap_clk",
    ),
    "a top that is not there": (
        "engine.tcl",
        ("p4sgd_worker_engine", "p4sgd_engine"),
        "top module is p4sgd_engine",
    ),
    "constraints that nothing reads": (
        "engine.tcl",
        (" engine_clock.xdc", " worker_clock.xdc"),
        "engine_clock.xdc: is read by no script",
    ),
    "an engine that is not there": (
        "floorplan.tcl",
        ("engine0", "engine99"),
        r"floorplan.tcl:\d+: the Verilog has no component/worker/engine99",
    ),
    "an unknown parameter": (
        "block_design.tcl",
        ("pcie_blk_locn", "pcie_block_locn"),
        r"block_design.tcl:\d+: xdma has no parameter pcie_block_locn",
    ),
    "lanes the wrong way": (
        "package_p4sgd_cmac.tcl",
        ("GRX_P gt_rxp GRX_N gt_rxn GTX_P gt_txp", "GRX_P gt_txp GRX_N gt_rxn GTX_P gt_rxp"),
        "GRX_P of master gt_serial is gt_txp, an output",
    ),
}


@pytest.mark.parametrize("fault", OTHER_FAULTS)
def test_other_scripts_are_looked_at(vivado_folder, tmp_path, fault):
    file, (before, after), message = OTHER_FAULTS[fault]
    assert re.search(message, _found("scripts", vivado_folder, tmp_path, file, before, after), re.DOTALL)


def test_the_makefile_is_looked_at(vivado_folder, tmp_path):
    found = _found("makefile", vivado_folder, tmp_path, "Makefile", "p4sgd_worker p4sgd_cmac", "p4sgd_worker")
    assert found == "Makefile: KERNELS is p4sgd_worker, and should be p4sgd_cmac p4sgd_worker"


def test_pins_of_an_alveo_u280():
    """AMD's master XDC: HBM_CATTRIP D32, PCIe's reset BH26, its clock of 16 lanes AR15, QSFP0's T42, 100 MHz BJ43."""
    found = board_constraints("u280", "p4sgd")
    pins = dict(re.findall(r"PACKAGE_PIN (\w+) \[get_ports (\w+)\]", found))
    assert {pin: port for pin, port in pins.items() if not port.endswith("_n") or port == "pcie_perst_n"} == {
        "D32": "hbm_cattrip",
        "BH26": "pcie_perst_n",
        "AR15": "pcie_refclk_clk_p",
        "T42": "qsfp0_refclk_clk_p",
        "BJ43": "hbm_refclk_clk_p",
    }


def test_the_clock_is_the_one_asked_for():
    assert "create_clock -period 3.333 -name clock [get_ports clk]" in clock_constraints("clk", 300, "p4sgd")


def test_a_worker_without_a_channel_for_the_host_is_refused(monkeypatch):
    """Before the work: the kernels of 16 engines take minutes."""
    for name in ("worker", "cmac"):
        monkeypatch.setattr(f"p4sgd.build.fpga.vivado.{name}", lambda *_: pytest.fail("makes kernels"))
    with pytest.raises(ValueError, match="the host needs one"):
        vivado_files(WorkerConfig.u280_wide(), "u280", "p4sgd", megahertz=250, build_id=0)
