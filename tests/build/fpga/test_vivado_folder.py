"""The folder for Vivado alone: what its checks find, and what is refused."""

import re

import pytest
from support.command_line import run
from support.verilog_ports import instances_of, module_at

from p4sgd.build.fpga.alveo_u280 import AlveoU280Platform
from p4sgd.build.fpga.vivado import board_constraints
from p4sgd.build.generate.boards import BOARDS
from p4sgd.host.boards.xdma import MemoryRange, read_map


def test_the_floor_plan_has_the_slices_of_the_kernel(vivado_folder):
    """Tiny's labels are read over a boundary between dies."""
    plan, text = (vivado_folder / "floorplan.tcl").read_text(), (vivado_folder / "p4sgd_worker_kernel.v").read_text()
    placed = re.findall(r"\[get_pblocks p4sgd_slr(\d)\] \[get_cells \$\{p4sgd_top\}(\S+)\]", plan)
    for _, cell in placed:
        module_at(text, "p4sgd_worker_kernel", cell)
    slices = [(die, cell) for die, cell in placed if "slice" in cell]
    assert slices == [("0", "gmem1_slice1"), ("1", "gmem1_slice0")]
    inner = instances_of(text, module_at(text, "p4sgd_worker_kernel", "worker"))
    assert len(placed) == len(inner) + len(slices)
    assert "these are in the kernel" in plan


def test_the_address_map_is_that_of_the_design(vivado_folder):
    project, found = (vivado_folder / "project.tcl").read_text(), read_map(vivado_folder / "address_map.json").kernels
    offsets = re.findall(r"^p4sgd::add_kernel (\w+)_1 \S+ (0x\w+)$", project, re.MULTILINE)
    assert {name: kernel.registers for name, kernel in found.items()} == {name: int(at, 0) for name, at in offsets}
    connect = r"p4sgd_worker_1/m_axi_gmem(\d+) {([\d ]+)}"
    reached = sorted((int(port), each.split()) for port, each in re.findall(connect, project))
    assert [port for port, _ in reached] == list(range(len(reached)))
    memories = tuple(MemoryRange(int(each[0]) << 28, len(each) << 28) for _, each in reached)
    assert (found["p4sgd_worker"].memories, found["p4sgd_cmac"].memories) == (memories, ())


@pytest.mark.usefixtures("kernels_made_once")
def test_clock_cable_and_build_id_are_those_asked_for(tmp_path):
    words = "build vivado --config tiny --board u280 --build-id 7 --megahertz 300 --cable copper --out"
    run(*words.split(), tmp_path)
    assert "#define P4SGD_BUILD_ID_RESET 0x00000007u" in (tmp_path / "p4sgd_registers.h").read_text()
    for name, port in (("engine", "clk"), ("worker", "ap_clk")):
        clock = f"create_clock -period 3.333 -name clock [get_ports {port}]"
        assert clock in (tmp_path / f"{name}_clock.xdc").read_text()
    mac = (tmp_path / "p4sgd_cmac_ip.tcl").read_text()
    assert all(f"    CONFIG.{setting} \\\n" in mac for setting in ("RX_EQ_MODE {DFE}", "INS_LOSS_NYQ {25}"))


@pytest.mark.parametrize("words", [[], ["--board", "u50"]])
def test_a_board_whose_pins_are_not_known_is_refused(words, tmp_path):
    """It has a shell, so Vitis can build for it; Vivado would get the pins of another board."""
    done = run("build", "vivado", "--config", "u50", *words, "--out", tmp_path / "out", status=2)
    assert "u50" in done.stderr
    assert "u280" in done.stderr


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


def test_each_clock_is_defined_once():
    """That of the cage by the MAC's IP, whose frequency the oscillator must have."""
    assert re.findall(r"create_clock -period (\S+) -name (\w+)", board_constraints("u280", "p4sgd")) == [
        ("10.000", "pcie_refclk"),
        ("10.000", "hbm_refclk"),
    ]
    for number, cage in enumerate(BOARDS["u280"].cages):
        oscillator = AlveoU280Platform().lookup("qsfp28_refclk", number).clock
        assert oscillator.frequency == float(cage.reference_megahertz) * 1e6
