"""All checks, one after the other."""

from dataclasses import replace

from p4sgd.host.devices.device import Device, client_of
from p4sgd.host.devices.doctor.allreduce import examine_allreduce
from p4sgd.host.devices.doctor.ethernet import examine_ethernet
from p4sgd.host.devices.doctor.finding import Examination, Finding, Result
from p4sgd.host.devices.doctor.identity import examine_identities
from p4sgd.host.devices.doctor.link import NEEDED_COUNTERS, examine_link
from p4sgd.host.devices.doctor.neighbour import ask_neighbour, tell_ways_apart
from p4sgd.host.devices.doctor.settings import enough_resend_cycles, examine_settings
from p4sgd.host.devices.doctor.trial import Trial
from p4sgd.host.devices.identification import find_foreign
from p4sgd.host.devices.network import WAIT_LIMIT, NetworkSettings
from p4sgd.host.devices.session import Session
from p4sgd.host.switch.controller import Controller
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.clock import CLOCK_NS

__all__ = ["examine"]

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
    trial = Trial(device, session)
    findings += examine_identities([client_of(worker) for worker in device.workers])
    if not (known := Examination(tuple(findings), complete=False)).healthy:
        return known
    ways, patience = _examine_ways(device, session, trial, aggregator)
    findings += ways
    if not (known := Examination(tuple(findings), complete=False)).healthy:
        return known
    if network.resend_cycles < patience:  # what is sent again then says something of what comes
        session = Session(device, _with_patience(network, patience))
        trial = Trial(device, session)
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
    problem = find_foreign(device, index)
    if problem is None and not client.read(registers.CTRL)["idle"]:
        problem = "is busy with another run"
    result = Result.PASSED if problem is None else Result.FAILED
    return Finding(index, "worker", result, evidence, problem or "")


def _examine_ways(
    device: Device, session: Session, trial: Trial, aggregator: Controller | None
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
            patience = max(patience, enough_resend_cycles(echo))
            if link.result is not Result.FAILED and not echo.failed:
                well.append(index)
    if aggregator is None and silent and well:
        heard = ask_neighbour(trial, clients[well[0]], echo_s)
        if heard is not None:
            for index in silent:
                links[index] = tell_ways_apart(links[index], heard)
    return [*links, *settings], patience
