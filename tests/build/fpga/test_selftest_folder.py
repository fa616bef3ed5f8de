"""The folder of a self-test for Vitis: it agrees with itself, and with what a worker of the same size would have."""

import contextlib
import re
from xml.etree import ElementTree

import pytest
from support.command_line import run
from support.placement import placed
from support.vendor_folders import check_right
from support.xrt import TINY, Machine, make_xclbin

from p4sgd.build.fpga.vitis import build
from p4sgd.build.generate.boards import BOARD_OF, BOARDS
from p4sgd.build.generate.floorplan import engines_by_die, shared_die, slice_dies
from p4sgd.hw.spec.config import PRESETS, NamedConfig
from p4sgd.hw.spec.selftest import KERNEL

CONFIGS = ("u280", "u55c", "u50")

COMMANDS = ("p4sgd build selftest --config u280 --out selftest", "p4sgd build check selftest")
"""Those of README.md."""


def test_macs_are_those_of_all_cages(selftest_folder):
    link = (selftest_folder / "link_hw.cfg").read_text().splitlines()
    test, macs = "p4sgd_selftest_1.axis_", ("p4sgd_cmac_1.axis_", "p4sgd_cmac1_1.axis_")
    streams = [line for line in link if line.startswith("stream_connect=")]
    assert streams == [
        *(f"stream_connect={test}tx{port}:{mac}tx:16" for port, mac in enumerate(macs)),
        *(f"stream_connect={mac}rx:{test}rx{port}:16" for port, mac in enumerate(macs)),
    ]
    emulated = (selftest_folder / "link_hw_emu.cfg").read_text()
    assert "stream_connect=p4sgd_selftest_1.axis_tx1:p4sgd_selftest_1.axis_rx1:16" in emulated
    assert "CONFIG.RX_EQ_MODE {DFE}" in (selftest_folder / "p4sgd_cmac1_ip.tcl").read_text()


def test_the_emulated_board_is_tested_by_the_command_of_the_folder(selftest_folder, tmp_path, monkeypatch):
    (words,) = re.findall(
        r"^XCL_EMULATION_MODE=hw_emu \S+ p4sgd (.*)$", (selftest_folder / "README.md").read_text(), re.MULTILINE
    )
    (tmp_path / "out" / "hw_emu").mkdir(parents=True)
    make_xclbin(tmp_path / "out" / "hw_emu" / "p4sgd_selftest.xclbin", TINY, kernel=KERNEL, macs=0)
    with contextlib.closing(Machine(tmp_path, 1, emulation=True)) as machine:
        machine.install(monkeypatch)
        monkeypatch.chdir(tmp_path)
        assert "memory 0" in run(*words.split()).output


def memories(path):
    """Memory of each port of a link configuration."""
    lines = [line for line in path.read_text().splitlines() if line.startswith("sp=")]
    return dict(line.partition(".")[2].split(":", 1) for line in lines)


def widths(path):
    """Width of each memory port in a kernel's description."""
    ports = ElementTree.parse(path).find("kernel").iter("port")
    return {port.get("name"): port.get("dataWidth") for port in ports if port.get("name").startswith("m_axi")}


def test_ports_are_those_of_the_worker(selftest_folder, vitis_folder):
    for target in ("hw", "hw_emu"):
        assert memories(selftest_folder / f"link_{target}.cfg") == memories(vitis_folder / f"link_{target}.cfg")
    assert widths(selftest_folder / "p4sgd_selftest.xml") == widths(vitis_folder / "p4sgd_worker.xml")
    limits = [
        [line for line in (path / f"package_{name}.tcl").read_text().splitlines() if line.startswith("p4sgd::memory")]
        for path, name in ((selftest_folder, "p4sgd_selftest"), (vitis_folder, "p4sgd_worker"))
    ]
    assert limits[0] == limits[1] != []


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_folders_of_the_boards(name, tmp_path, own_folder):
    """Every port is tested on the die of the engine that has it at the worker. One is made as README.md does."""
    out, board = tmp_path / "selftest", BOARD_OF[name]
    if name == "u280":
        for command in COMMANDS:
            run(*command.split()[1:])
    else:
        build(NamedConfig.of(name), out, board=board, self_test=True)
        check_right(out, "verilog")
    config, board = PRESETS[name](), BOARDS[board]
    dies = placed(out)
    tests = {die: [cell for cell in cells if "test" in cell] for die, cells in dies.items()}
    for die, engines in enumerate(engines_by_die(config.engines, board)):
        ports = [engine * config.ports + port for engine in engines for port in range(config.ports)]
        ports += [config.labels_memory] * (die == shared_die(board))
        assert tests[die] == [f"test{port}" for port in ports]
    slices = [cell for cells in dies.values() for cell in cells if "slice" in cell]
    assert len(slices) == sum(map(len, slice_dies(config, board)))
    assert len(memories(out / "link_hw.cfg")) == sum(map(len, tests.values())) == config.memories
