"""The examination of a cluster: all checks in order, with those of identities and settings."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from p4sgd.host.aggregators.controller import Controller
from p4sgd.host.devices.device import WAIT_LIMIT, Device, NetworkSettings, WorkerName, client_of, names_of
from p4sgd.host.devices.diagnosis import Echo
from p4sgd.host.devices.identification import find_identity_problem
from p4sgd.host.devices.session import Session
from p4sgd.host.doctor.allreduce import SelfTest, examine_allreduce
from p4sgd.host.doctor.ethernet import examine_ethernet
from p4sgd.host.doctor.finding import Evidence, Examination, Finding, Problem, Result, judge
from p4sgd.host.doctor.link import NEEDED_COUNTERS, examine_link, locate_losses
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
    network = _with_first_wait(network, round(network.slack_s * 1e9) // CLOCK_NS)
    aggregator = device.aggregator
    if aggregator is not None and not aggregator.counters().keys() >= NEEDED_COUNTERS:
        aggregator = None  # some switches have no counters that locate losses
    findings = [finding for index, name in enumerate(names) for finding in _examine_worker(device, index, name)]
    for worker, board in sorted(device.boards.items()):
        if readings := board.sensors:  # no value is a failure
            measured = {name: "unknown" if value is None else value for name, value in readings.items()}
            findings += judge(worker, "board", measured)
    yield findings + examine_ethernet(device)
    session = Session(device, network)
    self_test = SelfTest(device, session)
    yield _examine_identities([client_of(worker) for worker in device.workers], names, network)
    links, patience = _examine_links(device, session, self_test, aggregator)
    yield links
    if network.resend_cycles < patience:  # so that every resend means a loss
        session = Session(device, _with_first_wait(network, patience))
        self_test = SelfTest(device, session)
    limit = session.limit
    packets: Evidence = {"version": limit.version, "micro_batches": max(1, limit.most), "why": limit.why}
    yield [*judge(None, "packets", packets), *examine_allreduce(session, self_test, aggregator)]


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
    links, silent, settings, patience, well = [], list[Finding](), list[Finding](), 0, None
    for index, worker in enumerate(device.workers):
        client = client_of(worker)
        link, echo = examine_link(index, client, worker.config, aggregator, session.network)
        if echo is None:
            silent.append(link)
            continue
        links.append(link)
        settings += _examine_settings(index, client, worker.config, echo, session)
        patience = max(patience, _ROUND_TRIPS * echo.cycles)
        if well is None and link.result is not Result.FAILED and not echo.failed:
            well = client
    if aggregator is None and silent and well is not None:
        silent = locate_losses(silent, self_test, well, session.network.echo_s)
    by_shard = sorted([*links, *silent], key=lambda finding: finding.worker or 0)
    return [*by_shard, *settings], patience


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


def _examine_settings(
    worker: int, client: RegisterClient, config: WorkerConfig, echo: Echo, session: Session
) -> list[Finding]:
    """Compare a worker's settings with the aggregator's, as its echo about the worker's last slot has them."""
    who, local = client.read(registers.JOB), client.read_pair(registers.LOCAL_MAC)
    limit, text = session.limit, session.network.address_text
    evidence: dict[str, int | str] = {"job": who["job"], "shard": who["shard"], "workers": who["workers"]}
    evidence |= {"slots": config.slots, "version": limit.version, "port": echo.port, "address": text(local)}
    problems = [_why_dropped(check, who, text(local), config, echo, text(echo.expected)) for check in echo.failed]
    highest = KEYED_VERSION if client.read(registers.MERGE_MOST)["value"] else VERSION
    if not limit.version <= echo.version <= highest:
        other = Problem(
            f"the aggregator speaks version {echo.version} of the packet format, the worker version {highest}",
            "generate both again with the same version of p4sgd",
        )
        problems.insert(0, other)
    if problems:
        evidence |= {"aggregator_workers": echo.workers, "aggregator_slots": echo.slots}
        evidence |= {"aggregator_version": echo.version, "aggregator_expects": text(echo.expected)}
    resend_cycles, needed = client.read(registers.RESEND_CYCLES)["value"], _ROUND_TRIPS * echo.cycles
    if resend_cycles < needed:
        evidence |= {"resend_cycles": resend_cycles, "cycles": echo.cycles}
        early = Problem(
            f"it sends packets again after {resend_cycles * CLOCK_NS / 1000:g} µs, less than {_ROUND_TRIPS} times the "
            f"{echo.cycles * CLOCK_NS / 1000:g} µs that an answer takes: packets are resent whose answers are on their "
            "way",
            f"let it wait {-(-needed * CLOCK_NS // 1000)} µs or more: resend_us of the cluster file",
            Result.WARNING,
        )
        problems.append(early)
    return judge(worker, "settings", evidence, *problems)


def _why_dropped(
    check: DropReason, who: dict[str, int], local: str, config: WorkerConfig, echo: Echo, expected: str
) -> Problem:
    """Problem of a worker with the address ``local`` whose packets fail a check of the aggregator."""
    job, shard, workers = who["job"], who["shard"], who["workers"]
    begin, enter = "begin the job at the aggregator", f"for shard {shard} in the aggregator's table"
    match check:
        case DropReason.JOB:
            return Problem(f"the aggregator serves no job {job}", f"{begin}, under this number")
        case DropReason.WORKERS:
            problem = f"the job has {workers} workers, but {echo.workers} at the aggregator"
            return Problem(problem, f"{begin} with {workers} workers")
        case DropReason.SHARD:
            problem = f"the aggregator's job of {echo.workers} workers has no shard {shard}"
            return Problem(problem, f"{begin} with all workers")
        case DropReason.SLOT:
            problem = f"the worker has {config.slots} slots, the aggregator only {echo.slots}"
            return Problem(problem, "generate the aggregator with at least as many slots")
        case _ if expected != local:
            problem = f"its address is {local}, the aggregator expects shard {shard} at {expected}"
            return Problem(problem, f"enter {local} {enter}")
        case _:
            problem = f"it is behind port {echo.port}, the aggregator expects shard {shard} behind another"
            return Problem(problem, f"enter port {echo.port} {enter}, or move the cable")
