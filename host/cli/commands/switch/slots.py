"""The command `p4sgd switch slots`."""

from pathlib import Path

import click

from p4sgd.host.cli.commands.switch.reaching import cluster_option, controller_of
from p4sgd.host.cli.options import common_options
from p4sgd.host.cli.output import Output

__all__ = ["slots"]


@click.command()
@cluster_option
@common_options
def slots(path: Path, as_json: bool, quiet: bool) -> None:
    """List the slots that are under way.

    Those are the slots that have some partials of their round and not yet everybody's acknowledgement. Shards that have
    not arrived, or not acknowledged, are listed by their numbers.
    """
    from p4sgd.host.switch.progress import look_at_jobs

    output = Output(as_json=as_json, quiet=quiet)
    with controller_of(path) as (_, controller):
        found = [(place, job, slot) for (place, job), seen in look_at_jobs(controller).items() for slot in seen]
    output.document(
        {
            "slots": [
                {
                    "place": place,
                    "job": job.number,
                    "slot": slot.slot,
                    "round": slot.round,
                    "aggregated": slot.aggregated,
                    "acknowledged": slot.acknowledged,
                    "partials_missing": list(slot.partials),
                    "acknowledgements_missing": list(slot.acknowledgements),
                }
                for place, job, slot in found
            ]
        }
    )
    if not found:
        output.say("no slot is under way")
        return
    columns = ["place", "job", "slot", "round", "not arrived", "not acknowledged"]
    rows = [
        (
            str(place),
            str(job.number),
            str(slot.slot),
            str(slot.round),
            _list(slot.partials),
            _list(slot.acknowledgements),
        )
        for place, job, slot in found
    ]
    output.table(columns, rows, texts=0)


def _list(shards: tuple[int, ...]) -> str:
    return " ".join(map(str, shards)) or "-"
