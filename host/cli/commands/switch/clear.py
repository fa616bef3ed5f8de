"""The command `p4sgd switch clear`."""

from pathlib import Path

import click

from p4sgd.host.cli.commands.switch.reaching import cluster_option, controller_of
from p4sgd.host.cli.options import common_options
from p4sgd.host.cli.output import Output
from p4sgd.host.errors import UserError

__all__ = ["clear"]


@click.command()
@cluster_option
@click.option("--job", type=click.IntRange(0, 255), help="Number of the job; needed where several are served.")
@click.option("--end", is_flag=True, help="Serve it no longer, instead of from the beginning.")
@click.option(
    "--first-round",
    type=click.IntRange(0, 65535),
    default=1,
    show_default=True,
    help="Round that the job begins with again.",
)
@common_options
def clear(path: Path, job: int | None, end: bool, first_round: int, as_json: bool, quiet: bool) -> None:
    """Begin a job anew, with all slots fresh, or end it.

    A run of the job that is under way is lost either way: the aggregator drops what its workers send until they give
    up, and p4sgd train says so; p4sgd train --resume goes on from the checkpoint. A run that comes later is not
    touched, as it has the aggregator begin a job of its own.
    """
    output = Output(as_json=as_json, quiet=quiet)
    with controller_of(path) as (_, controller):
        served = {each.number: (place, each) for place, each in controller.served().items()}
        known = ", ".join(map(str, sorted(served))) or "none"
        if job is None and len(served) != 1:
            raise UserError(f"say which job by --job; those that are served: {known}")
        number = next(iter(served)) if job is None else job
        if number not in served:
            raise UserError(f"--job {number}: it is not served; those that are: {known}")
        place, found = served[number]
        if end:
            controller.end(place)
        else:
            controller.begin(place, found, first_round)
    output.document({"place": place, "job": number, "done": "ended" if end else "begun"})
    output.say(
        f"job {number} in place {place} {'has ended' if end else f'begins anew in round {first_round}'}; "
        f"a run of it that was under way is lost"
    )
