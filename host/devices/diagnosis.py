"""Why workers gave up waiting for the network."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from p4sgd.host.devices.probe import Echo, ask_again, wait_for_echo
from p4sgd.host.errors import P4sgdError
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.packet import ROUND_BITS, VERSION
from p4sgd.hw.spec.register_map import RegisterClient

__all__ = ["GivenUp", "NetworkError", "explain_network_error", "inquire"]

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
