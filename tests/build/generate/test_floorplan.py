"""The floor plan names what is in the Verilog, everything once, and is a script that Tcl runs."""

import dataclasses
import shutil
import subprocess
from itertools import pairwise

import pytest
from support.yosys import run_yosys

from p4sgd.build.generate import verilog
from p4sgd.build.generate.boards import BOARD_OF, BOARDS
from p4sgd.build.generate.floorplan import engines_by_die, floorplan, placement, shared_die, slice_dies
from p4sgd.build.generate.verilog import FLOORPLAN, generate
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.config import PRESETS, NamedConfig, WorkerConfig
from p4sgd.hw.worker.worker import ENGINE, WORKER, worker_verilog

VENDOR = """
proc create_pblock {name} {if {[info exists ::range($name)]} {error "$name is there"}; set ::range($name) {}}
proc get_pblocks {name} {if {![info exists ::range($name)]} {error "no $name"}; return $name}
proc resize_pblock {name option range} {if {$option ne "-add"} {error $option}; lappend ::range($name) $range}
proc get_cells {name} {return $name}
proc add_cells_to_pblock {name cell} {append ::cells "$::range($name) $cell\\n"}
"""
"""Vivado's commands: every cell is noted with the range of its pblock."""


def evaluate(script, folder):
    """The value of a Tcl script's last command."""
    if program := shutil.which("tclsh"):
        (folder / "script.tcl").write_text(f"puts [eval {{{script}}}]")
        done = subprocess.run([program, folder / "script.tcl"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout
    tkinter = pytest.importorskip("tkinter", reason="neither tclsh nor tkinter is there")
    return tkinter.Tcl().eval(script)


def place(script, folder, prefix=""):
    """Cells by die as Vivado would place them."""
    setting = f"set p4sgd_top {prefix}\n" if prefix else ""
    dies = {}
    for line in evaluate(f"{VENDOR}{setting}{script}\nset ::cells", folder).split("\n"):
        if line:
            span, cell = line.split(" ")
            first, last = span.split(":")
            assert first == last
            dies.setdefault(first, []).append(cell)
    return dies


@pytest.mark.parametrize(
    ("board", "engines"),
    [
        pytest.param(*size, marks=pytest.mark.slow)
        for size in sorted({(BOARD_OF[name], PRESETS[name]().engines) for name in BOARD_OF})
    ],
)
def test_every_part_of_the_worker_once(board, engines, tmp_path):
    """A worker with as many engines, each as small as can be: the names of its parts are the same."""
    board = BOARDS[board]
    config = dataclasses.replace(WorkerConfig.tiny(), engines=engines, ports=2)
    worker, engine = worker_verilog(config)
    plan = floorplan(placement(worker, WORKER, ENGINE, board), board, "p4sgd generate")
    dies = place(plan, tmp_path)

    cells = [cell for names in dies.values() for cell in names]
    assert len(cells) == len(set(cells))
    (tmp_path / "worker.v").write_text(f"{worker}\n{engine}")
    checks = [f"select -assert-count 1 {WORKER}/c:{cell}" for cell in cells]
    checks.append(f"select -assert-count {len(cells)} {WORKER}/c:* {WORKER}/t:$* %d")
    placed = [sum(cell.startswith("engine") for cell in names) for names in dies.values()]
    checks.append(f"select -assert-count {sum(placed)} {WORKER}/t:{ENGINE}")
    run_yosys("; ".join(["read_verilog worker.v", f"hierarchy -top {WORKER}", *checks]), tmp_path)

    assert sorted(dies) == [f"SLR{die}" for die in range(board.dies)]
    for die, numbers in enumerate(engines_by_die(engines, board)):
        assert [name for name in dies[f"SLR{die}"] if name.startswith("engine")] == [
            f"engine{each}" for each in numbers
        ]
    assert sum(placed) == engines
    assert max(placed) - min(placed) <= 1
    once = {die for die, names in dies.items() if not all(cell.startswith("engine") for cell in names)}
    assert once == {f"SLR{shared_die(board)}"}

    below = place(plan, tmp_path, "shell/worker/")
    assert below == {die: [f"shell/worker/{cell}" for cell in names] for die, names in dies.items()}


@pytest.mark.parametrize("board", BOARDS.values(), ids=str)
def test_dies(board):
    assert 0 <= board.memory_die < board.dies
    assert 0 <= board.network_die < board.dies
    assert max(abs(die - shared_die(board)) for die in range(board.dies)) == 1
    for engines in range(1, 33):
        by_die = engines_by_die(engines, board)
        assert [number for numbers in by_die for number in numbers] == list(range(engines))
        counts = [len(numbers) for numbers in by_die]
        assert counts[shared_die(board)] == min(counts)
        assert counts[board.memory_die] == max(counts)


@pytest.mark.parametrize("ports", [1, 2])
@pytest.mark.parametrize("board", BOARDS.values(), ids=str)
def test_a_slice_on_every_die_of_the_way_to_memory(board, ports):
    for engines in range(1, 33):
        ways = slice_dies(WorkerConfig(engines=engines, ports=ports), board)
        die_of = {engine: die for die, numbers in enumerate(engines_by_die(engines, board)) for engine in numbers}
        masters = [die_of[memory // ports] for memory in range(engines * ports)] + [shared_die(board)]
        for way, master in zip(map(list, ways), masters, strict=True):
            if master == board.memory_die:
                assert not way
                continue
            assert (way[0], way[-1]) == (master, board.memory_die)
            assert len(way) == abs(master - board.memory_die) + 1
            assert {abs(after - before) for before, after in pairwise(way)} == {1}, "one boundary at a time"


def test_slices_of_a_u280():
    """Engines 0 to 5 are on the memory's die, 6 to 10 beside it as the labels are, and 11 to 15 beyond: by hand."""
    found = [list(way) for way in slice_dies(WorkerConfig.u280(), BOARDS["u280"])]
    assert found == [[]] * 12 + [[1, 0]] * 10 + [[2, 1, 0]] * 10 + [[1, 0]]


@pytest.mark.slow
def test_only_for_boards(tmp_path, monkeypatch):
    """`generate` writes a floor plan for configurations of boards; what it writes for others, its own tests list."""
    assert set(PRESETS) - set(BOARD_OF) == {"tiny", "small"}
    monkeypatch.setattr(verilog, "AggregatorConfig", lambda **_: AggregatorConfig(slots=16))  # sooner made
    generate(NamedConfig.of("tiny", board="u50"), tmp_path / "board")
    assert "Alveo U50" in (tmp_path / "board" / FLOORPLAN).read_text()
