"""Experiment on the size of the hardware, by yosys, in a process of its own."""

import json
import subprocess

from p4sgd.host.experiments.experiment import Cell, Finding, Source, Table, experiment
from p4sgd.host.serve.local_cluster import python_command

SWITCH = (("stages of 12", 9), ("SRAMs of 960", 137), ("TCAMs of 288", 35))
"""Resources of a Tofino with 4,096 slots and 8 jobs, by p4c's reports (hw/switch/README.md)."""


@experiment("E9", "Area", "How much of an FPGA and of a switch does it take?")
def area(quick: bool) -> Finding:
    """E9: cells of a worker, of a small one if quick; and the switch."""
    config, unit = ("tiny", "engine") if quick else ("u280", "worker")
    words = ("resources", "--config", config, "--unit", unit, "--json")
    command = python_command("from p4sgd.host.cli import main; main()", *words)
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    try:
        document = json.loads(done.stdout)
    except ValueError:
        return Finding(skipped=done.stderr.strip().rpartition("\n")[2] or f"p4sgd {' '.join(words)} said nothing")
    rows: list[list[Cell]] = []
    names = list(document["units"][0]["total"])
    for each in document["units"]:
        for part in each["parts"]:
            rows.append([each["unit"], part["name"], *(part[name] for name in names), Source.MEASURED])
        rows.append([each["unit"], "total", *(each["total"][name] for name in names), Source.MEASURED])
    rows.append(
        [document["device"]["name"], "all of the board", *(document["device"][name] for name in names), Source.VENDOR]
    )
    return Finding(
        [
            Table(
                f"Cells of a worker of {config}, mapped by yosys and not placed",
                ("unit", "part", *names, "source"),
                rows,
            ),
            Table(
                "The aggregator in P4 on a Tofino, 4,096 slots and 8 jobs, compiled by p4c once",
                ("resource", "used", "source"),
                [[name, count, Source.MEASURED] for name, count in SWITCH],
            ),
        ],
        ["Neither the published RTL nor SwitchML's use of its switch is in this report."],
    )
