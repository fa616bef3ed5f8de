"""The folder for Vivado alone: what its checks find, and what is refused."""

import re
import shutil

import pytest
from support.command_line import p4sgd
from support.verilog_ports import instances_of, module_at

from p4sgd.build.check.checks import CHECKS, check
from p4sgd.build.check.folder import open_folder
from p4sgd.build.check.scripts import NoTclError
from p4sgd.build.vivado.constraints import board_constraints, clock_constraints
from p4sgd.build.vivado.folder import build, vivado_files
from p4sgd.hw.spec.config import WorkerConfig


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    out = tmp_path_factory.mktemp("vivado") / "out"
    build("tiny", out, board="u280")
    return out


def test_nothing_is_wrong_with_it(original):
    report = check(original)
    assert not report.problems, "\n".join(map(str, report.problems))
    if report.skipped:
        pytest.skip(str(report.skipped))


def test_the_floor_plan_has_the_slices_of_the_kernel(original):
    """Tiny's labels are read over a boundary between dies."""
    plan, text = (original / "floorplan.tcl").read_text(), (original / "p4sgd_worker.v").read_text()
    placed = re.findall(r"\[get_pblocks p4sgd_slr(\d)\] \[get_cells \$\{p4sgd_worker\}(\S+)\]", plan)
    for _, cell in placed:
        module_at(text, "p4sgd_worker_kernel", cell)
    slices = [(die, cell) for die, cell in placed if "slice" in cell]
    assert slices == [("0", "component/gmem1_slice1"), ("1", "component/gmem1_slice0")]
    inner = instances_of(text, module_at(text, "p4sgd_worker_kernel", "component/worker"))
    assert len(placed) == len(inner) + len(slices)
    assert "these are in the kernel" in plan


@pytest.mark.slow
def test_the_same_bytes_by_the_command_line(original, tmp_path):
    """In another process, whose sets have another order."""
    out = tmp_path / "out"
    done = p4sgd("build", "vivado", "--config", "tiny", "--board", "u280", "--out", out, PYTHONHASHSEED="7")
    assert done.returncode == 0, done.stderr
    assert "make image" in done.stdout
    assert {path.name: path.read_bytes() for path in out.iterdir()} == {
        path.name: path.read_bytes() for path in original.iterdir()
    }


def test_a_worker_that_takes_all_memory_is_refused_in_a_line(tmp_path):
    done = p4sgd("build", "vivado", "--config", "u280_wide", "--out", tmp_path / "out")
    assert done.returncode == 2
    assert done.stderr.strip().count("\n") == 0
    assert "the worker takes all 32 channels of memory, and the host needs one" in done.stderr


FAULTS = {
    "a bus that is left out": (
        "project.tcl",
        ("p4sgd::bus_between p4sgd_cmac_1/axis_rx p4sgd_worker_1/axis_rx\n", ""),
        r"p4sgd_worker_1/axis_rx is connected 0 times\n.*p4sgd_cmac_1/axis_rx is connected 0 times",
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
    "a bus of another name": ("project.tcl", ("_1/axis_rx p4sgd", "_1/axis_in p4sgd"), "p4sgd_cmac has no bus axis_in"),
    "no kernel": ("project.tcl", (":p4sgd_cmac:", ":p4sgd_mac:"), "there is no p4sgd_cmac"),
    "a card that switches itself off": (
        "block_design.tcl",
        ("    connect_bd_net [get_bd_ports hbm_cattrip] [get_bd_pins too_hot/Res]\n", ""),
        "hbm_cattrip is not driven",
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
    "a pin that is none": ("board.xdc", ("PACKAGE_PIN D32", "PACKAGE_PIN 32"), "32 is no pin"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_block_design_is_looked_at(original, tmp_path, fault):
    file, (before, after), message = FAULTS[fault]
    out = tmp_path / "out"
    shutil.copytree(original, out)
    text = (out / file).read_text()
    assert before in text
    (out / file).write_text(text.replace(before, after))
    try:
        found = "\n".join(map(str, CHECKS["block design"](open_folder(out))))
    except NoTclError as error:
        pytest.skip(str(error))
    assert re.search(message, found, re.DOTALL), found


def test_other_scripts_are_looked_at(original, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(original, out)
    script = out / "out_of_context.tcl"
    script.write_text(script.read_text().replace("-mode out_of_context", "-mood out_of_context"))
    try:
        found = "\n".join(map(str, CHECKS["scripts"](open_folder(out))))
    except NoTclError as error:
        pytest.skip(str(error))
    assert "out_of_context.tcl" in found or "engine.tcl" in found
    assert "has no option -mood" in found


def test_pins_of_an_alveo_u280():
    """AMD's master XDC: HBM_CATTRIP D32, PCIe's reset BH26, its clock of 16 lanes AR15, QSFP0's T42, 100 MHz BJ43."""
    found = board_constraints("p4sgd")
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
        monkeypatch.setattr(f"p4sgd.build.vivado.folder.{name}", lambda *_: pytest.fail("makes kernels"))
    with pytest.raises(ValueError, match="the host needs one"):
        vivado_files(WorkerConfig.u280_wide(), "u280", "p4sgd", megahertz=250, build_id=0)
