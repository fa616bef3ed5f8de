"""The command `p4sgd doctor`: an examination of a cluster's network."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from p4sgd.host.cli.failures import FAILED
from p4sgd.host.cli.options import (
    cluster_option,
    common_options,
    device_kind,
    fault_option,
    hardware_configuration,
    is_given,
)
from p4sgd.host.cli.output import SIMULATOR_OPENING, Output
from p4sgd.host.errors import UserError
from p4sgd.host.run.checks import CLUSTER, find_cluster_file

if TYPE_CHECKING:
    from p4sgd.host.doctor import Finding

__all__ = ["doctor"]


@click.command()
@click.option("--device", type=device_kind, default="rtl", show_default=True, help="Device whose network to examine.")
@cluster_option
@click.option("--workers", type=int, default=2, show_default=True, help="Workers of a simulated cluster, 1 to 32.")
@click.option(
    "--config",
    "name",
    type=hardware_configuration,
    default="small",
    show_default=True,
    help="Hardware configuration of each worker of a simulated cluster.",
)
@fault_option
@common_options
def doctor(
    device: str,
    cluster: Path | None,
    workers: int,
    name: str | None,
    fault: tuple[tuple[str, float], ...],
    as_json: bool,
    quiet: bool,
) -> None:
    """Find out what is wrong with a cluster's network.

    Every worker sends probes to the aggregator; then all workers train together for a moment. The table has a row for
    every worker and check: worker (does it answer, and is it the right one?), board (what are its card's power and
    temperatures?), ethernet (is the link of a board up?), link (do probes come back?), settings (would the aggregator
    accept its packets?), allreduce (does it receive the sums?) and weights (are they exact?). Problems follow, each
    with a remedy. After a check has failed, checks that depend on it are left out.

    Exit status: 0 if training works, 1 if not. The contents of the workers' memories are lost.
    """
    from p4sgd.host.devices import DEVICES, open_device

    if not DEVICES[device].has_network:
        others = ", ".join(known for known, kind in DEVICES.items() if kind.has_network)
        raise UserError(f"--device {device} has no network to examine; these have: {others}")
    output = Output(as_json=as_json, quiet=quiet)
    opening = SIMULATOR_OPENING if device == "rtl" else None
    with output.working(opening or "getting ready", told=opening is not None):
        from p4sgd.host.doctor import Result, examine
        from p4sgd.hw.spec.config import PRESETS

        options: dict[str, Any] = dict(fault)
        file = find_cluster_file(device, cluster)
        if file is not None:
            from p4sgd.host.aggregators.cluster_file import read_cluster

            _refuse_given("workers", "name", "fault")
            found = read_cluster(file)
            options["cluster"], workers, name = found, len(found.workers), None
        opened = open_device(device, None if name is None else PRESETS[name](), workers, **options)
    with contextlib.closing(opened), output.working("examining the network"):
        examination = examine(opened)
    output.document(
        {
            "device": device,
            "workers": workers,
            "config": name,
            "healthy": examination.healthy,
            "complete": examination.complete,
            "findings": [
                {
                    "worker": finding.worker,
                    "check": finding.check,
                    "result": finding.result.value,
                    "problem": finding.problem,
                    "remedy": finding.remedy,
                    "evidence": finding.evidence,
                }
                for finding in examination.findings
            ],
        }
    )
    output.table(
        ["worker", "check", "result", "evidence"],
        [
            (_worker(finding), finding.check, finding.result.value, _text(finding.evidence))
            for finding in examination.findings
        ],
        texts=4,
        wraps=True,
    )
    for finding in examination.findings:
        if finding.result is not Result.PASSED:
            remedy = f": {finding.remedy}" if finding.remedy else ""
            output.say(f"{finding.result.value}: {_subject(finding)}{finding.problem}{remedy}")
    if not examination.complete:
        output.say("checks that depend on these were left out")
    if not examination.healthy:
        raise click.exceptions.Exit(FAILED)
    output.say("the cluster can train")


def _refuse_given(*names: str) -> None:
    """Refuse options that a cluster file or a real network decides."""
    for param in click.get_current_context().command.params:
        if param.name in names and is_given(param.name):
            raise UserError(f"{param.opts[0]} is for simulated clusters: leave it out with --device {CLUSTER}")


def _worker(finding: "Finding") -> str:
    return "all" if finding.worker is None else str(finding.worker)


def _subject(finding: "Finding") -> str:
    return "" if finding.worker is None else f"worker {finding.worker}: "


def _text(evidence: Mapping[str, int | str]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in evidence.items())
