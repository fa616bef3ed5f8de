"""Why workers gave up waiting for the network, and the probes that tell.

Probes: what an aggregator answers when a worker asks it.

Why workers gave up waiting for the network.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import TypeAlias

from p4sgd.host.errors import P4sgdError
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.packet import ROUND_BITS, VERDICT, VERSION, DropReason
from p4sgd.hw.spec.register_map import RegisterClient

__all__ = [
    "PROBES",
    "Echo",
    "GivenUp",
    "NetworkError",
    "ask_again",
    "explain_network_error",
    "inquire",
    "probe",
    "wait_for_echo",
]


PROBES = 32
"""Probes that a worker sends before the aggregator counts as silent: over a link that loses half of the round trips it
would once in 4,000 million times."""

_READS = 250
"""How often to look for an echo in a simulated network: each look lets some cycles pass, an echo takes a few dozen."""


@dataclass(frozen=True)
class Echo:
    """The answer to a probe.

    Parameters
    ----------
    failed
        Checks of `VERDICT` that packets of this worker fail.
    port
        The aggregator's port that the probe came in through.
    version
        The aggregator's version of the packet format.
    workers
        Workers of the job at the aggregator, 0 if it serves no such job.
    slots
        Slots of a job there.
    source
        MAC address of the aggregator.
    expected
        MAC address that the worker's shard should have, 0 if there is no such shard.
    round
        Round of the slot there.
    aggregated, acknowledged
        Bitmaps of the shards whose partials the slot has there, and of those that have acknowledged its sums.
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
    """Have a worker send a probe; returns the answer, None if there is none.

    Parameters
    ----------
    client
        The worker.
    slot
        Slot to ask about.
    number
        Number of the probe, 1 to 255, another than that of the one before.
    broadcast
        Whether any aggregator is asked, else that of PEER_MAC.
    echo_s
        How many seconds to wait for the answer (`NetworkSettings.echo_s`); 0 in a simulated network.
    """
    client.write(registers.PROBE, slot=slot, number=number, broadcast=int(broadcast))
    return wait_for_echo(client, number, echo_s)


def ask_again(client: RegisterClient, slot: int, echo_s: float) -> Echo | None:
    """Have a worker ask the aggregator of PEER_MAC about a slot until it is answered; None if it never is."""
    numbers = range(1, 1 + PROBES)
    answers = (probe(client, slot=slot, number=number, broadcast=False, echo_s=echo_s) for number in numbers)
    return next((answer for answer in answers if answer is not None), None)


def wait_for_echo(client: RegisterClient, number: int, echo_s: float) -> Echo | None:
    """The answer to the probe of a worker that has this number, once it is there; None if it does not come."""
    for _ in _looks(echo_s):
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


def _looks(echo_s: float) -> Iterator[None]:
    """One for each look at what may have come."""
    if not echo_s:
        yield from repeat(None, _READS)
        return
    end = time.monotonic() + echo_s
    while time.monotonic() < end:
        yield
    yield  # the program may have slept since the one before


_OWN_PROBE = 0
"""Number of the probe that a worker sends by itself when it gives up (`registers.PROBE`)."""


class NetworkError(P4sgdError):
    """Workers gave up waiting for the network."""


@dataclass(frozen=True)
class GivenUp:
    """What a worker that has given up knows of it.

    Parameters
    ----------
    slot, round
        What went without an answer.
    partial
        Whether that was a PARTIAL, else an ACK.
    workers
        How many workers its job has.
    echo
        What the aggregator answers about the slot; None if it does not answer.
    """

    slot: int
    round: int
    partial: bool
    workers: int
    echo: Echo | None

    def __str__(self) -> str:
        return f"(slot {self.slot}, round {self.round})"

    @property
    def absent(self) -> frozenset[int] | None:
        """Shards whose packets the aggregator lacks; None if it is in a round that it cannot be in with this worker."""
        assert self.echo is not None
        ahead = (self.echo.round - self.round) % (1 << ROUND_BITS)
        if ahead == 0:
            come = self.echo.aggregated if self.partial else self.echo.acknowledged
        elif self.partial and ahead == (1 << ROUND_BITS) - 1:
            come = 0  # nobody's PARTIAL has begun the round
        elif not self.partial and ahead == 1:
            come = -1  # all have acknowledged, and one has gone on
        else:
            return None
        return frozenset(shard for shard in range(self.workers) if not come >> shard & 1)


def inquire(client: RegisterClient, echo_s: float) -> GivenUp | None:
    """What a worker knows of its giving up; None if it has not.

    It has asked the aggregator about the slot that went without an answer, and asks again if it was not heard: a
    network that loses much is no dead one. ``echo_s`` is as `probe` has it.
    """
    reason = client.read(registers.GIVEN_UP)
    if not reason["given_up"]:
        return None
    echo = wait_for_echo(client, _OWN_PROBE, echo_s) or ask_again(client, reason["slot"], echo_s)
    workers = client.read(registers.JOB)["workers"]
    return GivenUp(reason["slot"], reason["round"], bool(reason["partial"]), workers, echo)


def explain_network_error(known: Sequence[GivenUp | None]) -> str:
    """What the workers that have given up know of it, in one line.

    What comes back from the aggregator says which shards are missing there, or what is wrong with the worker's own
    settings. A worker that was heard is not gone: it has given up too, and what others lack of it may follow from that.

    Parameters
    ----------
    known
        What `inquire` gives for the workers, by shard index.
    """
    given_up = {worker: reason for worker, reason in enumerate(known) if reason is not None}
    heard = {worker: reason for worker, reason in given_up.items() if reason.echo is not None}
    for explain in (_explain_refusal, _explain_loss_up, _explain_gone, _explain_late, _explain_loss_down):
        if (said := explain(heard)) is not None:
            return said
    if heard:
        return _explain_each_other(heard)
    if given_up:
        return (
            f"the aggregator does not answer worker {_names(given_up)}, not even a probe: its address is wrong, it "
            f"does not run, or a link is down {_place(given_up)}"
        )
    return "a worker gave up waiting for the network, and no worker says any more for what"


_Heard: TypeAlias = Mapping[int, GivenUp]
"""What workers know that have given up and have heard of the aggregator, by shard index."""


def _explain_refusal(heard: _Heard) -> str | None:
    """What keeps the aggregator from taking anything of a worker."""
    for worker, reason in heard.items():
        echo = reason.echo
        assert echo is not None
        if echo.version != VERSION:
            return (
                f"the aggregator speaks version {echo.version} of the packet format and drops what worker {worker} "
                f"sends, which is of version {VERSION}: generate both anew with the same version of p4sgd"
            )
        if echo.failed:
            return f"the aggregator drops what worker {worker} sends: it is {echo.failed[0].help}"
        if reason.absent is None:
            return (
                f"the aggregator is in round {echo.round}, not in that of worker {worker} {reason}: begin the job anew"
            )
    return None


def _explain_loss_up(heard: _Heard) -> str | None:
    """Whose own packets do not come, though its probes do."""
    lost = {worker: reason for worker, reason in heard.items() if worker in _absent(reason)}
    if not lost:
        return None
    first = next(iter(lost.values()))
    alike = [worker for worker, reason in lost.items() if replace(reason, echo=first.echo) == first]
    what = f"{'PARTIAL' if first.partial else 'ACK'} of worker {_names(alike)} {first}"
    return (
        f"no {what} came to the aggregator, though a probe did: frames are lost on the way up; check that link, or "
        "allow more resends"
    )


def _explain_gone(heard: _Heard) -> str | None:
    """Who is missing and was not heard."""
    waiting = {worker: reason for worker, reason in heard.items() if _absent(reason) - heard.keys()}
    if not waiting:
        return None
    gone = {shard for reason in waiting.values() for shard in _absent(reason) - heard.keys()}
    return f"worker {_names(gone)} no longer answers: worker {_names(waiting)} waited for it in vain {_place(waiting)}"


def _explain_late(heard: _Heard) -> str | None:
    """Whose PARTIAL came when others no longer waited for it; it has come, for what never did is told before."""
    for late, reason in heard.items():
        place = reason.slot, reason.round
        waited = [
            worker
            for worker, other in heard.items()
            if other.partial and (other.slot, other.round) == place and late in _absent(other)
        ]
        if waited:
            return (
                f"worker {late} was late: worker {_names(waited)} had given up when its PARTIAL came {reason}; see "
                "what held it up, or let workers wait for longer"
            )
    return None


def _explain_loss_down(heard: _Heard) -> str | None:
    """Who has given up though all that it waited for has come to the aggregator."""
    for worker, reason in heard.items():
        if not _absent(reason):
            answer, last = ("FULL", "PARTIAL") if reason.partial else ("CLEAR", "ACK")
            return (
                f"worker {worker} gave up waiting for {answer} {reason}, which the aggregator could send by now: the "
                f"last {last} came late, or frames are lost on the worker's way down; let workers wait for longer, or "
                "check that link"
            )
    return None


def _explain_each_other(heard: _Heard) -> str:
    """Who waited for whom, if nobody knows more."""
    waits = ", ".join(f"worker {worker} for {_names(_absent(reason))} {reason}" for worker, reason in heard.items())
    return (
        f"workers waited for each other in vain: {waits}; see what held one of them up, or let workers wait for longer"
    )


def _absent(reason: GivenUp) -> frozenset[int]:
    assert reason.absent is not None
    return reason.absent


def _names(workers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(workers)))


def _place(reasons: _Heard) -> str:
    """Slot and round of the first."""
    return str(next(iter(reasons.values())))
