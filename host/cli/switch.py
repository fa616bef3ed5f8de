"""The command `p4sgd switch`: building, loading and running aggregators, and showing what they do."""

import contextlib
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from p4sgd.host.cli import options
from p4sgd.host.cli.build import writing
from p4sgd.host.cli.output import Output
from p4sgd.host.cli.serve import serve
from p4sgd.host.errors import P4sgdError, UserError

if TYPE_CHECKING:
    from p4sgd.host.aggregators.cluster_file import AggregatorAddress, Cluster
    from p4sgd.host.aggregators.controller import Controller, WaitingSlot
    from p4sgd.host.aggregators.tables import TableController
    from p4sgd.hw.spec.job import Job

_MOST_LINES = 20
"""Lines of `status` about the waiting slots of a job."""

_SWITCHES = ("bmv2", "tofino")
"""Kinds of aggregators that run a P4 program."""

_cluster_option = options.path(
    "--cluster",
    "FILE.toml",
    "File with the addresses of the aggregator and the workers, by default that of the local cluster (p4sgd cluster "
    "up).",
)


def _read_cluster(file: Path | None) -> "tuple[Path, Cluster]":
    from p4sgd.host.aggregators.cluster_file import read_cluster
    from p4sgd.host.serve.local_cluster import local_cluster_file

    file = file or local_cluster_file()
    return file, read_cluster(file)


@contextlib.contextmanager
def _controller_of(file: Path | None) -> "Iterator[tuple[Cluster, Controller]]":
    from p4sgd.host.aggregators.opening import open_controller

    _, cluster = _read_cluster(file)
    with contextlib.closing(open_controller(cluster)) as controller:
        yield cluster, controller


@click.group()
def switch() -> None:
    """Build, load or run an aggregator, or show what it does."""


switch.add_command(serve)


@switch.command()
@click.option(
    "--target",
    type=options.NameFrom("target", _SWITCHES),
    required=True,
    help="Switch that runs the program: BMv2's simple_switch, or a Tofino.",
)
@click.option("--slots", default=4096, help="AllReduce operations that a job can have in flight, a power of two.")
@click.option("--jobs", default=4, help="Number of jobs at the same time, a power of two.")
@options.folder
@options.common
def build(target: str, slots: int, jobs: int, out: Path, output: Output) -> None:
    """Write the P4 program of a switch.

    For BMv2 it is compiled too if p4c-bm2-ss is there, on the path or where the environment variable P4SGD_P4C says.
    """
    with output.working(f"making the program for {target}"):
        from p4sgd.build.generate import switch_program as switch
        from p4sgd.hw.spec.aggregator import AggregatorConfig

        try:
            config = AggregatorConfig(slots=slots, jobs=jobs)
        except ValueError as error:
            raise UserError(f"--{error}") from error
        with writing(out):
            try:
                files, is_compiled = switch.build(target, config, out)
            except switch.TooManySlotsError as error:
                raise UserError(f"--slots times --jobs: {error}") from error
            except switch.CompilerError as error:
                raise P4sgdError(str(error)) from error
    how, commands = switch.TARGETS[target], []
    if not is_compiled:
        commands = [" && ".join([f"cd {shlex.quote(str(out))}", *map(shlex.join, how.commands(out)), "cd -"])]
    if target == "bmv2":
        commands += [
            # The buffer of its libpcap has 32 frames of 64 KiB otherwise, fewer than a worker sends at once.
            "for port in eth0 eth1; do ethtool -K $port tso off gso off gro off; done",
            "simple_switch_grpc --no-p4 -i 0@eth0 -i 1@eth1 -- --grpc-server-addr 127.0.0.1:9559 --cpu-port 510",
        ]
    else:
        # By name, run_switchd.sh looks in the folder where the SDE installs programs.
        configuration = out.resolve() / "tofino" / f"{Path(how.program).stem}.conf"
        commands.append(f"$SDE/run_switchd.sh -c {shlex.quote(str(configuration))}")
    commands.append("p4sgd switch deploy --cluster cluster.toml")
    output.written({"target": target, "out": str(out), "compiled": is_compiled, "next": commands}, files)
    for line in ("next, with the cluster's own interfaces and addresses:", *(f"  {command}" for command in commands)):
        output.say(line)


@switch.command()
@_cluster_option
@options.common
def deploy(cluster: Path | None, output: Output) -> None:
    """Load the program of a switch, or of all P4 switches if there are racks.

    The cluster file names the switch and the folder with its program, made by p4sgd switch build. The switch loses all
    jobs. Frames of other protocols are forwarded between the ports with workers, between the levels, and those of
    [[aggregator.ports]]: to the port that the file has for the destination, otherwise to all but the one of arrival.

    A Tofino loads its program when bf_switchd starts and keeps its jobs: this command checks that the program runs and
    sets up forwarding. hw/switch/README.md explains how to add and enable its ports.
    """
    from p4sgd.hw.spec.packet import mac_text

    file, described = _read_cluster(cluster)
    everyone = {"aggregator": described.aggregator}
    everyone |= {f"racks[{rack}]": each for rack, each in enumerate(described.racks)}
    switches = {key: each for key, each in everyone.items() if each.kind in _SWITCHES}
    if not switches:
        kind = described.aggregator.kind
        raise UserError(f"{file}: aggregator.kind: an aggregator of kind {kind} has no program to load")
    documents = []
    for key, address in switches.items():
        ports = sorted(described.ports_of(address) | {there.port for there in address.ports})
        stations = {int(station): there.port for there in address.ports for station in there.stations}
        loading = _loaded(f"{file}: {key}", address)
        with output.working(f"loading {address.control}"), contextlib.closing(loading) as controller:
            controller.set_forwarding(ports, stations)
            controller.set_mac(address.address)
            slots, jobs = controller.slots, controller.jobs
        named = {mac_text(station): port for station, port in stations.items()}
        sizes = {"slots": slots, "jobs": jobs}
        documents.append({"switch": address.control} | sizes | {"ports": ports, "stations": named})
        output.say(f"{address.control} runs the program: {jobs} jobs of {slots:,} slots each")
    output.document({"switches": documents})


def _loaded(where: str, aggregator: "AggregatorAddress") -> "TableController":
    if aggregator.kind == "tofino":
        from p4sgd.host.aggregators.bfruntime import BfRuntimeController

        return BfRuntimeController(aggregator.control, device_id=aggregator.device_id)
    if aggregator.program is None:
        raise UserError(f"{where}.program: is missing: the folder that p4sgd switch build has made")
    from p4sgd.host.aggregators.tables import read_program

    program = read_program(aggregator.program, aggregator.kind)
    from p4sgd.host.aggregators.p4runtime import P4RuntimeController  # needs finsy

    controller = P4RuntimeController(aggregator.control, device_id=aggregator.device_id, tls=aggregator.tls)
    controller.deploy(program)
    return controller


@switch.command()
@_cluster_option
@click.option("--interval", type=click.FloatRange(0, 3600), default=1.0, help="Seconds between the two readings.")
@options.common
def status(cluster: Path | None, interval: float, output: Output) -> None:
    """Show the jobs of an aggregator, and what they wait for.

    All slots are read twice. A slot that is active both times, in the same state, is waiting: lines below the table
    name the slot and its round, the shards whose partials or acknowledgements are missing, and the addresses of their
    workers. In rare cases such a slot is not waiting but was used 65,536 rounds, or a multiple, in between.

    A program ends its job when it ends, unless it is killed. An aggregator does not know of programs: packets that it
    has accepted between the readings show whether the workers are at work. Tofino does not count them for each job.
    """
    from p4sgd.host.aggregators.controller import read_active_slots
    from p4sgd.hw.spec.aggregator import job_counters

    with _controller_of(cluster) as (described, controller), output.working("reading the slots"):
        before = read_active_slots(controller)
        counted = controller.counters()
        time.sleep(interval)
        counts = controller.counters()  # before the slots: some aggregators show these by answering probes
        found = read_active_slots(controller)
        size = {"slots": controller.slots, "places": controller.jobs}
    jobs = []
    for (place, served), under_way in found.items():
        name = next(iter(job_counters(place)))
        packets = counts[name] - counted[name] if name in counts else None
        seen = set(before.get((place, served), []))
        stuck = [slot for slot in under_way if slot in seen]
        of_job = {"place": place, "job": served.number, "workers": len(served.members), "under_way": len(under_way)}
        jobs.append(of_job | {"packets_accepted": packets} | _stuck_document(described, served, stuck))
    output.document(size | {"jobs": jobs})
    if not found:
        output.say("no job is served")
        return
    shown = [job | {"slots_under_way": job["under_way"], "that_did_not_move": len(job["stuck"])} for job in jobs]
    names = ("place", "job", "workers", "slots_under_way", "that_did_not_move", "packets_accepted")
    output.records(shown, names, texts=0)
    for job in jobs:
        for line in _sentences(job, udp=described.udp):
            output.say(line)
        if interval and job["packets_accepted"] == 0:
            output.say(
                f"no packets of job {job['job']} were accepted in {interval:g} s: its workers wait, its program "
                f"is busy otherwise, or was killed: then p4sgd switch clear --job {job['job']} ends the job"
            )


def _stuck_document(cluster: "Cluster", job: "Job", stuck: Sequence["WaitingSlot"]) -> dict[str, Any]:
    from p4sgd.host.links.udp import address_text

    known = {(worker.local_mac, worker.port): worker for worker in cluster.workers}
    members = {shard: job.members[shard] for slot in stuck for shard in (*slot.partials, *slot.acknowledgements)}
    return {
        "stuck": [_slot_document(slot) for slot in stuck],
        "missing": [
            {
                "shard": shard,
                "control": None if worker is None else worker.control,  # None: not in the cluster file
                "address": address_text(member.mac, udp=cluster.udp),
                "port": member.port,
            }
            | ({} if worker is None or worker.rack is None else {"rack": worker.rack})
            for shard, member in sorted(members.items())
            for worker in [known.get((member.mac, member.port))]
        ],
    }


def _slot_document(slot: "WaitingSlot") -> dict[str, Any]:
    missing = {"partials_missing": list(slot.partials), "acknowledgements_missing": list(slot.acknowledgements)}
    return {"slot": slot.slot, "round": slot.round, **missing}


def _sentences(job: Mapping[str, Any], *, udp: bool) -> Iterator[str]:
    """What the waiting slots of a job's document wait for; slots in a row that wait for the same share a line."""
    who = {}
    for worker in job["missing"]:
        where = worker["address"] if udp else f"port {worker['port']}"
        if "rack" in worker:
            where += f" of rack {worker['rack']}"
        who[worker["shard"]] = f"shard {worker['shard']} ({', '.join(filter(None, [worker['control'], where]))})"
    runs = groupby(enumerate(job["stuck"]), lambda item: {**item[1], "slot": item[1]["slot"] - item[0]})
    for _, group in islice(runs, _MOST_LINES):
        slots = [slot for _, slot in group]
        first, last = slots[0], slots[-1]
        which = f"slot {first['slot']}" if first is last else f"slots {first['slot']} to {last['slot']}"
        partials, shards = first["partials_missing"], first["partials_missing"] + first["acknowledgements_missing"]
        what = "no partials have arrived from" if partials else "the sums are not acknowledged by"
        whom = ", ".join(who[shard] for shard in shards)
        yield f"job {job['job']}, {which}, round {first['round']}: {what} {whom}"
    if any(True for _ in runs):
        yield "and more of this kind: --json lists all"


@switch.command()
@_cluster_option
@options.common
def counters(cluster: Path | None, output: Output) -> None:
    """Show the counters of an aggregator.

    Counters start at 0 when the aggregator starts. The table leaves out those that are 0; --json has all. If there are
    racks, these are the sums, and those of each aggregator follow.
    """
    from p4sgd.host.aggregators.tree import Tree
    from p4sgd.hw.spec.aggregator import COUNTERS, KEYED_COUNTERS, PARENT_COUNTERS, job_counters

    with _controller_of(cluster) as (_, controller):
        counted = {"": controller.counters()}
        if isinstance(controller, Tree):
            counted |= {name: part.counters() for name, part in controller.parts.items()}
        meanings = COUNTERS | PARENT_COUNTERS | KEYED_COUNTERS
        for place in range(controller.jobs):
            meanings |= job_counters(place)
    parts = {name: counts for name, counts in counted.items() if name}
    output.document({"counters": counted[""]} | ({"parts": parts} if parts else {}))
    for part, counts in counted.items():
        rows = [[name, count, meanings.get(name)] for name, count in counts.items() if count]
        output.table([f"{part}: counter" if part else "counter", "count", "what it counts"], rows, texts=3)


@switch.command()
@_cluster_option
@options.count("--job", 0, "Number of the job; needed where several are served.", most=255)
@options.common
def clear(cluster: Path | None, job: int | None, output: Output) -> None:
    """End a job, so that its place and its number are free again.

    If the job has a run under way, that run is lost: the aggregator drops its workers' packets until they give up, and
    p4sgd train fails. p4sgd train --resume then continues from the checkpoint, as a new job.
    """
    with _controller_of(cluster) as (_, controller):
        served = {each.number: place for place, each in controller.served().items()}
        known = ", ".join(map(str, sorted(served))) or "none"
        if job is None and len(served) != 1:
            raise UserError(f"choose a job with --job; jobs that are served: {known}")
        number = next(iter(served)) if job is None else job
        if number not in served:
            raise UserError(f"--job {number}: is not served; jobs that are served: {known}")
        place = served[number]
        controller.end(place)
    output.document({"place": place, "job": number})
    output.say(f"job {number} in place {place} has ended; a run of it that was under way is lost")
