"""The command `p4sgd switch status`."""

import time
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from p4sgd.host.cli.commands.switch.reaching import cluster_option, control_of, controller_of
from p4sgd.host.cli.options import common_options
from p4sgd.host.cli.output import Output

if TYPE_CHECKING:
    from p4sgd.host.switch.cluster_file import Cluster
    from p4sgd.host.switch.progress import JobProgress, WaitingSlot
    from p4sgd.hw.spec.job import Job

__all__ = ["status"]

_MOST_LINES = 20
"""Lines about slots of one job; the rest is counted."""


@click.command()
@cluster_option
@click.option(
    "--interval",
    type=click.FloatRange(0, 3600),
    default=1.0,
    show_default=True,
    help="Seconds between the two looks.",
)
@common_options
def status(path: Path, interval: float, as_json: bool, quiet: bool) -> None:
    """Show the jobs of an aggregator, and what they wait for.

    Looks at all slots twice. A slot that is under way both times and did not move waits for somebody: what follows the
    table says for which slots and rounds which shards have not arrived, or not acknowledged the sums, and where their
    workers are. A slot that two looks find alike may also have been used again and again; that takes 65,536 rounds.
    """
    from p4sgd.host.switch.progress import look_at_jobs, watch

    output = Output(as_json=as_json, quiet=quiet)
    with controller_of(path) as (cluster, controller), output.working("looking at the slots"):
        before = look_at_jobs(controller)
        time.sleep(interval)
        found = watch(before, controller)
        size = {"slots": controller.slots, "places": controller.jobs}
    output.document(size | {"jobs": [_job_document(cluster, each) for each in found]})
    if not found:
        output.say("no job is served")
        return
    rows = [
        (
            str(each.place),
            str(each.job.number),
            str(len(each.job.members)),
            f"{len(each.under_way):,}",
            f"{len(each.stuck):,}",
        )
        for each in found
    ]
    output.table(["place", "job", "workers", "slots under way", "that did not move"], rows, texts=0)
    for each in found:
        for line in _sentences(cluster, each):
            output.say(line)


def _job_document(cluster: "Cluster", each: "JobProgress") -> dict[str, Any]:
    members = each.job.members
    return {
        "place": each.place,
        "job": each.job.number,
        "workers": len(members),
        "under_way": len(each.under_way),
        "stuck": [
            {
                "slot": slot.slot,
                "round": slot.round,
                "partials_missing": list(slot.partials),
                "acknowledgements_missing": list(slot.acknowledgements),
            }
            for slot in each.stuck
        ],
        "missing": [
            {"shard": shard, "control": control_of(cluster, each.job, shard), "port": members[shard].port}
            for shard in sorted({shard for slot in each.stuck for shard in (*slot.partials, *slot.acknowledgements)})
        ],
    }


def _sentences(cluster: "Cluster", each: "JobProgress") -> list[str]:
    """What the slots that did not move wait for; neighbours that wait for the same in one line."""

    def alike(item: "tuple[int, WaitingSlot]") -> tuple[object, ...]:
        index, slot = item
        return slot.slot - index, slot.round, slot.partials, slot.acknowledgements

    lines = []
    for _, group in groupby(enumerate(each.stuck), alike):
        slots = [slot for _, slot in group]
        first, last = slots[0], slots[-1]
        which = f"slot {first.slot}" if first is last else f"slots {first.slot} to {last.slot}"
        who = ", ".join(_who(cluster, each.job, shard) for shard in (*first.partials, *first.acknowledgements))
        what = "no partials have arrived from" if first.partials else "the sums are not acknowledged by"
        lines.append(f"job {each.job.number}, {which}, round {first.round}: {what} {who}")
    if len(lines) > _MOST_LINES:
        left = len(lines) - _MOST_LINES
        return [*lines[:_MOST_LINES], f"and {left} more lines of this kind: p4sgd switch slots lists all"]
    return lines


def _who(cluster: "Cluster", job: "Job", shard: int) -> str:
    control = control_of(cluster, job, shard)
    return f"shard {shard} ({f'{control}, ' if control else ''}port {job.members[shard].port})"
