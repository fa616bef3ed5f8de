"""What a routed design must pass: `gates.tcl` with stand-ins for Vivado's commands."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from p4sgd.build.fpga import packaging

STAND_INS = """
set answers [dict create {answers}]
proc get_cells {{args}} {{
    global answers
    set of [lsearch $args -of_objects]
    return [expr {{$of < 0 ? [dict get $answers cells] : [lindex [split [lindex $args $of+1] @] 1]}}]
}}
proc get_cdc_violations {{args}} {{ global answers; return [dict get $answers crossings] }}
proc get_methodology_violations {{args}} {{ global answers; return [dict get $answers methodology] }}
proc get_qor_suggestions {{args}} {{ return {{one two}} }}
proc get_timing_paths {{args}} {{
    global answers
    return [dict get $answers [lindex $args [expr {{[lsearch $args -delay_type] + 1}}]]]
}}
proc get_property {{name object}} {{ return [lindex [split $object @] 0] }}
proc report_bus_skew {{args}} {{ global answers; return [dict get $answers skew] }}
proc report_power {{args}} {{ made power; global answers; return [dict get $answers power] }}
proc made {{report}} {{
    global answers
    if {{$report in [dict get $answers broken]}} {{
        error "no license"
    }}
}}
foreach name {{cdc methodology timing_summary utilization qor_suggestions}} {{
    proc report_$name {{args}} {{
        made [string range [lindex [info level 0] 0] [string length report_] end]
        set file [open [lindex $args [expr {{[lsearch $args -file] + 1}}]] w]
        puts $file $args
        close $file
    }}
}}
source gates.tcl
p4sgd::judge {{hw gates}} 160 {{*/worker_1/inst */cmac_1/inst/adapter}}
"""
"""A violation, and a path, is its property: the severity, with @ and the cell where it matters, or the slack in ns."""

GOOD = {
    "cells": "{a cell}",
    "crossings": "Warning Info Warning",
    "methodology": "Warning Advisory",
    "max": "0.012",
    "min": "0.01",
    "broken": "",
    "skew": "{Slack (MET) : 2.7ns}",
    "power": "{| Total On-Chip Power (W)  | 61.250       |}",
}
"""What Vivado says of a design in which nothing is wrong."""


def judge(tmp_path, **answers):
    """Lines of the verdict on a design, by their report."""
    program = shutil.which("tclsh") or pytest.skip("needs tclsh")
    (tmp_path / "out").mkdir()
    shutil.copy(Path(packaging.__file__).with_name(packaging.GATES), tmp_path)
    words = " ".join(f"{name} {{{text}}}" for name, text in (GOOD | answers).items())
    (tmp_path / "script.tcl").write_text(STAND_INS.format(answers=words))
    done = subprocess.run([program, "script.tcl"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return (tmp_path / "out" / "hw" / "gates" / "verdict.txt").read_text().splitlines()


def test_a_good_design_passes_and_its_warnings_are_counted(tmp_path):
    assert judge(tmp_path) == [
        "passed cdc.rpt: 0 unsafe clock crossings, 3 of less weight",
        "passed methodology.rpt: 0 critical violations of the methodology, 2 of less weight",
        "passed timing.rpt: the least setup slack is 0.012 ns",
        "passed timing.rpt: the least hold slack is 0.01 ns",
        "passed bus_skew.rpt: 0 buses with too much skew",
        "passed power.rpt: 61.250 W are estimated, of 160 at most",
        "noted  dies.rpt: lines between dies, and what each die is filled with",
        "noted  suggestions.rpt: 2 suggestions for better results",
    ]
    reports = tmp_path / "out" / "hw" / "gates"
    names = ("bus_skew", "cdc", "dies", "methodology", "power", "suggestions", "timing")
    assert sorted(path.name for path in reports.iterdir()) == [*(f"{name}.rpt" for name in names), "verdict.txt"]
    assert "-cells {{a cell} {a cell}}" in (reports / "cdc.rpt").read_text()
    assert "-cells {{a cell} {a cell}}" in (reports / "methodology.rpt").read_text()
    assert "-slr" in (reports / "dies.rpt").read_text()


FAILURES = [
    ({"crossings": "Info Critical Warning Critical"}, "cdc.rpt: 2 unsafe clock crossings, 2 of less weight"),
    ({"methodology": "Warning {Critical Warning} Error"}, "methodology.rpt: 2 critical .*, 1 of less weight"),
    (
        {"crossings": "Critical@k/worker/ila/inst/a Critical@k/worker/vio/a Critical@k/worker/villa/a"},
        "cdc.rpt: 1 unsafe clock crossings, 2 of less weight",
    ),
    ({"max": "-0.123"}, "timing.rpt: the least setup slack is -0.123 ns"),
    ({"min": "-0.001"}, "timing.rpt: the least hold slack is -0.001 ns"),
    ({"max": ""}, "timing.rpt: no path has a setup slack"),
    ({"min": "inf_slack"}, "timing.rpt: no path has a hold slack"),
    ({"skew": "{Slack (MET) : 2.7ns}\n{Slack (VIOLATED) : -0.4ns}"}, "bus_skew.rpt: 1 buses with too much skew"),
    ({"power": "{| Total On-Chip Power (W)  | 160.001 |}"}, "power.rpt: 160.001 W are estimated, of 160 at most"),
    ({"power": "{nothing}"}, "power.rpt: there is no total"),
]


@pytest.mark.parametrize(("answers", "line"), FAILURES)
def test_what_matters_fails_and_nothing_else_does(tmp_path, answers, line):
    (found,) = [each for each in judge(tmp_path, **answers) if each.startswith("FAILED")]
    assert re.fullmatch(f"FAILED {line}", found)


def test_reports_that_cannot_be_made_and_cells_that_are_not_found_fail(tmp_path):
    """The other reports are made: an error of a hook would end Vivado's run, after hours."""
    (tmp_path / "broken").mkdir()
    lines = judge(tmp_path / "broken", broken="cdc timing_summary power qor_suggestions")
    assert [line for line in lines if line.startswith("FAILED")] == [
        f"FAILED {report}.rpt: cannot be judged: no license" for report in ("cdc", "timing", "power", "suggestions")
    ]
    assert {line.split()[1] for line in lines} >= {"methodology.rpt:", "bus_skew.rpt:", "dies.rpt:"}
    failed = [line for line in judge(tmp_path, cells="") if not line.startswith(("passed", "noted"))]
    assert failed == [
        f"FAILED cdc.rpt: no cell is called {pattern}, so its clock crossings are not known"
        for pattern in ("*/worker_1/inst", "*/cmac_1/inst/adapter")
    ]
