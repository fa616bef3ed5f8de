"""The command `p4sgd doctor`: an examination of a cluster's network, or the self-test of boards."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from p4sgd.host.cli import options
from p4sgd.host.cli.app import FAILED
from p4sgd.host.cli.output import Output
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.host.run.checks import find_cluster_file

if TYPE_CHECKING:
    from p4sgd.host.doctor import Finding
    from p4sgd.hw.spec.config import NamedConfig

_FRAMES = 10_000_000
"""Frames that a cage sends in a self-test: 0.07 s at 100 Gb/s."""


@click.command()
@click.option("--device", type=options.device_kind, default="rtl", help="Device whose network to examine.")
@options.cluster
@click.option("--workers", default=2, help="Workers of a simulated cluster, 1 to 32.")
@options.worker_configuration("Configuration of each worker of a simulated cluster.", default="small")
@options.faults
@options.path(
    "--self-test",
    "XCLBIN",
    "Examine boards of this machine instead, with the xclbin of p4sgd build selftest.",
)
@click.option(
    "--board",
    "boards",
    multiple=True,
    metavar="xrt:ADDRESS",
    help="With --self-test: board to examine; may be repeated. By default all of these that p4sgd info lists as ready.",
)
@options.count(
    "--memory",
    1,
    "With --self-test: MiB of its memory that each port reads, from the start of its first channel.",
    most=1024,
    default=16,
    metavar="MIB",
)
@click.option(
    "--cable",
    is_flag=True,
    help="With --self-test: frames leave the board. A cable joins its two cages, or each has a loop-back plug.",
)
@options.common
def doctor(
    self_test: Path | None, boards: tuple[str, ...], memory: int, cable: bool, output: Output, **choices: Any
) -> None:
    """Find out what is wrong with a cluster's network, or a board.

    Every worker sends probes to the aggregator; then all workers train together for a moment. The table has a row for
    every worker and check: worker (does it answer, and is it idle?), card (is a board
    too hot, or does it take too much power?), ethernet (is the link of a board up?), link (do
    probes come back?), settings (would the aggregator accept its packets?), packets (how long may they be?), allreduce
    (does it receive the sums?) and weights (are they exact?). Problems follow, each with a remedy. After a check has
    failed, checks that depend on it are left out.

    With --self-test the table has a row for each board's clock, memory port, cage and card (temperatures and power). A
    port reads alone, with all others, and single beats, compares what it reads, and writes, if a worker does at that
    port. Frames come back within the transceivers of the cage, so no cable is needed.

    Exit status: 0 if training works, 1 if not. The contents of the workers' and boards' memories are lost.
    """
    if self_test is not None:
        _refuse_given(*choices, why="has no use with --self-test")
        healthy = _test_boards(output, self_test, boards, size=memory << 20, loopback=not cable)
    else:
        _refuse_given("boards", "memory", "cable", why="is for --self-test")
        healthy = _examine_network(output, **choices)
    if not healthy:
        raise click.exceptions.Exit(FAILED)
    output.say("the cluster can train" if self_test is None else "a worker can be trusted with what was tested")


def _refuse_given(*names: str, why: str) -> None:
    for param in click.get_current_context().command.params:
        if param.name in names and options.is_given(param.name):
            raise UserError(f"{param.opts[0]} {why}: leave it out")


def _examine_network(
    output: Output,
    device: str,
    cluster: Path | None,
    workers: int,
    config: "NamedConfig | None",
    fault: dict[str, float],
) -> bool:
    from p4sgd.host.devices import CLUSTER, DEVICES, open_device

    if not DEVICES[device].has_network:
        others = ", ".join(known for known, kind in DEVICES.items() if kind.has_network)
        raise UserError(f"--device {device} has no network to examine; these have: {others}")
    with output.opening(device):
        from p4sgd.host.doctor import examine
        from p4sgd.host.serve.local_cluster import note_ended

        how: dict[str, Any] = dict(fault)
        file = find_cluster_file(device, cluster)
        if file is not None:
            from p4sgd.host.aggregators.cluster_file import read_cluster

            _refuse_given(
                "workers", "config", "settings", "fault", why=f"is for simulated clusters, not for --device {CLUSTER}"
            )
            how["cluster"] = found = read_cluster(file)
            workers, config = len(found.workers), None
        try:
            opened = open_device(device, None if config is None else config.config, workers, **how)
        except (UserError, P4sgdError) as error:
            note_ended(error)
            raise
    with contextlib.closing(opened), output.working("examining the network"):
        examination = examine(opened)
    healthy, complete = examination.healthy, examination.complete
    chosen = None if config is None else str(config)
    facts = {"device": device, "workers": workers, "config": chosen, "healthy": healthy, "complete": complete}
    _show(output, facts, "worker", [(finding.worker, finding) for finding in examination.findings])
    if not complete:
        output.say("checks that depend on these were left out")
    return healthy


def _test_boards(output: Output, xclbin: Path, boards: Sequence[str], *, size: int, loopback: bool) -> bool:
    from p4sgd.host.boards.xrt import XrtAddress, find_boards, parse_device
    from p4sgd.host.doctor import Finding, Result
    from p4sgd.host.doctor.card import examine_card
    from p4sgd.host.doctor.selftest import examine_self_test, open_self_test

    found = list(boards) or [str(board) for board in find_boards() if board.is_ready]
    if not found:
        raise UserError("no board of this machine is ready: p4sgd info lists them, --board names one")
    findings: list[tuple[str, Finding]] = []
    for address in [XrtAddress(device, xclbin, unit) for device, unit in map(parse_device, found)]:
        with output.working(f"testing {address}"):
            try:
                with open_self_test(address) as test:
                    examined = examine_self_test(test, size=size, frames=_FRAMES, loopback=loopback)
                    examined += examine_card(None, address)  # when it has worked
            except P4sgdError as error:  # the other boards are tested all the same
                examined = [Finding(None, "board", Result.FAILED, {}, str(error))]
        findings += [(str(address), finding) for finding in examined]
    healthy = all(finding.result is not Result.FAILED for _, finding in findings)
    _show(output, {"self_test": str(xclbin), "healthy": healthy}, "board", findings)
    return healthy


def _show(
    output: Output, facts: Mapping[str, Any], column: str, findings: Sequence[tuple[int | str | None, "Finding"]]
) -> None:
    """Print findings, each with whom it is of (None: of all), as a document after some facts, as a table, as sentences.

    ``column`` is what to call those whom they are of.
    """
    documents, rows = [], []
    for who, each in findings:
        problem = {"problem": each.problem, "remedy": each.remedy, "evidence": each.evidence}
        documents.append({column: who, "check": each.check, "result": each.result.value, **problem})
        evidence = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in each.evidence.items())
        rows.append(["all" if who is None else str(who), each.check, each.result.value, evidence])
    output.document({**facts, "findings": documents})
    output.table([column, "check", "result", "evidence"], rows, texts=4, wraps=True)
    for who, each in findings:
        if each.problem:
            subject = "" if who is None else f"{column} {who}: "
            output.say(f"{each.result.value}: {subject}{': '.join(filter(None, [each.problem, each.remedy]))}")
