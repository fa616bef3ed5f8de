"""The protocol in Promela, hw/net/protocol.pml, before the model checker spin: every state, and one rule less.

It asks what `tests/sim/network/test_every_order.py` asks, of a model written anew from the README, and more: operations
without end, a worker that restarts, timers that run out in any order.
"""

import importlib.util
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MODEL = ROOT / "hw" / "net" / "protocol.pml"

pytestmark = [
    pytest.mark.skipif(shutil.which("spin") is None, reason="spin is not installed: apt-get install spin"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="spin needs gcc: apt-get install gcc"),
]


def explore(folder, defines, *options, optimization="-O0"):
    """What spin's search says of a configuration.

    Most searches end before a compiler would have optimized them.
    """

    def call(*command):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    call("spin", "-a", *(f"-D{define}" for define in defines), str(MODEL))
    # All machines are global, so there is nothing that a reduction by independent steps could leave out.
    call("gcc", optimization, "-DNOREDUCE", "-o", "pan", "pan.c")
    begin = time.monotonic()
    said = call("./pan", *options)
    print(f"{' '.join(defines)}: {states(said)} states, {time.monotonic() - begin:.1f} s, {errors(said)} errors")
    return said


def states(said):
    return int(re.search(r"(\d+) states, stored", said)[1])


def errors(said):
    return int(re.search(r"errors: (\d+)", said)[1])


def assert_all_is_well(said):
    """No error, and nothing left out: neither states nor, as in an empty model, steps."""
    assert errors(said) == 0, said
    for sign in ("not completed", "too small", "out of memory", "truncated", "aborting", "DBITSTATE", "Bit statespace"):
        assert sign not in said, said
    assert "Full statespace search" in said, said
    unreached = re.findall(r"protocol\.pml:\d+, state \d+, (.*)", said)
    assert set(unreached) <= {'"-end-"'}, said


STATES = {
    "WORKERS=2 OPERATIONS=7": 388,
    "WORKERS=3 OPERATIONS=7": 1_766,
    "WORKERS=2 OPERATIONS=0": 580,
    "WORKERS=3 OPERATIONS=0": 2_564,
    "WORKERS=4 OPERATIONS=0 ROUNDS=4": 5_538,
    "WORKERS=2 OPERATIONS=5 RESTART": 8_589,
    "WORKERS=3 OPERATIONS=5 RESTART": 86_192,
    "WORKERS=4 OPERATIONS=3 RESTART": 450_675,
    "WORKERS=2 OPERATIONS=0 ROUNDS=4 RESTART": 13_264,
    "WORKERS=3 OPERATIONS=0 ROUNDS=4 RESTART": 130_162,
    "WORKERS=4 RACKS=2 OPERATIONS=5": 6_768,
    "WORKERS=3 RACKS=3 OPERATIONS=3": 2_362,
    "WORKERS=3 RACKS=2 OPERATIONS=0": 4_428,
    "WORKERS=2 RACKS=2 OPERATIONS=3 RESTART": 47_057,
    "WORKERS=3 RACKS=2 OPERATIONS=2 RESTART": 210_011,
    "WORKERS=2 STAND_INS OPERATIONS=5": 171_289,
    "WORKERS=3 STAND_INS OPERATIONS=3": 167_393,
    "WORKERS=2 STAND_INS OPERATIONS=0 ROUNDS=4": 25_901,
    "WORKERS=3 STAND_INS OPERATIONS=0 ROUNDS=4": 1_214_171,
    "WORKERS=2 STAND_INS OPERATIONS=2 RESTART": 227_926,
    "WORKERS=3 STAND_INS OPERATIONS=1 RESTART": 224_467,
}
"""Number of states by definitions, the table in hw/net/VERIFICATION.md."""


def test_the_table_has_these_states():
    table = (ROOT / "hw" / "net" / "VERIFICATION.md").read_text().partition("## Proofs")[0]
    rows = re.findall(r"^\| (\d) \|.*\| ([\d,]+) \| [\d.]+ \|$", table, re.MULTILINE)
    assert rows == [(re.search(r"\d", defines)[0], f"{count:,}") for defines, count in STATES.items()]


@pytest.mark.parametrize(
    ("defines", "count"),
    [pytest.param(*each, marks=[pytest.mark.slow] if each[1] > 20_000 else []) for each in STATES.items()],
)
def test_no_order_gives_a_wrong_sum_or_has_no_end(tmp_path, defines, count):
    said = explore(tmp_path, defines.split(), "-a", "-m1000000", optimization="-O1" if count > 50_000 else "-O0")
    assert_all_is_well(said)
    assert "acceptance   cycles \t+" in said
    assert "invalid end states\t+" in said
    assert states(said) == count


@pytest.mark.parametrize(
    ("racks", "operations", "stand_ins"),
    [
        *(((2,), 5, False), ((2,), 3, True), ((1, 1), 3, False)),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (((3,), 3, False), ((3,), 1, True), ((2, 1), 3, False), ((1, 1, 1), 2, False))
        ),
    ],
)
def test_it_visits_as_many_states_as_the_search_in_python(tmp_path, racks, operations, stand_ins):
    """Two models that were written apart and allow the same steps."""
    path = ROOT / "tests" / "sim" / "network" / "test_every_order.py"
    spec = importlib.util.spec_from_file_location("every_order", path)
    every_order = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(every_order)
    shape = [f"WORKERS={sum(racks)}", f"RACKS={len(racks)}", f"OPERATIONS={operations}", *["STAND_INS"] * stand_ins]
    said = explore(tmp_path, [*shape, "NO_END"])
    assert_all_is_well(said)
    assert states(said) == every_order.search(*racks, operations=operations, stand_ins=stand_ins)


WRONG_SUM, STUCK = ["-E"], ["-a", "-A"]
"""How spin is to look: for assertions alone, or for all but them."""


FAULTS = {
    "FORGETFUL": WRONG_SUM,
    "MUTANT_ADDS_TWICE": WRONG_SUM,
    "MUTANT_TELLS_ONCE": STUCK,
    "MUTANT_IGNORES_LATE_ACKS": STUCK,
    "MUTANT_COUNTS_LATE_ACKS": STUCK,
    "MUTANT_TAKES_ANY": WRONG_SUM,
    "MUTANT_TAKES_ANY_CLEAR": STUCK,
    "MUTANT_SENDS_ACK_ONCE": STUCK,
    "MUTANT_FORGETS_THE_WRAP": STUCK,
    "MUTANT_TAKES_ANY_JOB RESTART": WRONG_SUM,
    "MUTANT_TAKES_ANSWERS_OF_ANY_JOB RESTART": WRONG_SUM,
    "MUTANT_ADDS_FULL RACKS=2": WRONG_SUM,
    "MUTANT_KEEPS_SUMS RACKS=2": WRONG_SUM,
    "MUTANT_TAKES_ANY_FULL RACKS=2": WRONG_SUM,
    "MUTANT_TAKES_ANY_CLEAR_FROM_ABOVE RACKS=2": STUCK,
    "MUTANT_CLEARS_FIRST RACKS=2": STUCK,
    "MUTANT_ASKS_ONCE RACKS=2": STUCK,
    "MUTANT_ACKNOWLEDGES_ONCE RACKS=2": STUCK,
    "MUTANT_ADDS_BOTH STAND_INS": WRONG_SUM,
    "MUTANT_TAKES_ANY_EARLY STAND_INS": WRONG_SUM,
    "MUTANT_STANDS_IN_TOO_SOON STAND_INS": STUCK,
}
"""What the model is made with, and how spin must find the fault."""


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "options"), FAULTS.items(), ids=[fault.split()[0] for fault in FAULTS])
def test_a_fault_is_found(tmp_path, fault, options):
    """A test of the model: one rule less, and spin finds an order that it fails in."""
    said = explore(tmp_path, ["WORKERS=2", *fault.split()], *options)
    assert errors(said) >= 1, said
    expected = "assertion violated" if options is WRONG_SUM else "accept(ance cycle| stutter)"
    assert re.search(f"pan:1: {expected}", said), said


def test_no_mutant_is_left_untried():
    tried = {fault.split()[0] for fault in FAULTS}
    assert tried == {"FORGETFUL", *re.findall(r"MUTANT_[A-Z_]+[A-Z]", MODEL.read_text())}
