"""Both folders of a worker of full size: nothing is wrong with them, and the same worker is in both."""

from collections import Counter

import pytest
from support.command_line import p4sgd, run
from support.placement import every_cell_once, placed
from support.vendor_folders import check_right

from p4sgd.hw.spec.config import WorkerConfig

COMMANDS = ("p4sgd build vitis --config u280 --out worker", "p4sgd build check worker")
"""Those of README.md."""


def _below_the_command(folder, name):
    """A file without its first line, which says what made it."""
    return (folder / name).read_bytes().partition(b"\n")[2]


@pytest.mark.slow
def test_a_worker_of_full_size(tmp_path, own_folder):
    """The second folder is made by another process, whose sets have another order.

    Verilator, which takes as long as to generate a folder, reads the first one, by the command that checks it; the
    Verilog of the second is the same.
    """
    for command in COMMANDS:
        run(*command.split()[1:])
    vitis, vivado = tmp_path / "worker", tmp_path / "vivado"
    link = (vitis / "link_hw.cfg").read_text()
    memories, labels = WorkerConfig.u280().memories, WorkerConfig.u280().labels_memory
    assert link.count("\nsp=") == memories
    every_cell_once(vitis)
    places = {cell: die for die, cells in placed(vitis).items() for cell in cells}
    slices = Counter(cell.partition("_slice")[0] for cell in places if "slice" in cell)
    for memory in range(memories):
        master = places["worker/labels" if memory == labels else f"worker/engine{memory // 2}"]
        assert slices[f"gmem{memory}"] == (master + 1 if master else 0), memory
    assert "8192 MiB" in (vitis / "README.md").read_text()

    done = p4sgd("build", "vivado", "--config", "u280", "--out", vivado, PYTHONHASHSEED="7")
    assert done.returncode == 0, done.stderr
    check_right(vivado, "verilog")
    for name in ("p4sgd_worker_kernel.v", "p4sgd_cmac_kernel.v", "p4sgd_cmac.xdc", "p4sgd_registers.h", "registers.md"):
        assert _below_the_command(vivado, name) == _below_the_command(vitis, name), name
