"""`p4sgd build vitis --debug`: cores at the ports and in the kernels, and the same design otherwise."""

import re
import subprocess
import sys

import pytest

from p4sgd.build.fpga import link
from p4sgd.build.generate.boards import BOARDS
from p4sgd.hw.spec.config import WorkerConfig

pytestmark = pytest.mark.usefixtures("kernels_made_once")

KERNELS = {"p4sgd_worker": "p4sgd_worker_kernel", "p4sgd_cmac": "p4sgd_cmac_kernel"}


def test_ports_are_watched_on_the_board_only(debug_folder):
    lines = (debug_folder / "link_hw.cfg").read_text().splitlines()
    assert "debug=1" in lines
    assert lines[lines.index("[debug]") + 1 :] == [
        *(f"protocol=p4sgd_worker_1:m_axi_gmem{number}" for number in range(2)),
        *(f"chipscope=p4sgd_worker_1:m_axi_gmem{number}" for number in range(2)),
        *(f"chipscope=p4sgd_worker_1:axis_{way}" for way in ("tx", "rx")),
    ]
    emulator = (debug_folder / "link_hw_emu.cfg").read_text()
    assert "[debug]" not in emulator
    assert "debug=1" not in emulator


@pytest.mark.slow
def test_of_many_memory_ports_two_are_recorded_and_all_checked():
    xclbin = link.worker_xclbin(
        WorkerConfig(engines=3, ports=2, lanes=8, chunks=4, line_fifo_depth=32, slots=WorkerConfig.tiny().slots),
        BOARDS["u280"],
        debug=True,
    )
    text = link.link_configuration(xclbin.designs["hw"], BOARDS["u280"], "p4sgd")
    assert re.findall(r"chipscope=\S+m_axi_gmem(\d)", text) == ["0", "6"]
    assert re.findall(r"protocol=\S+m_axi_gmem(\d)", text) == list("0123456")


def stub(script):
    """Verilog of the core that a script makes, with ports of the widths that it sets."""
    (module,) = re.findall(r"-module_name (\S+)", script)
    widths = re.findall(r"C_PROBE(_IN)?(\d+)_WIDTH \{(\d+)\}", script)
    ports = [f"input [{int(bits) - 1}:0] probe{way.lower()}{number}" for way, number, bits in widths]
    (count,) = re.findall(r"C_NUM_(?:OF_PROBES|PROBE_IN) \{(\d+)\}", script)
    assert int(count) == len(widths)
    return f"module {module}(input clk, {', '.join(ports)});\nendmodule\n"


def lint(folder, scratch, kernel, script):
    """What Verilator says of the pins of a kernel's core, if its ports have the widths that a script sets."""
    (scratch / "core.v").write_text(stub(script))
    command = [sys.executable, "-P", "-m", "verilator", "--lint-only", "-O0", "-Wno-fatal", "-Wno-CASEINCOMPLETE"]
    command += ["-Wno-MODMISSING", "-Wwarn-PINMISSING", "--top-module", KERNELS[kernel]]
    command += [str(folder / f"{KERNELS[kernel]}.v"), str(scratch / "core.v")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return [line for line in done.stderr.splitlines() if re.search(r"%\w+-(PIN|WIDTH|PORT)", line) and "probe" in line]


@pytest.mark.parametrize("kernel", [pytest.param("p4sgd_worker", marks=pytest.mark.slow), "p4sgd_cmac"])
def test_probes_have_the_widths_of_the_signals(debug_folder, tmp_path, kernel):
    script = (debug_folder / f"{kernel}_debug.tcl").read_text()
    assert lint(debug_folder, tmp_path, kernel, script) == []
    wrong = re.sub(r"(_WIDTH \{)(4|5)\}", r"\g<1>7}", script, count=1)
    assert wrong != script
    assert lint(debug_folder, tmp_path, kernel, wrong), "a wrong width is found"


CORE = re.compile(r"^  p4sgd_\w+_(?:ila|vio) \w+ \([^;]*\);\n", re.MULTILINE)
NUMBER = re.compile(r"\\port\$\d+")


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_design_is_the_same_without_the_core(vitis_folder, debug_folder, kernel):
    """Amaranth numbers ports of modules, and the core's pins count."""
    # The first line says how the file was made.
    folders = (vitis_folder, debug_folder)
    plain, debug = ((each / f"{KERNELS[kernel]}.v").read_text().partition("\n")[2] for each in folders)
    assert not (vitis_folder / f"{kernel}_debug.tcl").exists()
    assert not CORE.search(plain)
    assert len(CORE.findall(debug)) == (debug_folder / f"{kernel}_debug.tcl").read_text().count("create_ip") == 1
    assert NUMBER.sub("port", CORE.sub("", debug)) == NUMBER.sub("port", plain)
