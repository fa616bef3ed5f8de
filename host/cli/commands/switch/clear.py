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
@common_options
def clear(path: Path, job: int | None, as_json: bool, quiet: bool) -> None:
    """End a job, so that its place and its number are free.

    A run of the job that is under way is lost: the aggregator drops what its workers send until they give up, and
    p4sgd train says so; p4sgd train --resume goes on from the checkpoint, in a job of another number.
    """
    output = Output(as_json=as_json, quiet=quiet)
    with controller_of(path) as (_, controller):
        served = {each.number: place for place, each in controller.served().items()}
        known = ", ".join(map(str, sorted(served))) or "none"
        if job is None and len(served) != 1:
            raise UserError(f"say which job by --job; those that are served: {known}")
        number = next(iter(served)) if job is None else job
        if number not in served:
            raise UserError(f"--job {number}: it is not served; those that are: {known}")
        place = served[number]
        controller.end(place)
    output.document({"place": place, "job": number})
    output.say(f"job {number} in place {place} has ended; a run of it that was under way is lost")
