"""Diagnosis of network errors: probes to the aggregator, and an explanation of why workers gave up waiting."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat

from p4sgd.host.devices.device import WorkerName, name_workers
from p4sgd.host.errors import P4sgdError
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.packet import KEYED_VERSION, ROUND_BITS, VERDICT, VERSION, DropReason
from p4sgd.hw.spec.register_map import RegisterClient

PROBES = 32
"""Unanswered probes after which the aggregator counts as silent. On a link that loses half of the round trips that is
wrong once in 4,000 million times."""

_READS = 250
"""How often to poll for an echo in a simulated network: each read lets some cycles pass, an echo takes a few dozen."""


@dataclass(frozen=True)
class Echo:
    """The answer to a probe: what the aggregator knows.

    Parameters
    ----------
    failed
        Checks of `VERDICT` that packets of this worker fail.
    port
        Port at which the probe entered the aggregator.
    version, slots, source
        Version of its packet format, its slots for a job, its MAC address.
    workers
        Workers of the job, 0 if it does not serve the job.
    expected
        MAC address that it expects of the worker's shard, 0 if it knows no such shard.
    round
        Round of the slot.
    aggregated, acknowledged
        Bitmaps of the shards whose partials the slot has received, and of those that have acknowledged its sums.
    cycles
        Cycles from the probe to the answer.
    """

    failed: tuple[DropReason, ...]
    port: int
    version: int
    workers: int
    slots: int
    source: int
    expected: int
    round: int
    aggregated: int
    acknowledged: int
    cycles: int


def probe(client: RegisterClient, *, slot: int, number: int, broadcast: bool, echo_s: float) -> Echo | None:
    """Have a worker send a probe about a slot; returns the answer, or None if none comes.

    Parameters
    ----------
    number
        Number of the probe, 1 to 255, different from that of the previous one.
    broadcast
        Whether to ask any aggregator, rather than the one with address PEER_MAC.
    echo_s
        Seconds to wait for the answer (`NetworkSettings.echo_s`); 0 in a simulated network.
    """
    client.write(registers.PROBE, slot=slot, number=number, broadcast=int(broadcast))
    return _wait_for_echo(client, number, echo_s)


def probe_until_answered(client: RegisterClient, slot: int, echo_s: float) -> Echo | None:
    """Send up to `PROBES` probes to PEER_MAC about a slot, until one is answered; None if none is."""
    numbers = range(1, 1 + PROBES)
    answers = (probe(client, slot=slot, number=number, broadcast=False, echo_s=echo_s) for number in numbers)
    return next((answer for answer in answers if answer is not None), None)


def _wait_for_echo(client: RegisterClient, number: int, echo_s: float) -> Echo | None:
    """Wait for the answer to a worker's probe of this number; None if it does not come."""
    for _ in _polls(echo_s):
        head = client.read(registers.ECHO)
        if head["came"] and head["number"] == number:
            break
    else:
        return None
    about = client.read(registers.ECHO_JOB)
    return Echo(
        failed=tuple(check for bit, check in enumerate(VERDICT) if head["verdict"] >> bit & 1),
        port=head["port"],
        version=head["version"],
        workers=about["workers"],
        slots=client.read(registers.ECHO_SLOTS)["value"],
        source=client.read_pair(registers.ECHO_SOURCE),
        expected=client.read_pair(registers.ECHO_EXPECTED),
        round=about["round"],
        aggregated=client.read(registers.ECHO_AGGREGATED)["value"],
        acknowledged=client.read(registers.ECHO_ACKNOWLEDGED)["value"],
        cycles=client.read(registers.ECHO_CYCLES)["value"],
    )


def _polls(echo_s: float) -> Iterator[None]:
    """Iterate as often as an echo should be polled for."""
    if not echo_s:
        yield from repeat(None, _READS)
        return
    end = time.monotonic() + echo_s
    while time.monotonic() < end:
        yield
    yield  # once more, as this process may have been suspended since the last poll


_OWN_PROBE = 0
"""Number of the probe that a worker sends on its own when it gives up (`registers.PROBE`)."""


class NetworkError(P4sgdError):
    """Workers gave up waiting for the network."""


@dataclass(frozen=True)
class GiveUpReport:
    """Why a worker gave up, as far as it knows.

    Parameters
    ----------
    slot, round, partial
        Slot and round of the packet that was not answered, and whether that was a PARTIAL, rather than an ACK.
    workers
        Number of workers in its job.
    echo
        The aggregator's answer about the slot; None if it does not answer.
    version, highest_version
        Version of its packets, and the highest that it speaks.
    """

    slot: int
    round: int
    partial: bool
    workers: int
    echo: Echo | None
    version: int
    highest_version: int

    def __str__(self) -> str:
        return f"(slot {self.slot}, round {self.round})"

    @property
    def absent(self) -> frozenset[int] | None:
        """Shards whose packets the aggregator lacks; None if its round is impossible, given this worker's."""
        assert self.echo is not None
        ahead = (self.echo.round - self.round) % (1 << ROUND_BITS)
        if ahead == 0:
            come = self.echo.aggregated if self.partial else self.echo.acknowledged
        elif self.partial and ahead == (1 << ROUND_BITS) - 1:
            come = 0  # no PARTIAL has begun the round
        elif not self.partial and ahead == 1:
            come = -1  # all have acknowledged, and one has begun the next round
        else:
            return None
        return frozenset(shard for shard in range(self.workers) if not come >> shard & 1)


def diagnose_worker(client: RegisterClient, echo_s: float) -> GiveUpReport | None:
    """Read why a worker gave up; None if it did not.

    A worker that gives up probes the aggregator about the slot in question. If that probe is not answered, more are
    sent, to tell a dead network from one that loses many frames. ``echo_s`` is as in `probe`.
    """
    reason = client.read(registers.GIVEN_UP)
    if not reason["given_up"]:
        return None
    echo = _wait_for_echo(client, _OWN_PROBE, echo_s) or probe_until_answered(client, reason["slot"], echo_s)
    workers = client.read(registers.JOB)["workers"]
    versions = (
        KEYED_VERSION if client.read(register)["value"] else VERSION
        for register in (registers.MERGE, registers.MERGE_MOST)
    )
    return GiveUpReport(reason["slot"], reason["round"], bool(reason["partial"]), workers, echo, *versions)


def find_lost_workers(reports: Sequence[GiveUpReport | None]) -> frozenset[int]:
    """Shards that no longer answer, though the aggregator still answers the others; ``reports`` as there.

    Empty if `explain_network_error` blames something else.
    """
    failure = _Failure(reports)
    if failure.refusal() or failure.loss_up():
        return frozenset()
    return frozenset(failure.gone if failure.answered else failure.cut_off)


def explain_network_error(reports: Sequence[GiveUpReport | None], names: Sequence[WorkerName] | None = None) -> str:
    """Explain in one line why workers gave up.

    The aggregator's echoes say which shards are missing there, or what is wrong with a worker's own settings. A worker
    that got an echo is still connected: it gave up itself, and others may lack its packets only because of that. So the
    explanations are tried from the most to the least specific.

    Parameters
    ----------
    reports
        What `diagnose_worker` returns for the workers, by shard index.
    names
        What the workers are called, by shard index; by default as their shards.
    """
    failure = _Failure(reports, names)
    explanations = (failure.refusal, failure.loss_up, failure.loss_of_worker, failure.lateness, failure.loss_down)
    return next(filter(None, (explain() for explain in explanations)), None) or failure.rest()


class _Failure:
    """A network error, given the reports of its workers. Explanations are None if they do not apply."""

    def __init__(self, reports: Sequence[GiveUpReport | None], names: Sequence[WorkerName] | None = None) -> None:
        self._names = [WorkerName(shard) for shard in range(len(reports))] if names is None else names
        self._given_up = {shard: report for shard, report in enumerate(reports) if report is not None}
        self.answered = {shard: report for shard, report in self._given_up.items() if report.echo is not None}
        """Reports of the workers whose probes the aggregator answered, by shard index."""

    @property
    def gone(self) -> set[int]:
        """Shards that are missing at the aggregator and did not get an echo."""
        return {shard for report in self.answered.values() for shard in _absent(report) - self.answered.keys()}

    @property
    def cut_off(self) -> set[int]:
        """Shards that gave up, if others did not: a link cut in the last round stops only its own worker."""
        return set(self._given_up) if len(self._given_up) < len(self._names) else set()

    def refusal(self) -> str | None:
        """The aggregator drops everything that a worker sends."""
        for worker, report in self.answered.items():
            echo, name = report.echo, self._names[worker]
            assert echo is not None
            if not report.version <= echo.version <= report.highest_version:
                return (
                    f"the aggregator speaks version {echo.version} of the packet format and drops what {name} "
                    f"sends, which is of version {report.version}: generate both again with the same version of p4sgd"
                )
            if echo.failed:
                return f"the aggregator drops what {name} sends: it is {echo.failed[0].help}"
            if report.absent is None:
                return f"the aggregator is in round {echo.round}, not in that of {name} {report}: restart the job"
        return None

    def loss_up(self) -> str | None:
        """A worker's probes reach the aggregator, but its PARTIAL or ACK did not."""
        lost = {worker: report for worker, report in self.answered.items() if worker in _absent(report)}
        if not lost:
            return None
        first = next(iter(lost.values()))
        alike = [worker for worker, report in lost.items() if replace(report, echo=first.echo) == first]
        what = f"{'PARTIAL' if first.partial else 'ACK'} of {self._full(alike)} {first}"
        remedy = "check that link, or allow more resends"
        if first.partial and first.version == KEYED_VERSION:
            remedy += ", or, if the network does not carry frames as long as these, train with --merge 1"
        return f"no {what} came to the aggregator, though a probe did: frames are lost on the way up; {remedy}"

    def loss_of_worker(self) -> str | None:
        """Workers are missing at the aggregator that did not get an echo either."""
        waiting = {shard: report for shard, report in self.answered.items() if _absent(report) - self.answered.keys()}
        if not waiting:
            return None
        return (
            f"{self._full(self.gone)} no longer answers: worker {self._numbers(waiting)} waited for it in vain "
            f"{_location(waiting)}"
        )

    def lateness(self) -> str | None:
        """A worker's PARTIAL came after others had given up. (That it never came, `loss_up` has ruled out.)"""
        for late, report in self.answered.items():
            location = report.slot, report.round
            waited = [
                worker
                for worker, other in self.answered.items()
                if other.partial and (other.slot, other.round) == location and late in _absent(other)
            ]
            if waited:
                return (
                    f"{self._names[late]} was late: worker {self._numbers(waited)} had given up when its PARTIAL came "
                    f"{report}; find out what delayed it, or let workers wait longer"
                )
        return None

    def loss_down(self) -> str | None:
        """A worker gave up although everything that it waited for has reached the aggregator."""
        for worker, report in self.answered.items():
            if not _absent(report):
                answer, last = ("FULL", "PARTIAL") if report.partial else ("CLEAR", "ACK")
                return (
                    f"{self._names[worker]} gave up waiting for {answer} {report}, which the aggregator could send by "
                    f"now: the last {last} came late, or frames are lost on the worker's way down; let workers wait "
                    "longer, or check that link"
                )
        return None

    def rest(self) -> str:
        """Explanation if nothing more is known."""
        if self.answered:
            waits = ", ".join(
                f"worker {self._names[worker].number} for {self._numbers(_absent(report))} {report}"
                for worker, report in self.answered.items()
            )
            return (
                f"workers waited for each other in vain: {waits}; find out what delayed one of them, or let workers "
                "wait longer"
            )
        if self.cut_off and self._given_up:
            return (
                f"{self._full(self.cut_off)} no longer reaches the aggregator, not even with a probe, while the other "
                f"workers ran to the end: check that link {_location(self._given_up)}"
            )
        if self._given_up:
            return (
                f"the aggregator does not answer worker {self._numbers(self._given_up)}, not even a probe: its address "
                f"is wrong, it does not run, or a link is down {_location(self._given_up)}"
            )
        return "a worker gave up waiting for the network, but no worker says any more what it was waiting for"

    def _full(self, workers: Iterable[int]) -> str:
        """Workers that something is wrong with: their addresses, too."""
        return name_workers(self._names[worker] for worker in sorted(workers))

    def _numbers(self, workers: Iterable[int]) -> str:
        return ", ".join(str(self._names[worker].number) for worker in sorted(workers))


def _absent(report: GiveUpReport) -> frozenset[int]:
    assert report.absent is not None
    return report.absent


def _location(reports: Mapping[int, GiveUpReport]) -> str:
    """Slot and round of the first report."""
    return str(next(iter(reports.values())))
