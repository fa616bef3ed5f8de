"""The check of a worker's path to the aggregator and back, by probes.

"Up" is the direction to the aggregator, "down" that to the worker.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from statistics import median

from p4sgd.host.aggregators.controller import Controller
from p4sgd.host.devices.device import NetworkSettings
from p4sgd.host.devices.diagnosis import PROBES, Echo, probe, probe_until_answered
from p4sgd.host.doctor.allreduce import SelfTest
from p4sgd.host.doctor.finding import Finding, Problem, Result, judge
from p4sgd.host.errors import P4sgdError
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import CLOCK_NS, WorkerConfig
from p4sgd.hw.spec.packet import DropReason
from p4sgd.hw.spec.register_map import RegisterClient

NEEDED_COUNTERS = {"FRAMES", "ECHOES"}
"""Counters of an aggregator that show where probes and echoes are lost."""

_UP_REMEDY = "check the worker's transmitter, its cable, and the ports that its frames enter the network by"
_DOWN_REMEDY = "check the ports that frames for its LOCAL_MAC leave the network by, its cable, and its receiver"

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


def examine_link(
    worker: int, client: RegisterClient, config: WorkerConfig, aggregator: Controller | None, network: NetworkSettings
) -> tuple[Finding, Echo | None]:
    """Probe the path of a worker to the aggregator and back; returns the last answer too, with the median of all times.

    Probes go to the aggregator with address PEER_MAC and, if it does not answer, to any aggregator. A controller of the
    aggregator is given if its counters can tell losses on the way up from those on the way down.
    """
    before = None if aggregator is None else aggregator.counters()
    sent, echoes, misaddressed = PROBES, _ask(client, config, network.echo_s), None
    evidence: dict[str, int | str] = {}
    if not echoes:
        sent, echoes = 2 * PROBES, _ask(client, config, network.echo_s, broadcast=True)
        if echoes and echoes[-1].source != (address := client.read_pair(registers.PEER_MAC)):
            peer, source = network.address_text(address), network.address_text(echoes[-1].source)
            evidence = {"peer_address": peer, "aggregator_address": source}
            misaddressed = Problem(
                f"no aggregator has the address {peer} in PEER_MAC; the one that answers has {source}",
                f"give the workers {source} as the aggregator's address, or the aggregator {peer} as its own",
            )
    # Those of other jobs are among them, but they are no probes: ECHOES is the number of probes that arrived.
    counted = None
    if aggregator is not None and before is not None:
        counted = {name: count - before[name] for name, count in aggregator.counters().items()}
    evidence |= {"probes": sent, "echoes": len(echoes)}
    echo = None
    if echoes:
        echo = replace(echoes[-1], cycles=round(median(echo.cycles for echo in echoes)))
        evidence |= {"cycles": echo.cycles, "ns": echo.cycles * CLOCK_NS, "port": echo.port}
    if counted is not None and len(echoes) < sent:
        evidence |= {"aggregator_frames": counted["FRAMES"], "aggregator_echoes": counted["ECHOES"]}
        evidence |= {f"aggregator_dropped_{drop.name.lower()}": count for drop, count in _drops(counted).items()}
    problem = misaddressed or (_why_lossy(sent, len(echoes), counted) if echoes else _why_silent(sent, counted))
    (finding,) = judge(worker, "link", evidence, problem)
    return finding, echo


def _ask(client: RegisterClient, config: WorkerConfig, echo_s: float, *, broadcast: bool = False) -> list[Echo]:
    """Answers to probes, one after the other, about the worker's last slot: an aggregator with fewer slots lacks it."""
    first = 1 + PROBES * broadcast
    answers = [
        probe(client, slot=config.slots - 1, number=number, broadcast=broadcast, echo_s=echo_s)
        for number in range(first, first + PROBES)
    ]
    return [echo for echo in answers if echo is not None]


def _drops(counted: Mapping[str, int]) -> dict[DropReason, int]:
    """Frames dropped for the reasons that can apply to probes; only reasons with at least one frame."""
    return {drop: count for drop in _DROPS_OF_PROBES if (count := counted.get(f"DROPPED_{drop.name}"))}


def _why_lossy(sent: int, answered: int, counted: Mapping[str, int] | None) -> Problem | None:
    if not (lost := 1 - answered / sent):
        return None
    problem = f"{lost:.0%} of the probes or their echoes are lost"
    if counted is not None:
        arrived = min(counted["ECHOES"], sent)  # another worker may have sent probes too
        up, down = sent - arrived, max(0, arrived - answered)
        problem += f": {up} of {sent} on the way up, {down} of {arrived} on the way down"
    result = Result.FAILED if lost >= _DEAD_SHARE else Result.WARNING
    return Problem(problem, "check the link for bit errors, and the network for congestion", result)


def _why_silent(sent: int, counted: Mapping[str, int] | None) -> Problem:
    if counted is None:
        return Problem(
            "no aggregator answers its probes",
            "check that the aggregator is running, and that the worker's link is up in both directions",
        )
    if counted["ECHOES"]:
        return Problem("the aggregator answers, but nothing comes back: the way down is dead", _DOWN_REMEDY)
    drops = _drops(counted)
    why = max(drops, key=drops.__getitem__, default=None)
    if why is None or drops[why] < sent / 2:
        return Problem("nothing that it sends comes to the aggregator: the way up is dead", _UP_REMEDY)
    return Problem(
        f"the aggregator drops what it sends: it is {why.help}",
        "check that both were generated by the same version of p4sgd, and the way up for bit errors",
    )


def locate_losses(silent: list[Finding], self_test: SelfTest, client: RegisterClient, echo_s: float) -> list[Finding]:
    """Refine findings of workers whose probes an aggregator that cannot be read does not answer.

    All workers begin an AllReduce of the job, which has not run yet. It cannot end because some of them get no answers.
    Then ``client``, a worker that does get answers, probes the slot: it shows whose partials have arrived.
    """
    with contextlib.suppress(P4sgdError):
        self_test.run()
    echo = probe_until_answered(client, slot=0, echo_s=echo_s)
    if echo is None:
        return silent
    findings = []
    for link in silent:
        problem = "no probe is answered and no partial arrived: the way up is dead, or its settings are wrong"
        remedy = _UP_REMEDY
        if link.worker is not None and echo.aggregated >> link.worker & 1:
            problem, remedy = "no probe is answered, but its partial arrived: the way down is dead", _DOWN_REMEDY
        evidence = {**link.evidence, "partials_of": f"{echo.aggregated:#b}"}
        findings.append(replace(link, evidence=evidence, problem=problem, remedy=remedy))
    return findings
