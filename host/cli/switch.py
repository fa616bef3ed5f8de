"""The command `p4sgd switch`: aggregators of all kinds.

What the commands that ask an aggregator have in common: the cluster file, and the controller that it leads to.

The command `p4sgd switch build`.

The command `p4sgd switch deploy`.

The command `p4sgd switch status`.

The command `p4sgd switch slots`.

The command `p4sgd switch counters`.

The command `p4sgd switch clear`.

The command `p4sgd switch`: aggregators of all kinds.
"""

import contextlib
import shlex
import time
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from p4sgd.host.cli.options import common_options
from p4sgd.host.cli.output import Output
from p4sgd.host.cli.serve import serve
from p4sgd.host.errors import P4sgdError, UserError

if TYPE_CHECKING:
    from p4sgd.host.aggregators.cluster_file import AggregatorAddress, Cluster
    from p4sgd.host.aggregators.controller import Controller, JobProgress, WaitingSlot
    from p4sgd.host.aggregators.tables import TableController
    from p4sgd.hw.spec.job import Job

__all__ = [
    "build",
    "clear",
    "cluster_option",
    "control_of",
    "controller_of",
    "counters",
    "deploy",
    "slots",
    "status",
    "switch",
]


_Command = TypeVar("_Command", bound=Callable[..., Any])


def cluster_option(command: _Command) -> _Command:
    """Add ``--cluster``."""
    return click.option(
        "--cluster",
        "path",
        type=click.Path(dir_okay=False, path_type=Path),
        required=True,
        metavar="FILE.toml",
        help="File that says where the aggregator and the workers are.",
    )(command)


@contextlib.contextmanager
def controller_of(path: Path) -> "Iterator[tuple[Cluster, Controller]]":
    """What a cluster file says, and the controller of its aggregator as long as the block lasts."""
    from p4sgd.host.aggregators.cluster_file import read_cluster
    from p4sgd.host.aggregators.controller import open_controller

    cluster = read_cluster(path)
    with contextlib.closing(open_controller(cluster)) as controller:
        yield cluster, controller


def control_of(cluster: "Cluster", job: "Job", shard: int) -> str | None:
    """The control address of a shard's worker; None if it is none of the cluster file's."""
    known = {(worker.local_mac, worker.port): worker.control for worker in cluster.workers}
    member = job.members[shard]
    return known.get((member.mac, member.port))


@click.command()
@click.option(
    "--target",
    type=click.Choice(["bmv2", "tofino"]),
    required=True,
    help="Switch that runs the program: BMv2's simple_switch, or a Tofino.",
)
@click.option(
    "--slots",
    type=int,
    default=4096,
    show_default=True,
    help="AllReduce operations that a job has in flight, a power of two.",
)
@click.option(
    "--jobs",
    type=int,
    default=4,
    show_default=True,
    help="Jobs at a time, a power of two.",
)
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="DIR", help="Folder to write.")
@common_options
def build(target: str, slots: int, jobs: int, out: Path, as_json: bool, quiet: bool) -> None:
    """Write the P4 program of a switch.

    For BMv2 it is compiled too if p4c-bm2-ss is there, on the path or where the environment variable P4SGD_P4C says.
    DIR is written whole or not at all. An earlier output is replaced; a folder with other files in it is refused.
    """
    output = Output(as_json=as_json, quiet=quiet)
    with output.working(f"making the program for {target}"):
        from p4sgd.build.generate import switch_program as switch
        from p4sgd.build.generate.artifacts import ForeignFolderError
        from p4sgd.hw.spec.aggregator import AggregatorConfig

        try:
            config = AggregatorConfig(slots=slots, jobs=jobs)
        except ValueError as error:
            raise UserError(f"--{error}") from error
        try:
            files, is_compiled = switch.build(target, config, out)
        except switch.TooManySlotsError as error:
            raise UserError(f"--slots times --jobs: {error}") from error
        except ForeignFolderError as error:
            raise UserError(str(error)) from error
        except switch.CompilerError as error:
            raise P4sgdError(str(error)) from error
        except OSError as error:
            raise UserError(f"{out}: cannot write: {error.strerror or error}") from error
    commands = _next_commands(target, switch.TARGETS[target], out, is_compiled)
    output.document(
        {
            "target": target,
            "out": str(out),
            "files": [file.name for file in files],
            "compiled": is_compiled,
            "next": commands,
        }
    )
    output.table(["file", "bytes"], [(file.name, f"{file.stat().st_size:,}") for file in files])
    output.say("next, with the cluster's own interfaces and addresses:")
    for command in commands:
        output.say(f"  {command}")


def _next_commands(target: str, how: Any, out: Path, is_compiled: bool) -> list[str]:
    """What is left to do, in the order of doing."""
    compiling = [f"cd {shlex.quote(str(out))}", *map(shlex.join, how.commands(out)), "cd -"]
    commands = [] if is_compiled else [" && ".join(compiling)]
    if target == "bmv2":
        commands.append(
            "simple_switch_grpc --no-p4 -i 0@eth0 -i 1@eth1 -- --grpc-server-addr 127.0.0.1:9559 --cpu-port 510"
        )
    else:
        # By name it would look where the SDE's own build installs programs.
        configuration = out.resolve() / "tofino" / f"{Path(how.program).stem}.conf"
        commands.append(f"$SDE/run_switchd.sh -c {shlex.quote(str(configuration))}")
    return [*commands, "p4sgd switch deploy --cluster cluster.toml"]


@click.command()
@cluster_option
@common_options
def deploy(path: Path, as_json: bool, quiet: bool) -> None:
    """Load the program of a switch.

    The cluster file names the switch and, as program, the folder that p4sgd switch build has made. The switch forgets
    all jobs. Frames of other protocols go on between the ports that have workers behind them, and those of
    [[aggregator.ports]]: to the one that the file says a station is behind, otherwise to all but their own.

    A Tofino's program is loaded when its bf_switchd starts, and its jobs stay; here it is seen whether it runs, and the
    rest is done, but for its ports: hw/switch/README.md says how they are added and enabled.
    """
    output = Output(as_json=as_json, quiet=quiet)
    from p4sgd.host.aggregators.cluster_file import read_cluster
    from p4sgd.hw.spec.packet import mac_text

    cluster = read_cluster(path)
    aggregator = cluster.aggregator
    ports = sorted({worker.port for worker in cluster.workers} | {there.port for there in aggregator.ports})
    stations = {station: there.port for there in aggregator.ports for station in there.stations}
    with output.working(f"loading {aggregator.control}"), contextlib.closing(_loaded(path, aggregator)) as controller:
        controller.set_forwarding(ports, stations)
        controller.set_mac(aggregator.mac)
        slots, jobs = controller.slots, controller.jobs
    output.document(
        {
            "switch": aggregator.control,
            "slots": slots,
            "jobs": jobs,
            "ports": ports,
            "stations": {mac_text(station): port for station, port in stations.items()},
        }
    )
    output.say(f"{aggregator.control} runs the program: {jobs} jobs of {slots:,} slots each")


def _loaded(path: Path, aggregator: "AggregatorAddress") -> "TableController":
    """The controller of a switch that runs the program."""
    if aggregator.kind == "tofino":
        from p4sgd.host.aggregators.bfruntime import open_bfruntime

        return open_bfruntime(aggregator)
    if aggregator.kind != "bmv2":
        raise UserError(f"{path}: aggregator.kind: one of kind {aggregator.kind} has no program to load")
    if aggregator.program is None:
        raise UserError(f"{path}: aggregator.program: is missing: the folder that p4sgd switch build has made")
    from p4sgd.host.aggregators.tables import read_program

    program = read_program(aggregator.program, aggregator.kind)
    from p4sgd.host.aggregators.p4runtime import open_p4runtime

    controller = open_p4runtime(aggregator)
    controller.deploy(program)
    return controller


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
    from p4sgd.host.aggregators.controller import read_active_slots, read_progress

    output = Output(as_json=as_json, quiet=quiet)
    with controller_of(path) as (cluster, controller), output.working("looking at the slots"):
        before = read_active_slots(controller)
        time.sleep(interval)
        found = read_progress(before, controller)
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


@click.command()
@cluster_option
@common_options
def slots(path: Path, as_json: bool, quiet: bool) -> None:
    """List the slots that are under way.

    Those are the slots that have some partials of their round and not yet everybody's acknowledgement. Shards that have
    not arrived, or not acknowledged, are listed by their numbers.
    """
    from p4sgd.host.aggregators.controller import read_active_slots

    output = Output(as_json=as_json, quiet=quiet)
    with controller_of(path) as (_, controller):
        found = [(place, job, slot) for (place, job), seen in read_active_slots(controller).items() for slot in seen]
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


@click.command()
@cluster_option
@common_options
def counters(path: Path, as_json: bool, quiet: bool) -> None:
    """Show what an aggregator has counted.

    Counters count from its start on. The table leaves out those that are 0; --json has them all.
    """
    from p4sgd.hw.spec.aggregator import COUNTERS, job_counters

    output = Output(as_json=as_json, quiet=quiet)
    with controller_of(path) as (_, controller):
        counted = controller.counters()
        meanings = dict(COUNTERS)
        for place in range(controller.jobs):
            meanings |= job_counters(place)
    output.document({"counters": counted})
    rows = [(name, f"{count:,}", meanings.get(name, "")) for name, count in counted.items() if count]
    output.table(["counter", "count", "what it counts"], rows, texts=3)


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


@click.group()
def switch() -> None:
    """Build, load or be a switch, or see what one does."""


for _command in (build, deploy, serve, status, slots, counters, clear):
    switch.add_command(_command)
