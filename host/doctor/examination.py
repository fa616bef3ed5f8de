"""The examination of a cluster: all checks in order; of identities, paths to the aggregator and back, and settings.

"Up" is the direction to the aggregator, "down" that to the worker.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median

from p4sgd.host.aggregators.controller import Controller
from p4sgd.host.aggregators.tree import Tree
from p4sgd.host.devices.cluster import ClusterDevice
from p4sgd.host.devices.device import WAIT_LIMIT, Device, NetworkSettings, WorkerName, client_of, names_of
from p4sgd.host.devices.diagnosis import PROBES, Echo, probe
from p4sgd.host.devices.merging import why_no_more
from p4sgd.host.devices.session import Session
from p4sgd.host.doctor.allreduce import Trial, examine_allreduce
from p4sgd.host.doctor.card import examine_card
from p4sgd.host.doctor.ethernet import examine_ethernet
from p4sgd.host.doctor.finding import Evidence, Examination, Finding, Problem, Result, judge
from p4sgd.host.doctor.racks import count_parts, examine_racks
from p4sgd.host.links.udp import address_text
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import CLOCK_NS, WorkerConfig
from p4sgd.hw.spec.packet import KEYED_VERSION, VERSION, DropReason
from p4sgd.hw.spec.register_map import RegisterClient

_DOUBLINGS, _RESENDS = 3, 24
"""Resends of the workers during an examination: in all 183 times the first wait, and enough for a lossy network."""

_LONGEST_FIRST_WAIT = (WAIT_LIMIT - 1) >> _DOUBLINGS
"""The largest RESEND_CYCLES that may double so often, about a second."""

_ROUND_TRIPS = 2
"""Round trips that should fit into RESEND_CYCLES, as a packet may have to wait for others on the way."""

_DEAD_SHARE = 0.9
"""Share of lost probes at which a link fails: every AllReduce would need tens of packets. A link that loses half of the
round trips reaches it by chance once in a million times."""

_DROPS_OF_PROBES = (
    DropReason.RUNT,
    DropReason.LONG,
    DropReason.ETHERTYPE,
    DropReason.VERSION,
    DropReason.RESERVED,
    DropReason.TYPE,
)
"""The reasons for which an aggregator drops a probe. It answers all others, whatever the worker's settings."""


def examine(device: Device, network: NetworkSettings | None = None) -> Examination:
    """Find out what is wrong with the network of a cluster, which has an aggregator; the caller closes it.

    The workers are identified, join a job as for training, and probe the aggregator. Then they train together. Their
    memories are overwritten, and their last job ends. ``network`` tells how the workers find the aggregator, by default
    as the device does; resends are chosen here.
    """
    names = names_of(device, len(device.workers))
    findings: list[Finding] = []
    for found in _stages(device, network or device.network_settings or NetworkSettings(), names):
        findings += [each if each.worker is None else replace(each, worker=names[each.worker].number) for each in found]
        if any(each.result is Result.FAILED for each in found):
            break
    complete = any(each.check == "allreduce" for each in findings)
    late = Problem("it is not there yet; training begins without it and takes it in when it comes", "", Result.LATE)
    for name in device.absent:
        findings += judge(name.number, "worker", _address_of(name), late)
    return Examination(tuple(findings), complete)


def _stages(device: Device, network: NetworkSettings, names: Sequence[WorkerName]) -> Iterator[list[Finding]]:
    """Findings about the workers that are there, by shard: of checks that depend on those before."""
    aggregator = device.aggregator
    assert aggregator is not None
    network = _with_first_wait(network, round(network.slack_s * 1e9) // CLOCK_NS)
    clients = [client_of(worker) for worker in device.workers]
    findings = [_examine_worker(*each) for each in zip(range(len(names)), names, clients, strict=True)]
    boards = device.boards if isinstance(device, ClusterDevice) else {}
    findings += [found for shard, board in sorted(boards.items()) for found in examine_card(shard, board.address)]
    yield findings + examine_ethernet(boards, aggregator)
    session = Session(device, network)
    trial = Trial(device, session)
    links, settings, patience = list[Finding](), list[Finding](), 0
    for shard, (client, worker) in enumerate(zip(clients, device.workers, strict=True)):
        link, echo = _examine_link(shard, client, worker.config, aggregator, network)
        links.append(link)
        if echo is not None:
            settings += _examine_settings(shard, client, worker.config, echo, session)
            patience = max(patience, _ROUND_TRIPS * echo.cycles)
    yield links + settings
    if network.resend_cycles < patience:  # so that every resend means a loss
        session = Session(device, _with_first_wait(network, patience))
        trial = Trial(device, session)
    why = why_no_more([client.read(registers.MERGE_MOST)["value"] for client in clients], aggregator.most, names)
    packets: Evidence = {"version": session.version, "micro_batches": max(1, session.most), "why": why}
    before = count_parts(aggregator) if isinstance(aggregator, Tree) else {}
    findings = examine_allreduce(session, trial, aggregator)
    if isinstance(aggregator, Tree):
        findings = [*examine_racks(aggregator, before), *findings]
    yield [*judge(None, "packets", packets), *findings]


def _with_first_wait(network: NetworkSettings, resend_cycles: int) -> NetworkSettings:
    """The settings for an examination, with a first wait of at least so many cycles, up to `_LONGEST_FIRST_WAIT`."""
    first_wait = min(max(network.resend_cycles, resend_cycles), _LONGEST_FIRST_WAIT)
    return replace(network, resend_cycles=first_wait, doublings=_DOUBLINGS, resends=_RESENDS)


def _address_of(name: WorkerName) -> dict[str, int | str]:
    return {"control": name.control} if name.control else {}


def _examine_worker(shard: int, name: WorkerName, client: RegisterClient) -> Finding:
    """Read the identity of a worker, and check that it is idle."""
    evidence = _address_of(name) | {
        "magic": f"{client.read(registers.MAGIC_WORD)['value']:#010x}",
        "version": client.read(registers.ABI)["value"],
        "config_hash": f"{client.read(registers.CONFIG_HASH)['value']:#010x}",
        "build_id": client.read(registers.BUILD_ID)["value"],
    }
    is_idle = client.read(registers.CTRL)["idle"]
    (found,) = judge(shard, "worker", evidence, None if is_idle else Problem("is busy with another run"))
    return found


def _examine_link(
    shard: int, client: RegisterClient, config: WorkerConfig, aggregator: Controller, network: NetworkSettings
) -> tuple[Finding, Echo | None]:
    """Probe the path of a worker to the aggregator and back, whose counters tell the losses of either way.

    Returns the last answer, too, with the median of all times. Probes are about the worker's last slot: an aggregator
    with fewer slots lacks it.
    """
    before, sent = aggregator.counters(), PROBES
    numbers, slot, echo_s = range(1, 1 + PROBES), config.slots - 1, network.echo_s
    asked = [probe(client, slot=slot, number=number, echo_s=echo_s) for number in numbers]
    echoes = [echo for echo in asked if echo is not None]
    # Frames of other jobs are among those counted, but they are no probes: ECHOES is the number of probes that arrived.
    counted = {name: count - before.get(name, 0) for name, count in aggregator.counters().items()}
    drops = {drop: count for drop in _DROPS_OF_PROBES if (count := counted.get(f"DROPPED_{drop.name}"))}
    evidence: dict[str, int | str] = {"probes": sent, "echoes": len(echoes)}
    echo = None
    if echoes:
        echo = replace(echoes[-1], cycles=round(median(echo.cycles for echo in echoes)))
        evidence |= {"cycles": echo.cycles, "ns": echo.cycles * CLOCK_NS, "port": echo.port}
    if len(echoes) < sent:
        evidence |= {"aggregator_frames": counted["FRAMES"], "aggregator_echoes": counted["ECHOES"]}
        evidence |= {f"aggregator_dropped_{drop.name.lower()}": count for drop, count in drops.items()}
    why = _why_lossy(sent, len(echoes), counted) if echoes else _why_silent(sent, counted, drops)
    (finding,) = judge(shard, "link", evidence, why)
    return finding, echo


def _why_lossy(sent: int, answered: int, counted: Mapping[str, int]) -> Problem | None:
    if not (lost := 1 - answered / sent):
        return None
    arrived = min(counted["ECHOES"], sent)  # another worker may have sent probes too
    up, down = sent - arrived, max(0, arrived - answered)
    return Problem(
        f"{lost:.0%} of the probes or their echoes are lost: {up} of {sent} on the way up, {down} of {arrived} on the "
        "way down",
        "check the link for bit errors, and the network for congestion",
        Result.FAILED if lost >= _DEAD_SHARE else Result.WARNING,
    )


def _why_silent(sent: int, counted: Mapping[str, int], drops: Mapping[DropReason, int]) -> Problem:
    if counted["ECHOES"]:
        return Problem(
            "the aggregator answers, but nothing comes back: the way down is dead",
            "check the ports that frames for its LOCAL_MAC leave the network by, its cable, and its receiver",
        )
    why = max(drops, key=drops.__getitem__, default=None)
    if why is None or drops[why] < sent / 2:
        return Problem(
            "nothing that it sends comes to the aggregator: the way up is dead",
            "check the worker's transmitter, its cable, and the ports that its frames enter the network by",
        )
    return Problem(
        f"the aggregator drops what it sends: it is {why.help}",
        "check that both were generated by the same version of p4sgd, and the way up for bit errors",
    )


def _examine_settings(
    shard: int, client: RegisterClient, config: WorkerConfig, echo: Echo, session: Session
) -> list[Finding]:
    """Compare a worker's settings with the aggregator's, as its echo about the worker's last slot has them."""
    who, text = client.read(registers.JOB), partial(address_text, udp=session.network.udp)
    local, expected = text(client.read_pair(registers.LOCAL_MAC)), text(echo.expected)
    evidence: dict[str, int | str] = {"job": who["job"], "shard": who["shard"], "workers": who["workers"]}
    evidence |= {"slots": config.slots, "version": session.version, "port": echo.port, "address": local}
    problems = [_why_dropped(check, who["shard"], config, echo) for check in echo.failed]
    highest = KEYED_VERSION if client.read(registers.MERGE_MOST)["value"] else VERSION
    if not session.version <= echo.version <= highest:
        other = Problem(
            f"the aggregator speaks version {echo.version} of the packet format, the worker version {highest}",
            "generate both again with the same version of p4sgd",
        )
        problems.insert(0, other)
    if problems:
        evidence |= {"aggregator_workers": echo.workers, "aggregator_slots": echo.slots}
        evidence |= {"aggregator_version": echo.version, "aggregator_expects": expected}
    resend_cycles, needed = client.read(registers.RESEND_CYCLES)["value"], _ROUND_TRIPS * echo.cycles
    if resend_cycles < needed:
        evidence |= {"resend_cycles": resend_cycles, "cycles": echo.cycles}
        early = Problem(
            f"it sends packets again after {resend_cycles * CLOCK_NS / 1000:g} µs, less than {_ROUND_TRIPS} times the "
            f"{echo.cycles * CLOCK_NS / 1000:g} µs that an answer takes",
            f"let it wait {-(-needed * CLOCK_NS // 1000)} µs or more: resend_us of the cluster file",
            Result.WARNING,
        )
        problems.append(early)
    return judge(shard, "settings", evidence, *problems)


def _why_dropped(check: DropReason, shard: int, config: WorkerConfig, echo: Echo) -> Problem:
    """Problem of a worker whose packets fail a check of the aggregator. The job was begun for the examination, with the
    workers' addresses."""
    match check:
        case DropReason.SLOT:
            problem = f"the worker has {config.slots} slots, the aggregator only {echo.slots}"
            return Problem(problem, "generate the aggregator with at least as many slots")
        case DropReason.SOURCE:
            problem = f"it is behind port {echo.port}, the aggregator expects shard {shard} behind another"
            return Problem(problem, f"give port = {echo.port} in the cluster file, or move the cable")
        case _:
            problem = f"the aggregator drops what it sends: it is {check.help}"
            return Problem(problem, "try again while no other program uses the cluster: one has changed the job")
