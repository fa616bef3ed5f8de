"""The examination of a cluster: all checks in order, with those of identities and settings."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from p4sgd.host.aggregators.controller import Controller
from p4sgd.host.devices.device import WAIT_LIMIT, Device, NetworkSettings, WorkerName, client_of, names_of
from p4sgd.host.devices.diagnosis import Echo
from p4sgd.host.devices.identification import find_identity_problem
from p4sgd.host.devices.merging import MergeLimit
from p4sgd.host.devices.session import Session
from p4sgd.host.doctor.allreduce import SelfTest, examine_allreduce
from p4sgd.host.doctor.ethernet import examine_ethernet
from p4sgd.host.doctor.finding import Examination, Finding, Problem, Result, judge
from p4sgd.host.doctor.link import NEEDED_COUNTERS, examine_link, locate_loss, read_arrived_partials
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import CLOCK_NS, WorkerConfig
from p4sgd.hw.spec.packet import GROUP_BIT, KEYED_VERSION, VERSION, DropReason
from p4sgd.hw.spec.register_map import RegisterClient

_DOUBLINGS, _RESENDS = 3, 24
"""Resends of the workers during an examination: in all 183 times the first wait, and enough for a lossy network."""

_LONGEST_FIRST_WAIT = (WAIT_LIMIT - 1) >> _DOUBLINGS
"""The largest RESEND_CYCLES that may double so often, about a second."""

_ROUND_TRIPS = 2
"""Round trips that should fit into RESEND_CYCLES, as a packet may have to wait for others on the way."""


def examine(device: Device, network: NetworkSettings | None = None) -> Examination:
    """Find out what is wrong with the network of a cluster, which the caller closes.

    The workers are identified, join a job as for training, and probe the aggregator. Then they train together. Their
    memories are overwritten, and their last job ends. The counters of the aggregator are evidence if they include
    `NEEDED_COUNTERS`. ``network`` tells how the workers find the aggregator, by default as the device does; resends are
    chosen here.
    """
    names = names_of(device, len(device.workers))
    known = _examine_present(device, network or device.network_settings or NetworkSettings(), names)
    findings = [
        each if each.worker is None else replace(each, worker=names[each.worker].number) for each in known.findings
    ]
    late = Problem("it is not there yet; training begins without it and takes it in when it comes", "", Result.LATE)
    for name in device.absent:
        findings += judge(name.number, "worker", _address_of(name), late)
    return replace(known, findings=tuple(findings))


def _examine_present(device: Device, network: NetworkSettings, names: Sequence[WorkerName]) -> Examination:
    """Examine the workers that are there; the findings have their shards."""
    network = _with_first_wait(network, round(network.slack_s * 1e9) // CLOCK_NS)
    aggregator = device.aggregator
    if aggregator is not None and not aggregator.counters().keys() >= NEEDED_COUNTERS:
        aggregator = None  # some switches have no counters that locate losses
    findings = [finding for index, name in enumerate(names) for finding in _examine_worker(device, index, name)]
    for worker, board in sorted(device.boards.items()):
        if readings := board.sensors:  # no value is a failure
            measured = {name: "unknown" if value is None else value for name, value in readings.items()}
            findings += judge(worker, "board", measured)
    findings += examine_ethernet(device)
    if not (known := Examination(tuple(findings), complete=False)).healthy:
        return known
    session = Session(device, network)
    self_test = SelfTest(device, session)
    findings += _examine_identities([client_of(worker) for worker in device.workers], names, network)
    if not (known := Examination(tuple(findings), complete=False)).healthy:
        return known
    links, patience = _examine_links(device, session, self_test, aggregator)
    findings += links
    if not (known := Examination(tuple(findings), complete=False)).healthy:
        return known
    if network.resend_cycles < patience:  # so that every resend means a loss
        session = Session(device, _with_first_wait(network, patience))
        self_test = SelfTest(device, session)
    findings += _describe_packets(session.limit)
    findings += examine_allreduce(session, self_test, aggregator)
    return Examination(tuple(findings), complete=True)


def _with_first_wait(network: NetworkSettings, resend_cycles: int) -> NetworkSettings:
    """The settings for an examination, with a first wait of at least so many cycles, up to `_LONGEST_FIRST_WAIT`."""
    first_wait = min(max(network.resend_cycles, resend_cycles), _LONGEST_FIRST_WAIT)
    return replace(network, resend_cycles=first_wait, doublings=_DOUBLINGS, resends=_RESENDS)


def _address_of(name: WorkerName) -> dict[str, int | str]:
    return {"control": name.control} if name.control else {}


def _examine_worker(device: Device, index: int, name: WorkerName) -> list[Finding]:
    """Check that a worker has the expected identity and configuration, and is idle."""
    client = client_of(device.workers[index])
    evidence = _address_of(name) | {
        "magic": f"{client.read(registers.MAGIC_WORD)['value']:#010x}",
        "version": client.read(registers.ABI)["value"],
        "config_hash": f"{client.read(registers.CONFIG_HASH)['value']:#010x}",
        "build_id": client.read(registers.BUILD_ID)["value"],
    }
    problem = find_identity_problem(client, device.workers[index].config)
    if problem is None and not client.read(registers.CTRL)["idle"]:
        problem = "is busy with another run"
    return judge(index, "worker", evidence, None if problem is None else Problem(problem))


def _examine_links(
    device: Device, session: Session, self_test: SelfTest, aggregator: Controller | None
) -> tuple[list[Finding], int]:
    """Findings about the links of all workers and the settings of those that get answers, and RESEND_CYCLES that are
    enough for all workers."""
    patience, echo_s = 0, session.network.echo_s
    clients = [client_of(worker) for worker in device.workers]
    links, settings, well, silent = [], [], [], []
    for index, (client, worker) in enumerate(zip(clients, device.workers, strict=True)):
        link, echo = examine_link(index, client, worker.config, aggregator, session.network)
        links.append(link)
        if echo is None:
            silent.append(index)
        else:
            settings += _examine_settings(index, client, worker.config, echo, session)
            patience = max(patience, _ROUND_TRIPS * echo.cycles)
            if link.result is not Result.FAILED and not echo.failed:
                well.append(index)
    if aggregator is None and silent and well:
        arrived = read_arrived_partials(self_test, clients[well[0]], echo_s)
        if arrived is not None:
            for index in silent:
                links[index] = locate_loss(links[index], arrived)
    return [*links, *settings], patience


def _examine_identities(
    clients: Sequence[RegisterClient], names: Sequence[WorkerName], network: NetworkSettings
) -> list[Finding]:
    """Look for workers with the same shard or address, and for group addresses: a finding ``settings`` for each.

    This comes before the probes, because an aggregator's answers about two equal workers would be misleading.
    """
    findings: list[Finding] = []
    shards: dict[int, int] = {}
    macs: dict[int, int] = {}
    for worker, client in enumerate(clients):
        shard, mac = client.read(registers.JOB)["shard"], client.read_pair(registers.LOCAL_MAC)
        address = network.address_text(mac)
        problems = []
        if (other := shards.setdefault(shard, worker)) != worker:
            text = f"it is shard {shard}, and so is {names[other]}"
            problems.append(Problem(text, "give each a shard of its own in JOB"))
        if (other := macs.setdefault(mac, worker)) != worker:
            text = f"its address is {address}, and so is that of {names[other]}"
            problems.append(Problem(text, "give each an address of its own in LOCAL_MAC"))
        if mac >> GROUP_BIT & 1:
            text = f"its address {address} is that of a group: switches do not forward answers to it alone"
            problems.append(Problem(text, "give it the address of a single host in LOCAL_MAC"))
        if problems:
            findings += judge(worker, "settings", {"shard": shard, "address": address}, *problems)
    return findings


def _describe_packets(limit: MergeLimit) -> list[Finding]:
    """Which version of the packet the job uses, and why no other."""
    return judge(None, "packets", {"version": limit.version, "micro_batches": max(1, limit.most), "why": limit.why})


def _examine_settings(
    worker: int, client: RegisterClient, config: WorkerConfig, echo: Echo, session: Session
) -> list[Finding]:
    """Compare a worker's settings with the aggregator's, as its echo about the worker's last slot has them."""
    who = client.read(registers.JOB)
    local = client.read_pair(registers.LOCAL_MAC)
    limit, text = session.limit, session.network.address_text
    problems = []
    highest = KEYED_VERSION if client.read(registers.MERGE_MOST)["value"] else VERSION
    if not limit.version <= echo.version <= highest:
        problems.append(
            Problem(
                f"the aggregator speaks version {echo.version} of the packet format, the worker version {highest}",
                "generate both again with the same version of p4sgd",
            )
        )
    problems += [_why_dropped(check, who, local, config, echo, text) for check in echo.failed]
    evidence: dict[str, int | str] = {"job": who["job"], "shard": who["shard"], "workers": who["workers"]}
    evidence |= {"slots": config.slots, "version": limit.version, "port": echo.port, "address": text(local)}
    differences: dict[str, int | str] = {"aggregator_workers": echo.workers, "aggregator_slots": echo.slots}
    differences |= {"aggregator_version": echo.version, "aggregator_expects": text(echo.expected)}
    findings = judge(worker, "settings", evidence | differences, *problems) if problems else []
    resend_cycles, needed = client.read(registers.RESEND_CYCLES)["value"], _ROUND_TRIPS * echo.cycles
    early = None
    if resend_cycles < needed:
        evidence |= {"resend_cycles": resend_cycles, "cycles": echo.cycles}
        early = Problem(
            f"it sends packets again after {resend_cycles * CLOCK_NS / 1000:g} µs, less than {_ROUND_TRIPS} times the "
            f"{echo.cycles * CLOCK_NS / 1000:g} µs that an answer takes: packets are resent whose answers are on their "
            "way",
            f"let it wait {-(-needed * CLOCK_NS // 1000)} µs or more: resend_us of the cluster file",
            Result.WARNING,
        )
    return findings if findings and early is None else [*findings, *judge(worker, "settings", evidence, early)]


def _why_dropped(
    check: DropReason,
    who: dict[str, int],
    local: int,
    config: WorkerConfig,
    echo: Echo,
    text: Callable[[int], str],
) -> Problem:
    """Problem of a worker whose packets fail a check of the aggregator."""
    job, shard, workers = who["job"], who["shard"], who["workers"]
    match check:
        case DropReason.JOB:
            problem = f"the aggregator serves no job {job}"
            remedy = "begin the job at the aggregator, under this number"
        case DropReason.WORKERS:
            problem = f"the job has {workers} workers, but {echo.workers} at the aggregator"
            remedy = f"begin the job at the aggregator with {workers} workers"
        case DropReason.SHARD:
            problem = f"the aggregator's job of {echo.workers} workers has no shard {shard}"
            remedy = "begin the job at the aggregator with all workers"
        case DropReason.SLOT:
            problem = f"the worker has {config.slots} slots, the aggregator only {echo.slots}"
            remedy = "generate the aggregator with at least as many slots"
        case _ if echo.expected != local:
            problem = f"its address is {text(local)}, the aggregator expects shard {shard} at {text(echo.expected)}"
            remedy = f"enter {text(local)} for shard {shard} in the aggregator's table"
        case _:
            problem = f"it is behind port {echo.port}, the aggregator expects shard {shard} behind another"
            remedy = f"enter port {echo.port} for shard {shard} in the aggregator's table, or move the cable"
    return Problem(problem, remedy)
