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
from p4sgd.host.doctor.finding import Finding, Result
from p4sgd.host.errors import P4sgdError
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import CLOCK_NS, WorkerConfig
from p4sgd.hw.spec.packet import DropReason
from p4sgd.hw.spec.register_map import RegisterClient

__all__ = ["NEEDED_COUNTERS", "examine_link", "locate_loss", "read_arrived_partials"]


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

_CHECK = "link"


@dataclass(frozen=True)
class _Probes:
    """Probes of a worker, and their answers.

    Parameters
    ----------
    sent
        Number of probes sent.
    echoes
        Answers received.
    counted
        Increments of the aggregator's counters meanwhile, by name; ``None`` if it cannot be read. They include frames
        of other jobs. As those are not probes, ECHOES is the number of probes that arrived.
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
        """The last answer, with the median of all times; ``None`` if there is none."""
        if not self.echoes:
            return None
        return replace(self.echoes[-1], cycles=round(median(echo.cycles for echo in self.echoes)))

    @property
    def evidence(self) -> dict[str, int | str]:
        """Evidence for a finding: numbers of probes and losses, and the time of a round trip."""
        found: dict[str, int | str] = {"probes": self.sent, "echoes": len(self.echoes)}
        if (echo := self.echo) is not None:
            found |= {"cycles": echo.cycles, "ns": echo.cycles * CLOCK_NS, "port": echo.port}
        if self.counted is not None and self.lost:
            found |= {"aggregator_frames": self.counted["FRAMES"], "aggregator_echoes": self.counted["ECHOES"]}
            found |= {f"aggregator_dropped_{drop.name.lower()}": count for drop, count in self._drops().items()}
        return found

    def _drops(self) -> dict[DropReason, int]:
        """Frames dropped for the reasons that can apply to probes; only reasons with at least one frame."""
        counted = self.counted or {}
        return {drop: count for drop in _DROPS_OF_PROBES if (count := counted.get(f"DROPPED_{drop.name}"))}

    def why_dropped(self) -> DropReason | None:
        """The reason why the aggregator drops the probes; ``None`` if it dropped fewer frames than half of them."""
        drops = self._drops()
        why = max(drops, key=drops.__getitem__, default=None)
        return None if why is None or drops[why] < self.sent / 2 else why


def examine_link(
    worker: int, client: RegisterClient, config: WorkerConfig, aggregator: Controller | None, network: NetworkSettings
) -> tuple[Finding, Echo | None]:
    """Probe the path of a worker to the aggregator and back.

    Probes go to the aggregator with address PEER_MAC and, if it does not answer, to any aggregator.

    Parameters
    ----------
    worker
        Index of the worker.
    client, config
        Registers and configuration of the worker.
    aggregator
        Controller of the aggregator, if its counters can tell losses on the way up from those on the way down.
    network
        How long to wait for an answer, and what addresses are.

    Returns
    -------
    The finding, and an answer of the aggregator if there was one.
    """
    probes = _ask(client, config, aggregator, network.echo_s, broadcast=False)
    peer = client.read_pair(registers.PEER_MAC)
    if not probes.echoes:
        probes += _ask(client, config, aggregator, network.echo_s, broadcast=True)
        if probes.echo is not None and probes.echo.source != peer:
            return _wrong_address(worker, probes, network.address_text(peer), network), probes.echo
    return _judge(worker, probes), probes.echo


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


def _wrong_address(worker: int, probes: _Probes, peer: str, network: NetworkSettings) -> Finding:
    source = network.address_text(probes.echoes[-1].source)
    return Finding(
        worker,
        _CHECK,
        Result.FAILED,
        probes.evidence | {"peer_address": peer, "aggregator_address": source},
        f"no aggregator has the address {peer} in PEER_MAC; the one that answers has {source}",
        f"give the workers {source} as the aggregator's address, or the aggregator {peer} as its own",
    )


def _judge(worker: int, probes: _Probes) -> Finding:
    if not probes.echoes:
        return Finding(worker, _CHECK, Result.FAILED, probes.evidence, *_why_silent(probes))
    if not probes.lost:
        return Finding(worker, _CHECK, Result.PASSED, probes.evidence)
    problem = f"{probes.lost:.0%} of the probes or their echoes are lost"
    remedy = "check the link for bit errors, and the network for congestion"
    if probes.counted is not None:
        arrived = min(probes.counted["ECHOES"], probes.sent)  # another worker may have sent probes too
        up, down = probes.sent - arrived, max(0, arrived - len(probes.echoes))
        problem += f": {up} of {probes.sent} on the way up, {down} of {arrived} on the way down"
    result = Result.FAILED if probes.lost >= _DEAD_SHARE else Result.WARNING
    return Finding(worker, _CHECK, result, probes.evidence, problem, remedy)


def _why_silent(probes: _Probes) -> tuple[str, str]:
    """Problem and remedy when no probe was answered."""
    if probes.counted is None:
        return (
            "no aggregator answers its probes",
            "check that the aggregator is running, and that the worker's link is up in both directions",
        )
    if probes.counted["ECHOES"]:
        return "the aggregator answers, but nothing comes back: the way down is dead", _DOWN_REMEDY
    why = probes.why_dropped()
    if why is None:
        return "nothing that it sends comes to the aggregator: the way up is dead", _UP_REMEDY
    return (
        f"the aggregator drops what it sends: it is {why.help}",
        "check that both were generated by the same version of p4sgd, and the way up for bit errors",
    )


def read_arrived_partials(self_test: SelfTest, client: RegisterClient, echo_s: float) -> int | None:
    """Find out which workers' partials reach an aggregator that cannot be read.

    All workers begin an AllReduce, which cannot end because some of them get no answers. Then a worker that does get
    answers probes the slot.

    Parameters
    ----------
    self_test
        The job, which has not run yet.
    client
        A worker whose probes are answered.
    echo_s
        Time to wait for an answer, as in `p4sgd.host.devices.diagnosis.probe`.

    Returns
    -------
    Bitmap of shards; ``None`` if the probe is not answered.
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
