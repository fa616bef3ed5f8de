"""The check of a worker's path to the aggregator and back, by probes.

"Up" is the direction to the aggregator, "down" that to the worker.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
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


@dataclass(frozen=True)
class _Probes:
    """Probes of a worker: their number, and their answers.

    ``counted`` are increments of the aggregator's counters meanwhile, by name; None if it cannot be read. They include
    frames of other jobs. As those are not probes, ECHOES is the number of probes that arrived.
    """

    sent: int
    echoes: tuple[Echo, ...]
    counted: Mapping[str, int] | None

    def __add__(self, other: "_Probes") -> "_Probes":
        counted = None
        if self.counted is not None and other.counted is not None:
            counted = {name: count + other.counted[name] for name, count in self.counted.items()}
        return _Probes(self.sent + other.sent, self.echoes + other.echoes, counted)

    @property
    def lost(self) -> float:
        """Share of the probes that were not answered."""
        return 1 - len(self.echoes) / self.sent

    @property
    def echo(self) -> Echo | None:
        """The last answer, with the median of all times; None if there is none."""
        if not self.echoes:
            return None
        return replace(self.echoes[-1], cycles=round(median(echo.cycles for echo in self.echoes)))

    @property
    def drops(self) -> dict[DropReason, int]:
        """Frames dropped for the reasons that can apply to probes; only reasons with at least one frame."""
        counted = self.counted or {}
        return {drop: count for drop in _DROPS_OF_PROBES if (count := counted.get(f"DROPPED_{drop.name}"))}

    @property
    def evidence(self) -> dict[str, int | str]:
        """Numbers of probes and losses, and the time of a round trip."""
        found: dict[str, int | str] = {"probes": self.sent, "echoes": len(self.echoes)}
        if (echo := self.echo) is not None:
            found |= {"cycles": echo.cycles, "ns": echo.cycles * CLOCK_NS, "port": echo.port}
        if self.counted is not None and self.lost:
            found |= {"aggregator_frames": self.counted["FRAMES"], "aggregator_echoes": self.counted["ECHOES"]}
            found |= {f"aggregator_dropped_{drop.name.lower()}": count for drop, count in self.drops.items()}
        return found


def examine_link(
    worker: int, client: RegisterClient, config: WorkerConfig, aggregator: Controller | None, network: NetworkSettings
) -> tuple[Finding, Echo | None]:
    """Probe the path of a worker to the aggregator and back; returns an answer of the aggregator too, if there was one.

    Probes go to the aggregator with address PEER_MAC and, if it does not answer, to any aggregator. A controller of the
    aggregator is given if its counters can tell losses on the way up from those on the way down.
    """
    probes = _ask(client, config, aggregator, network.echo_s, broadcast=False)
    evidence, problem = probes.evidence, None
    if not probes.echoes:
        probes += _ask(client, config, aggregator, network.echo_s, broadcast=True)
        evidence = probes.evidence
        if probes.echoes and probes.echoes[-1].source != (address := client.read_pair(registers.PEER_MAC)):
            peer, source = network.address_text(address), network.address_text(probes.echoes[-1].source)
            evidence |= {"peer_address": peer, "aggregator_address": source}
            problem = Problem(
                f"no aggregator has the address {peer} in PEER_MAC; the one that answers has {source}",
                f"give the workers {source} as the aggregator's address, or the aggregator {peer} as its own",
            )
    (finding,) = judge(worker, "link", evidence, problem or _why_lossy(probes))
    return finding, probes.echo


def _ask(
    client: RegisterClient, config: WorkerConfig, aggregator: Controller | None, echo_s: float, *, broadcast: bool
) -> _Probes:
    """Send probes one after the other, about the worker's last slot: an aggregator with fewer slots lacks it."""
    before = None if aggregator is None else aggregator.counters()
    first = 1 + PROBES * broadcast
    answers = [
        probe(client, slot=config.slots - 1, number=number, broadcast=broadcast, echo_s=echo_s)
        for number in range(first, first + PROBES)
    ]
    counted = None
    if aggregator is not None and before is not None:
        counted = {name: count - before[name] for name, count in aggregator.counters().items()}
    return _Probes(PROBES, tuple(echo for echo in answers if echo is not None), counted)


def _why_lossy(probes: _Probes) -> Problem | None:
    if not probes.lost:
        return None
    counted = probes.counted
    if not probes.echoes:
        return _why_silent(probes)
    problem = f"{probes.lost:.0%} of the probes or their echoes are lost"
    if counted is not None:
        arrived = min(counted["ECHOES"], probes.sent)  # another worker may have sent probes too
        up, down = probes.sent - arrived, max(0, arrived - len(probes.echoes))
        problem += f": {up} of {probes.sent} on the way up, {down} of {arrived} on the way down"
    result = Result.FAILED if probes.lost >= _DEAD_SHARE else Result.WARNING
    return Problem(problem, "check the link for bit errors, and the network for congestion", result)


def _why_silent(probes: _Probes) -> Problem:
    """Problem when no probe was answered."""
    if probes.counted is None:
        return Problem(
            "no aggregator answers its probes",
            "check that the aggregator is running, and that the worker's link is up in both directions",
        )
    if probes.counted["ECHOES"]:
        return Problem("the aggregator answers, but nothing comes back: the way down is dead", _DOWN_REMEDY)
    drops = probes.drops
    why = max(drops, key=drops.__getitem__, default=None)
    if why is None or drops[why] < probes.sent / 2:
        return Problem("nothing that it sends comes to the aggregator: the way up is dead", _UP_REMEDY)
    return Problem(
        f"the aggregator drops what it sends: it is {why.help}",
        "check that both were generated by the same version of p4sgd, and the way up for bit errors",
    )


def read_arrived_partials(self_test: SelfTest, client: RegisterClient, echo_s: float) -> int | None:
    """Bitmap of the shards whose partials reach an aggregator that cannot be read; None if a probe is not answered.

    All workers begin an AllReduce of the job, which has not run yet. It cannot end because some of them get no answers.
    Then a worker that does get answers, ``client``, probes the slot.
    """
    with contextlib.suppress(P4sgdError):
        self_test.run()
    echo = probe_until_answered(client, slot=0, echo_s=echo_s)
    return None if echo is None else echo.aggregated


def locate_loss(link: Finding, arrived: int) -> Finding:
    """Refine the finding of a worker without answers, given the bitmap of `read_arrived_partials`."""
    assert link.worker is not None
    if arrived >> link.worker & 1:
        problem, remedy = "no probe is answered, but its partial arrived: the way down is dead", _DOWN_REMEDY
    else:
        problem = "no probe is answered and no partial arrived: the way up is dead, or its settings are wrong"
        remedy = _UP_REMEDY
    return replace(link, evidence={**link.evidence, "partials_of": f"{arrived:#b}"}, problem=problem, remedy=remedy)
