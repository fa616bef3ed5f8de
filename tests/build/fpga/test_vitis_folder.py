"""The folder for Vitis: what is in it, the same every time, and what is refused."""

import os
import re
import subprocess

import pytest
from click.testing import CliRunner
from support.command_line import p4sgd
from support.placement import every_cell_once, placed
from support.vendor_checks import check_all

from p4sgd.build.fpga import kernel as kernels
from p4sgd.build.fpga.cmac import CABLES, ip_script
from p4sgd.build.fpga.kernel import Kernel
from p4sgd.build.fpga.link import bank, worker_xclbin
from p4sgd.build.fpga.vitis import build
from p4sgd.build.generate.artifacts import ForeignFolderError
from p4sgd.build.generate.boards import BOARD_OF, BOARDS, map_memories
from p4sgd.host.cli.app import main
from p4sgd.hw.datapath.strided_reader import OUTSTANDING_READS
from p4sgd.hw.kernel.verilog import KernelVerilog
from p4sgd.hw.spec.config import PRESETS, WorkerConfig
from p4sgd.hw.spec.register_map import CTRL

pytestmark = pytest.mark.usefixtures("kernels_made_once")


def test_memory_ports_are_packaged_for_what_readers_and_storers_ask(vitis_folder):
    """A burst of 64 beats, `OUTSTANDING_READS` reads and a single write: `test_memory_proved.py` has the last two."""
    script = (vitis_folder / "package_p4sgd_worker.tcl").read_text().splitlines()
    wanted = [f"p4sgd::memory m_axi_gmem{number} 64 {OUTSTANDING_READS} 1" for number in range(2)]
    assert [line for line in script if line.startswith("p4sgd::memory")] == wanted


def test_every_cell_is_placed_once(vitis_folder):
    """Tiny's engine is on the memory's die; its labels are read from the next."""
    every_cell_once(vitis_folder)
    dies = placed(vitis_folder)
    slices = {die: [cell for cell in cells if "slice" in cell] for die, cells in dies.items()}
    assert slices == {0: ["component/gmem1_slice1"], 1: ["component/gmem1_slice0"], 2: []}
    assert "component/worker/engine0" in dies[0]


@pytest.mark.parametrize("name", [name for name in PRESETS if name != "u280_wide"])
def test_banks_take_all_channels_and_labels_the_last_too(name):
    config = PRESETS[name]()
    hbm = BOARDS[BOARD_OF.get(name, "u280")].hbm
    found = map_memories(config, hbm)
    *banks, labels = found.channels
    assert len(found.channels) == config.memories
    assert [channel for channels in banks for channel in channels] == list(range(32)), "neighbours, and no one else's"
    assert list(labels) == [31]
    assert {len(channels) * hbm.channel_bytes for channels in banks} == {found.bank_bytes}
    assert found.image_bytes == found.bank_bytes * config.engines * config.ports == hbm.channels * hbm.channel_bytes


def test_the_memory_of_a_u280():
    """16 banks of 512 MiB, the labels at the end of the last: PG276 has 32 pseudo channels of 256 MiB."""
    found = map_memories(WorkerConfig.u280(), BOARDS["u280"].hbm)
    wanted = [f"HBM[{low}:{low + 1}]" for low in range(0, 32, 2)] + ["HBM[31]"]
    assert [bank(channels, "DDR[0]") for channels in found.channels] == wanted
    assert found.bank_bytes == 512 << 20


@pytest.mark.parametrize(
    ("config", "last"),
    [
        (WorkerConfig.u280_wide(), [[30], [31], []]),
        (WorkerConfig(engines=5, ports=2), [[24, 25, 26], [27, 28, 29], [31]]),
    ],
    ids=["elsewhere", "to themselves"],
)
def test_labels_go_where_banks_leave_them_room(config, last):
    found = map_memories(config, BOARDS["u280"].hbm)
    assert [list(channels) for channels in found.channels[-3:]] == last
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
    ("board", "platform", "part", "lanes", "names"),
    [
        (
            "u50",
            "xilinx_u50_gen3x16_xdma_5_202210_1",
            "xcu50-fsvh2104-2L-e",
            "X0Y28~X0Y31",
            ("io_clk_qsfp_refclka_00", "io_gt_qsfp_00"),
        ),
        pytest.param(
            "u55c",
            "xilinx_u55c_gen3x16_xdma_3_202210_1",
            "xcu55c-fsvh2892-2L-e",
            "X0Y24~X0Y27",
            ("io_clk_qsfp0_refclka_00", "io_gt_qsfp0_00"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_folders_of_other_boards(tmp_path, board, platform, part, lanes, names):
    """Any configuration goes on any board with room for it; wanted are the facts of public designs, typed anew."""
    out = tmp_path / "out"
    build("tiny", out, board=board)
    report = check_all(out)
    assert not report.problems, "\n".join(map(str, report.problems))
    link = (out / "link_hw.cfg").read_text().splitlines()
    assert f"platform={platform}" in link
    assert [line for line in link if line.startswith("connect=")] == [
        f"connect={names[0]}:p4sgd_cmac_1/gt_refclk",
        f"connect=p4sgd_cmac_1/gt_serial:{names[1]}",
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
    "--config u280_wide --board u55c": "take all 32 channels of memory, and an Alveo U55C has no other memory for the",
    "--config tiny --board u280 --cable glass": "choose one of copper, optics",
}
"""Options, and what is wrong with them."""


@pytest.mark.parametrize("words", REFUSALS)
def test_what_does_not_fit_together_is_refused(tmp_path, words):
    done = CliRunner().invoke(main, ["build", "vitis", *words.split(), "--out", str(tmp_path / "out")])
    assert done.exit_code == 2
    assert REFUSALS[words] in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_foreign_folder_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ForeignFolderError):
        build("tiny", tmp_path, board="u280")
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
    out, programs = tmp_path / "out", tmp_path / "bin"
    out.mkdir()
    for path in vitis_folder.iterdir():
        (out / path.name).write_bytes(path.read_bytes())
    programs.mkdir()
    for name, text in TOOLS.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("LOG", str(tmp_path / "log"))

    def make(*arguments, release="2022.2", path=f"{programs}:{os.environ['PATH']}", finding="passed cdc.rpt"):
        environment = os.environ | {"RELEASE": release, "PATH": path, "FINDING": finding}
        done = subprocess.run(
            ["make", *arguments], cwd=out, env=environment, capture_output=True, text=True, check=False
        )
        return done, (tmp_path / "log").read_text() if (tmp_path / "log").exists() else ""

    return make


def test_make_packs_the_kernels_and_links_them(tools):
    done, log = tools()
    assert done.returncode == 0, done.stderr
    *packed, linked = log.splitlines()
    assert sorted(packed) == ["package_p4sgd_cmac.tcl", "package_p4sgd_worker.tcl"]
    assert "--link --target hw --config link_hw.cfg --vivado.prop" in linked
    for step, script in (("PLACE_DESIGN.TCL.PRE", "place.tcl"), ("ROUTE_DESIGN.TCL.POST", "judge.tcl")):
        assert re.search(rf"--vivado.prop run.impl_1.STEPS.{step}=/\S+/{script} ", linked)
    assert linked.endswith("--output out/hw/p4sgd_worker.xclbin out/p4sgd_worker.xo out/p4sgd_cmac.xo")


def test_make_fails_as_long_as_the_routed_design_does(tools):
    """The xclbin stays, as it took hours; make does not link it again, but goes on to fail."""
    for _ in range(2):
        done, log = tools(finding="FAILED timing.rpt: the least setup slack is -0.123 ns")
        assert done.returncode == 2
        assert "FAILED timing.rpt: the least setup slack is -0.123 ns" in done.stdout
        assert "out/hw/p4sgd_worker.xclbin is there, but not to be used" in done.stderr
        assert log.count("--link") == 1
    done, _ = tools("--dry-run", "TARGET=hw_emu")
    assert "--link --target hw_emu" in done.stdout
    assert not re.search("judge|verdict", done.stdout), "an emulator has no routed design"


def test_make_links_for_the_emulator_and_describes_its_board(tools):
    done, log = tools("TARGET=hw_emu")
    assert done.returncode == 0, done.stderr
    *packed, linked, described = log.splitlines()
    kernels = ["p4sgd_worker", "p4sgd_emulated_cmac", "p4sgd_aggregator"]
    assert sorted(packed) == sorted(f"package_{kernel}.tcl" for kernel in kernels)
    assert "--link --target hw_emu --config link_hw_emu.cfg --temp_dir" in linked
    assert linked.endswith(" ".join(["out/hw_emu/p4sgd_worker.xclbin", *(f"out/{kernel}.xo" for kernel in kernels)]))
    assert described == "emconfigutil --platform xilinx_u280_gen3x16_xdma_1_202211_1 --od out/hw_emu"


@pytest.mark.parametrize(
    ("name", "board", "workers"),
    [("tiny", "u280", 2), ("u50", "u50", 2), ("u280", "u280", 1), ("u280_wide", "u280", 1)],
)
def test_the_emulator_has_as_many_workers_as_there_are_memory_ports_for(monkeypatch, name, board, workers):
    """An HBM has 32 AXI ports (PG276). Kernels are too large to be made here."""
    made = {each: Kernel(f"p4sgd_{each}", KernelVerilog("", "", ()), CTRL, None) for each in ("worker", "aggregator")}
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
        ([], {"path": "/usr/bin:/bin"}, "vivado is not on the path: source settings64.sh of Vitis 2023.1"),
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
    report = check_all(tmp_path / "out")
    assert not report.problems, "\n".join(map(str, report.problems))
    link = (tmp_path / "out" / "link_hw.cfg").read_text()
    assert ("connect=p4sgd_cmac1_1/gt_serial:io_gt_qsfp1_00" in link) == (len(macs) == 2)
    assert len(list((tmp_path / "out").glob("p4sgd_cmac*_ip.tcl"))) == len(macs)
    for port, mac in zip(("", "1"), macs, strict=False):
        script = (tmp_path / "out" / f"p4sgd_cmac{port}_ip.tcl").read_text()
        assert mac in script
        assert "--build-id 0 --cable optics --out DIR" in script.splitlines()[0]
        assert "CONFIG.RX_EQ_MODE {LPM}" in script


def test_receivers_are_set_for_a_cable_only_if_it_is_named():
    scripts = {
        cable: ip_script("mac", BOARDS["u280"].cages[0], 100, "", cable).splitlines() for cable in (None, *CABLES)
    }
    assert not [line for line in scripts[None] if "RX_EQ_MODE" in line or "INS_LOSS" in line]
    for cable, mode in (("copper", "DFE"), ("optics", "LPM")):
        added = set(scripts[cable]) - set(scripts[None])
        assert f"    CONFIG.RX_EQ_MODE {{{mode}}} \\" in added
        assert len(added) == len(scripts[cable]) - len(scripts[None]) == 2


@pytest.mark.parametrize(("command", "options"), [("vitis", {"debug": True}), ("vivado", {"megahertz": 300})])
def test_options_reach_the_folder(command, options, tmp_path, monkeypatch):
    asked = {}

    def build(name, out, **options):
        asked.update(options)
        raise ValueError("as far as here")

    monkeypatch.setattr(f"p4sgd.build.fpga.{command}.build", build)
    words = ["build", command, "--config", "u280", "--board", "u280", "--out", str(tmp_path / "out")]
    more = [f"--{name}" if value is True else f"--{name}={value}" for name, value in options.items()]
    assert "as far as here" in CliRunner().invoke(main, [*words, "--cable", "copper", "--build-id", "7", *more]).stderr
    assert asked == {"board": "u280", "cable": "copper", "build_id": 7, **options}
    CliRunner().invoke(main, words)
    default = {"debug": False} if command == "vitis" else {"megahertz": 250}
    assert asked == {"board": "u280", "cable": None, "build_id": 0, **default}


def test_aggregators_of_unknown_boards_are_refused(tmp_path):
    with pytest.raises(KeyError):
        build(None, tmp_path / "out", board="u999")
    assert not (tmp_path / "out").exists()
