"""All checks, one after the other, with those of single workers.

Whether workers are who only one of them can be: what the aggregator says of two that are the same misleads.

A worker's settings against those of the aggregator, as an echo tells them.

The Ethernet links that workers' MACs tell of.

All checks, one after the other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from p4sgd.host.aggregators.controller import Controller
from p4sgd.host.devices.device import WAIT_LIMIT, Device, NetworkSettings, client_of
from p4sgd.host.devices.diagnosis import Echo
from p4sgd.host.devices.identification import find_identity_problem
from p4sgd.host.devices.session import Session
from p4sgd.host.doctor.allreduce import SelfTest, examine_allreduce
from p4sgd.host.doctor.finding import Examination, Finding, Result
from p4sgd.host.doctor.link import NEEDED_COUNTERS, examine_link, locate_loss, read_arrived_partials
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.cmac import LinkState
from p4sgd.hw.spec.config import CLOCK_NS, WorkerConfig
from p4sgd.hw.spec.packet import GROUP_BIT, VERSION, DropReason, mac_text
from p4sgd.hw.spec.register_map import RegisterClient

__all__ = ["examine", "examine_ethernet", "examine_identities", "examine_settings", "needed_resend_cycles"]


def examine_identities(clients: Sequence[RegisterClient]) -> list[Finding]:
    """Look for shards and addresses that two workers have, and for addresses of groups.

    Parameters
    ----------
    clients
        Registers of the workers, by shard index.

    Returns
    -------
    A finding ``settings`` for each that is wrong.
    """
    findings = []
    shards: dict[int, int] = {}
    macs: dict[int, int] = {}
    for worker, client in enumerate(clients):
        shard, mac = client.read(registers.JOB)["shard"], client.read_pair(registers.LOCAL_MAC)
        evidence: dict[str, int | str] = {"shard": shard, "local_mac": mac_text(mac)}
        problems = []
        if (other := shards.setdefault(shard, worker)) != worker:
            problems.append((f"it is shard {shard}, and so is worker {other}", "give each a shard of its own in JOB"))
        if (other := macs.setdefault(mac, worker)) != worker:
            problem = f"its address is {mac_text(mac)}, and so is that of worker {other}"
            problems.append((problem, "give each an address of its own in LOCAL_MAC"))
        if mac >> GROUP_BIT & 1:
            problem = f"its address {mac_text(mac)} is that of a group: no switch forwards answers there to it alone"
            problems.append((problem, "give it the address of a single host in LOCAL_MAC"))
        findings += [Finding(worker, "settings", Result.FAILED, evidence, *problem) for problem in problems]
    return findings


_SETTINGS = "settings"

_WAYS = 2
"""How often a packet's way there and back should fit into RESEND_CYCLES: it may have to wait for others on the way."""


def examine_settings(worker: int, client: RegisterClient, config: WorkerConfig, echo: Echo) -> list[Finding]:
    """Say what of a worker's packets the aggregator would not take, and why.

    Parameters
    ----------
    worker
        Index of the worker.
    client, config
        Its registers and its size.
    echo
        What the aggregator answered to a probe about the worker's last slot.

    Returns
    -------
    A finding for each setting that is wrong, else one that all are right.
    """
    who = client.read(registers.JOB)
    local = client.read_pair(registers.LOCAL_MAC)
    problems = []
    if echo.version != VERSION:
        problems.append(
            (
                f"the aggregator speaks version {echo.version} of the packet format, the worker version {VERSION}",
                "generate both anew with the same version of p4sgd",
            )
        )
    problems += [_explain(check, who, local, config, echo) for check in echo.failed]
    evidence: dict[str, int | str] = {"job": who["job"], "shard": who["shard"], "workers": who["workers"]}
    evidence |= {"slots": config.slots, "version": VERSION, "port": echo.port, "local_mac": mac_text(local)}
    differences: dict[str, int | str] = {"aggregator_workers": echo.workers, "aggregator_slots": echo.slots}
    differences |= {"aggregator_version": echo.version, "aggregator_expects": mac_text(echo.expected)}
    findings = [
        Finding(worker, _SETTINGS, Result.FAILED, evidence | differences, problem, remedy)
        for problem, remedy in problems
    ]
    resend_cycles = client.read(registers.RESEND_CYCLES)["value"]
    if resend_cycles < needed_resend_cycles(echo):
        evidence |= {"resend_cycles": resend_cycles, "cycles": echo.cycles}
        findings.append(Finding(worker, _SETTINGS, Result.WARNING, evidence, *_explain_haste(resend_cycles, echo)))
    return findings or [Finding(worker, _SETTINGS, Result.PASSED, evidence)]


def needed_resend_cycles(echo: Echo) -> int:
    """RESEND_CYCLES with which a worker sends nothing again that is only late."""
    return _WAYS * echo.cycles


def _explain_haste(resend_cycles: int, echo: Echo) -> tuple[str, str]:
    """Problem and remedy if a worker does not wait long enough for answers."""
    return (
        f"it sends packets again after {resend_cycles} cycles, less than {_WAYS} times the {echo.cycles} that an "
        "answer takes: it sends again what is only late",
        f"give it RESEND_CYCLES of {needed_resend_cycles(echo)} at least",
    )


def _explain(check: DropReason, who: dict[str, int], local: int, config: WorkerConfig, echo: Echo) -> tuple[str, str]:
    """Problem and remedy of a check that the worker's packets fail."""
    if check is DropReason.JOB:
        return f"the aggregator serves no job {who['job']}", "begin the job at the aggregator, under this number"
    if check is DropReason.WORKERS:
        return (
            f"the job has {who['workers']} workers, to the aggregator {echo.workers}",
            f"begin the job at the aggregator with {who['workers']} workers",
        )
    if check is DropReason.SHARD:
        return (
            f"the aggregator's job of {echo.workers} workers has no shard {who['shard']}",
            "begin the job at the aggregator with all workers",
        )
    if check is DropReason.SLOT:
        return (
            f"the worker has {config.slots} slots, the aggregator only {echo.slots}",
            "generate the aggregator with as many slots",
        )
    if echo.expected != local:
        return (
            f"its address is {mac_text(local)}, the aggregator expects shard {who['shard']} at "
            f"{mac_text(echo.expected)}",
            f"note {mac_text(local)} as that of shard {who['shard']} in the aggregator's table",
        )
    return (
        f"it is behind port {echo.port}, the aggregator expects shard {who['shard']} behind another",
        f"note port {echo.port} as that of shard {who['shard']} in the aggregator's table, or move the cable",
    )


_ETHERNET = "ethernet"

_LANES = 0xF
"""Transceivers that a link needs power of."""

_EVIDENCE = ("RX_BAD", "RX_OVERFLOWS", "LINK_LOSSES", "TX_FAULTS")
"""Counters of what should not happen."""


def examine_ethernet(links: Mapping[int, LinkState]) -> list[Finding]:
    """Say of every link whether it is up, and else what keeps it down.

    Parameters
    ----------
    links
        Links by worker.
    """
    return [_judge(worker, link) for worker, link in sorted(links.items())]


def _judge(worker: int, link: LinkState) -> Finding:
    evidence: dict[str, int | str] = {"up": link.status["up"], "rs_fec": "on" if link.rs_fec else "off"}
    evidence |= {name.lower(): link.counters[name] for name in _EVIDENCE if name in link.counters}
    if link.status["up"]:
        return Finding(worker, _ETHERNET, Result.PASSED, evidence)
    evidence |= {name: value for name, value in link.status.items() if name != "up"}
    return Finding(worker, _ETHERNET, Result.FAILED, evidence, *_why_down(link))


def _why_down(link: LinkState) -> tuple[str, str]:
    """Problem and remedy."""
    status = link.status
    both_ends = f"give both ends the same RS-FEC (here {'on' if link.rs_fec else 'off'}: rs_fec of the cluster file)"
    if status["power_good"] != _LANES:
        return (
            f"its transceivers have no power: {status['power_good']:#06b} of them",
            "reset the board (xbutil reset); then suspect the image's clock for the MAC",
        )
    if status["tx_reset"] or status["rx_reset"]:
        return (
            "its MAC does not come out of reset",
            "see that the transceivers' reference clock runs (156.25 MHz), then reset the board (xbutil reset)",
        )
    if not status["aligned"]:
        return (
            "it receives nothing from the other end that it can make out",
            f"plug in the cable, have the other end's port up at 100G without auto-negotiation, and {both_ends}",
        )
    if status["remote_fault"]:
        return (
            "it receives, but the other end says that it does not",
            f"check the cable's other direction, and {both_ends}",
        )
    return "its link is coming up", "try again; if it stays so, the link comes and goes: check the cable"


_DOUBLINGS, _RESENDS = 3, 24
"""Patience of the workers: 183 times the first wait, and enough resends for a lossy network."""

_LONGEST_FIRST_WAIT = (WAIT_LIMIT - 1) >> _DOUBLINGS
"""RESEND_CYCLES that may double so often: a second."""


def examine(device: Device, network: NetworkSettings | None = None) -> Examination:
    """Find out what is wrong with the network of a cluster.

    Every worker is looked at, joins a job of its own as for training, and probes the aggregator; then all train
    together. What was in the workers' memories is lost, and their last job is over.

    Parameters
    ----------
    device
        The cluster, which has a network; the caller closes it. The counters of its aggregator are evidence too, if they
        tell what came and was answered.
    network
        How workers are told to find the aggregator, else as the device says. How often they resend is chosen here.
    """
    network = network or device.network_settings or NetworkSettings()
    network = _with_patience(network, round(network.slack_s * 1e9) // CLOCK_NS)
    aggregator = _readable(device.aggregator)
    findings = [_examine_worker(device, index) for index in range(len(device.workers))]
    findings += examine_ethernet(device.links or {})
    if not (known := Examination(tuple(findings), complete=False)).healthy:
        return known
    session = Session(device, network)
    trial = SelfTest(device, session)
    findings += examine_identities([client_of(worker) for worker in device.workers])
    if not (known := Examination(tuple(findings), complete=False)).healthy:
        return known
    ways, patience = _examine_ways(device, session, trial, aggregator)
    findings += ways
    if not (known := Examination(tuple(findings), complete=False)).healthy:
        return known
    if network.resend_cycles < patience:  # what is sent again then says something of what comes
        session = Session(device, _with_patience(network, patience))
        trial = SelfTest(device, session)
    findings += examine_allreduce(session, trial, aggregator)
    return Examination(tuple(findings), complete=True)


def _with_patience(network: NetworkSettings, resend_cycles: int) -> NetworkSettings:
    """The settings for an examination, with a first wait of so many cycles at least, as far as that may be."""
    first_wait = min(max(network.resend_cycles, resend_cycles), _LONGEST_FIRST_WAIT)
    return replace(network, resend_cycles=first_wait, doublings=_DOUBLINGS, resends=_RESENDS)


def _readable(aggregator: Controller | None) -> Controller | None:
    """The aggregator if its counters can tell the ways apart; some switches have no such counters."""
    return aggregator if aggregator is not None and aggregator.counters().keys() >= NEEDED_COUNTERS else None


def _examine_worker(device: Device, index: int) -> Finding:
    """Whether a worker is there, is what it should be and has nothing else to do."""
    client = client_of(device.workers[index])
    evidence: dict[str, int | str] = {
        "magic": f"{client.read(registers.MAGIC_WORD)['value']:#010x}",
        "version": client.read(registers.ABI)["value"],
        "config_hash": f"{client.read(registers.CONFIG_HASH)['value']:#010x}",
        "build_id": client.read(registers.BUILD_ID)["value"],
    }
    problem = find_identity_problem(device, index)
    if problem is None and not client.read(registers.CTRL)["idle"]:
        problem = "is busy with another run"
    result = Result.PASSED if problem is None else Result.FAILED
    return Finding(index, "worker", result, evidence, problem or "")


def _examine_ways(
    device: Device, session: Session, trial: SelfTest, aggregator: Controller | None
) -> tuple[list[Finding], int]:
    """Links of all workers, and settings of those that the aggregator answers; and RESEND_CYCLES enough for all."""
    patience, echo_s = 0, session.network.echo_s
    clients = [client_of(worker) for worker in device.workers]
    links, settings, well, silent = [], [], [], []
    for index, (client, worker) in enumerate(zip(clients, device.workers, strict=True)):
        link, echo = examine_link(index, client, worker.config, aggregator, echo_s)
        links.append(link)
        if echo is None:
            silent.append(index)
        else:
            settings += examine_settings(index, client, worker.config, echo)
            patience = max(patience, needed_resend_cycles(echo))
            if link.result is not Result.FAILED and not echo.failed:
                well.append(index)
    if aggregator is None and silent and well:
        heard = read_arrived_partials(trial, clients[well[0]], echo_s)
        if heard is not None:
            for index in silent:
                links[index] = locate_loss(links[index], heard)
    return [*links, *settings], patience
