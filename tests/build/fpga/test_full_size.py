"""Both folders of a worker of full size: nothing is wrong with them, and the same worker is in both."""

import json
from collections import Counter

import pytest
from support.command_line import p4sgd
from support.placement import every_cell_once, placed
from support.vendor_checks import check_all

from p4sgd.build.fpga.vitis import build


def _below_the_command(folder, name):
    """A file without its first line, which says what made it."""
    return (folder / name).read_bytes().partition(b"\n")[2]


@pytest.mark.slow
def test_a_worker_of_full_size(tmp_path):
    """The second folder is made by another process, whose sets have another order."""
    vitis, vivado = tmp_path / "vitis", tmp_path / "vivado"
    build("u280", vitis, board="u280")
    report = check_all(vitis)
    assert not report.problems, "\n".join(map(str, report.problems))
    link = (vitis / "link_hw.cfg").read_text()
    assert link.count("\nsp=") == 17
    every_cell_once(vitis)
    places = {cell: die for die, cells in placed(vitis).items() for cell in cells}
    slices = Counter(cell.partition("_slice")[0] for cell in places if "slice" in cell)
    for memory in range(17):
        master = places["component/worker/labels" if memory == 16 else f"component/worker/engine{memory // 2}"]
        assert slices[f"component/gmem{memory}"] == (master + 1 if master else 0), memory
    assert "4096 MiB" in (vitis / "README.md").read_text()

    done = p4sgd("build", "vivado", "--config", "u280", "--out", vivado, PYTHONHASHSEED="7")
    assert done.returncode == 0, done.stderr
    done = p4sgd("build", "check", vivado, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["problems"] == []
    report = check_all(vivado)
    assert not report.problems, "\n".join(map(str, report.problems))
    for name in ("p4sgd_worker.v", "p4sgd_cmac.v", "p4sgd_cmac.xdc", "p4sgd_registers.h", "registers.md"):
        assert _below_the_command(vivado, name) == _below_the_command(vitis, name), name
