"""The folder for Vitis: what is in it, the same every time, and what is refused."""

import os
import re
import shutil
import subprocess

import pytest
from support.command_line import p4sgd, run
from support.placement import every_cell_once, placed
from support.vendor_folders import check_right, programs

from p4sgd.build.fpga import kernel as kernels
from p4sgd.build.fpga.kernel import Kernel
from p4sgd.build.fpga.link import bank, worker_xclbin
from p4sgd.build.fpga.vitis import build
from p4sgd.build.generate.artifacts import ForeignFolderError
from p4sgd.build.generate.boards import BOARD_OF, BOARDS, map_memories
from p4sgd.hw.datapath.strided_reader import OUTSTANDING_READS
from p4sgd.hw.kernel.verilog import KernelVerilog
from p4sgd.hw.spec.config import PRESETS, NamedConfig, WorkerConfig

pytestmark = pytest.mark.usefixtures("kernels_made_once")


def test_ports_of_memory_and_their_cells(vitis_folder):
    """Tiny's engine is on the memory's die; its labels are read from the next.

    Packaged are a burst of 64 beats, `OUTSTANDING_READS` reads and a single write (`test_memory_proved.py`).
    """
    script = (vitis_folder / "package_p4sgd_worker.tcl").read_text().splitlines()
    wanted = [f"p4sgd::memory m_axi_gmem{number} 64 {OUTSTANDING_READS} 1" for number in range(2)]
    assert [line for line in script if line.startswith("p4sgd::memory")] == wanted
    every_cell_once(vitis_folder)
    dies = placed(vitis_folder)
    slices = {die: [cell for cell in cells if "slice" in cell] for die, cells in dies.items()}
    assert slices == {0: ["gmem1_slice1"], 1: ["gmem1_slice0"], 2: []}
    assert "worker/engine0" in dies[0]


def test_what_is_linked(vitis_folder):
    *_, connectivity = (vitis_folder / "link_hw.cfg").read_text().split("\n\n")
    assert (
        connectivity
        == """\
[connectivity]
nk=p4sgd_worker:1
nk=p4sgd_cmac:1
sp=p4sgd_worker_1.m_axi_gmem0:HBM[0:31]
sp=p4sgd_worker_1.m_axi_gmem1:HBM[31]
stream_connect=p4sgd_worker_1.axis_tx:p4sgd_cmac_1.axis_tx:16
stream_connect=p4sgd_cmac_1.axis_rx:p4sgd_worker_1.axis_rx:16
connect=io_clk_qsfp0_refclka_00:p4sgd_cmac_1/gt_refclk
connect=p4sgd_cmac_1/gt_serial:io_gt_qsfp0_00
connect=p4sgd_cmac_1/clk_gt_freerun:ii_level0_wire/ulp_m_aclk_freerun_ref_00
slr=p4sgd_cmac_1:SLR2
"""
    )


MEMORIES = {
    "tiny": [range(32), [31]],
    "u280": [*([low] for low in range(32)), [31]],
    "u280_deep": [*([low, low + 1] for low in range(0, 32, 2)), [31]],
    "u50": [*([low, low + 1] for low in range(0, 32, 2)), [31]],
    "u55c": [*([low] for low in range(30)), [31]],  # labels to themselves
    "three": [*(range(low, low + 3) for low in range(0, 30, 3)), [31]],  # labels to themselves
}
"""Channels of the banks of configurations and of labels, on a HBM of 32 pseudo channels (PG276)."""


@pytest.mark.parametrize("name", MEMORIES)
def test_banks_take_all_channels_and_labels_the_last_too(name):
    config = PRESETS[name]() if name in PRESETS else WorkerConfig(engines=5, ports=2)
    board = BOARDS[BOARD_OF.get(name, "u280")]
    found = map_memories(config, board.hbm)
    assert [list(channels) for channels in found.channels] == list(map(list, MEMORIES[name]))
    assert found.bank_bytes == len(MEMORIES[name][0]) * board.hbm.channel_bytes
    assert found.labels_share == (name == "u280")
    assert found.image_bytes == found.bank_bytes * config.engines * config.ports


def test_memory_as_vitis_calls_it():
    assert [bank(range(*each)) for each in ((2, 4), (31, 32))] == ["HBM[2:3]", "HBM[31]"]
    with pytest.raises(ValueError, match="64 banks of engines do not fit into 32 channels"):
        map_memories(WorkerConfig(engines=32, ports=2), BOARDS["u280"].hbm)


@pytest.mark.parametrize("board", BOARDS.values(), ids=lambda board: board.name)
def test_cages_are_quads_of_the_network_die(board):
    """16 transceivers of a column are on a die, from X0Y0 (UG578); DS963, DS965 and DS978 have the cages."""
    assert len(board.cages) == {"Alveo U280": 2, "Alveo U50": 1, "Alveo U55C": 2}[board.name]
    for cage in board.cages:
        first, last = (int(site.removeprefix("X0Y")) for site in cage.lanes.split("~"))
        assert first % 4 == 0
        assert last == first + 3
        assert first // 16 == board.network_die
    for name in ("mac", "lanes", "transceivers", "reference_clock"):
        assert len({getattr(cage, name) for cage in board.cages}) == len(board.cages), name


@pytest.mark.parametrize(
    ("board", "platform", "part", "lanes", "cage"),
    [
        ("u50", "xilinx_u50_gen3x16_xdma_5_202210_1", "xcu50-fsvh2104-2L-e", "X0Y28~X0Y31", "qsfp"),
        ("u55c", "xilinx_u55c_gen3x16_xdma_3_202210_1", "xcu55c-fsvh2892-2L-e", "X0Y24~X0Y27", "qsfp0"),
    ],
)
@pytest.mark.slow
def test_folders_of_other_boards(tmp_path, board, platform, part, lanes, cage):
    """Any configuration goes on any board with room for it; wanted are the facts of public designs, typed anew."""
    out = tmp_path / "out"
    build(NamedConfig.of("tiny"), out, board=board)
    check_right(out)
    link = (out / "link_hw.cfg").read_text().splitlines()
    assert f"platform={platform}" in link
    assert [line for line in link if line.startswith("connect=")] == [
        f"connect=io_clk_{cage}_refclka_00:p4sgd_cmac_1/gt_refclk",
        f"connect=p4sgd_cmac_1/gt_serial:io_gt_{cage}_00",
        "connect=p4sgd_cmac_1/clk_gt_freerun:ii_level0_wire/ulp_m_aclk_freerun_ref_00",
    ]
    mac = (out / "p4sgd_cmac_ip.tcl").read_text()
    for setting in (f"GT_GROUP_SELECT {{{lanes}}}", "GT_REF_CLK_FREQ {161.1328125}", "GT_DRP_CLK {100}"):
        assert setting in mac
    assert re.search(rf"^p4sgd::open_kernel .* {part}$", (out / "package_p4sgd_worker.tcl").read_text(), re.MULTILINE)


REFUSALS = {
    "--config tiny": "configuration tiny is for no board: name one with --board u280|u50|u55c",
    "": "Missing option '--config'",
    "--aggregator": "for which board? name it with --board u280|u50|u55c",
    "--aggregator --config u280": "--config is for workers",
    "--config u280 --board u55c": "take all 32 channels of memory, and an Alveo U55C has no other memory for the",
    "--config tiny --board u280 --cable glass": "choose one of copper, optics",
}
"""Options, and what is wrong with them."""


@pytest.mark.parametrize("words", REFUSALS)
def test_what_does_not_fit_together_is_refused(tmp_path, words):
    done = run("build", "vitis", *words.split(), "--out", tmp_path / "out", status=2)
    assert REFUSALS[words] in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_foreign_folder_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ForeignFolderError):
        build(NamedConfig.of("tiny"), tmp_path, board="u280")
    done = p4sgd("build", "check", tmp_path)
    assert done.returncode == 2
    assert "was not made by" in done.stderr


TOOLS = {
    "vivado": 'case "$1" in -version) echo "Vivado v$RELEASE (64-bit)";; *) for f; do :; done; echo "$f" >>"$LOG"; '
    'f=${f#package_}; touch "out/${f%.tcl}.xo";; esac',
    "v++": 'case "$1" in --version) echo "****** v++ v$RELEASE (64-bit)";; *) echo "$@" >>"$LOG"; '
    'mkdir -p out/hw/gates; echo "$FINDING" >out/hw/gates/verdict.txt; touch out/hw/p4sgd_worker.xclbin;; esac',
    "platforminfo": 'test "$2" != missing',
    "emconfigutil": 'echo "emconfigutil $@" >>"$LOG"',
}


@pytest.fixture
def tools(vitis_folder, tmp_path, monkeypatch):
    """A copy of the folder, and stand-ins for the vendor's tools on the path; calls them through make."""
    out = tmp_path / "out"
    shutil.copytree(vitis_folder, out)
    programs(tmp_path / "bin", monkeypatch, **TOOLS)
    monkeypatch.setenv("LOG", str(tmp_path / "log"))

    def make(*arguments, release="2022.2", finding="passed cdc.rpt", **more):
        environment = os.environ | {"RELEASE": release, "FINDING": finding} | more
        done = subprocess.run(
            ["make", *arguments], cwd=out, env=environment, capture_output=True, text=True, check=False
        )
        return done, (tmp_path / "log").read_text() if (tmp_path / "log").exists() else ""

    return make


@pytest.mark.parametrize(
    ("target", "kernels"),
    [("hw", ["p4sgd_worker", "p4sgd_cmac"]), ("hw_emu", ["p4sgd_worker", "p4sgd_emulated_cmac", "p4sgd_aggregator"])],
)
def test_make_packs_the_kernels_and_links_them(tools, target, kernels):
    done, log = tools(f"TARGET={target}")
    assert done.returncode == 0, done.stderr
    *packed, linked = (line for line in log.splitlines() if not line.startswith("emconfigutil"))
    assert sorted(packed) == sorted(f"package_{kernel}.tcl" for kernel in kernels)
    assert f"--link --target {target} --config link_{target}.cfg " in linked
    assert linked.endswith(" ".join([f"out/{target}/p4sgd_worker.xclbin", *(f"out/{name}.xo" for name in kernels)]))
    if target == "hw":
        for step, script in (("PLACE_DESIGN.TCL.PRE", "place.tcl"), ("ROUTE_DESIGN.TCL.POST", "judge.tcl")):
            assert re.search(rf"--vivado.prop run.impl_1.STEPS.{step}=/\S+/{script} ", linked)
    else:
        assert "emconfigutil --platform xilinx_u280_gen3x16_xdma_1_202211_1 --od out/hw_emu" in log


def test_make_fails_as_long_as_the_routed_design_does(tools):
    """The xclbin stays, as it took hours; make does not link it again, but goes on to fail."""
    for _ in range(2):
        done, log = tools(finding="FAILED timing.rpt: the least setup slack is -0.123 ns")
        assert done.returncode == 2
        assert "FAILED timing.rpt: the least setup slack is -0.123 ns" in done.stdout
        assert "out/hw/p4sgd_worker.xclbin is there, but not to be used" in done.stderr
        assert log.count("--link") == 1


@pytest.mark.parametrize(
    ("name", "board", "workers"),
    [("tiny", "u280", 2), ("u50", "u50", 1), ("u55c", "u55c", 1), ("u280", "u280", 1)],
)
def test_the_emulator_has_as_many_workers_as_there_are_memory_ports_for(monkeypatch, name, board, workers):
    """An HBM has 32 AXI ports (PG276). Kernels are too large to be made here."""
    made = {each: Kernel(f"p4sgd_{each}", KernelVerilog("", "", ()), None) for each in ("worker", "aggregator")}
    for each, kernel in made.items():
        monkeypatch.setattr(kernels, each, lambda *_, kernel=kernel, **__: kernel)
    xclbin = worker_xclbin(PRESETS[name](), BOARDS[board])
    design = xclbin.designs["hw_emu"]
    assert xclbin.aggregator.ports == workers
    assert design.counts["p4sgd_worker"] == workers
    assert len(design.memories) == workers * PRESETS[name]().memories <= max(32, PRESETS[name]().memories)
    assert len(design.streams) == 4 * workers


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ([], {"release": "2019.2"}, "vivado is of release 2019.2; the board's shell is for 2022.1 2022.2 2023.1"),
        ([], {"PATH": "/usr/bin:/bin"}, "vivado is not on the path: source settings64.sh of Vitis 2023.1"),
        (["PLATFORM=missing"], {}, "platform missing is not there: install"),
        (["TARGET=sw_emu"], {}, "TARGET is sw_emu: set it to hw or hw_emu"),
    ],
)
def test_make_says_what_is_missing(tools, arguments, options, message):
    done, log = tools(*arguments, **options)
    assert done.returncode == 2
    assert message in done.stderr
    assert not log


@pytest.mark.slow
@pytest.mark.parametrize(
    ("board", "macs"),
    [("u280", ["CMACE4_X0Y5", "CMACE4_X0Y6"]), ("u50", ["CMACE4_X0Y3"]), ("u55c", ["CMACE4_X0Y2", "CMACE4_X0Y4"])],
)
def test_an_aggregator_with_all_ports(tmp_path, board, macs):
    """A U50 has one, which is enough for workers behind a switch."""
    build(None, tmp_path / "out", board=board, cable="optics")
    check_right(tmp_path / "out")
    link = (tmp_path / "out" / "link_hw.cfg").read_text()
    assert ("connect=p4sgd_cmac1_1/gt_serial:io_gt_qsfp1_00" in link) == (len(macs) == 2)
    assert len(list((tmp_path / "out").glob("p4sgd_cmac*_ip.tcl"))) == len(macs)
    for port, mac in zip(("", "1"), macs, strict=False):
        script = (tmp_path / "out" / f"p4sgd_cmac{port}_ip.tcl").read_text()
        assert mac in script
        assert "--build-id 0 --cable optics --out DIR" in script.splitlines()[0]
        assert "CONFIG.RX_EQ_MODE {LPM}" in script
