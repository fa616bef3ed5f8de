"""Why workers gave up waiting for the network."""

from collections.abc import Sequence
from dataclasses import dataclass

from p4sgd.host.devices.probe import Echo, ask_again, wait_for_echo
from p4sgd.host.errors import P4sgdError
from p4sgd.hw.spec import registers
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
        return f"slot {self.slot}, round {self.round}"


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
    settings.

    Parameters
    ----------
    known
        What `inquire` gives for the workers, by shard index.
    """
    missing: dict[int, list[int]] = {}
    where = unheard = ""
    for index, reason in enumerate(known):
        if reason is None:
            continue
        echo = reason.echo
        if echo is None:
            unheard = unheard or str(reason)
            missing.setdefault(index, [])  # those that were heard know better
            continue
        if echo.failed:
            return f"the aggregator drops what worker {index} sends: it is {echo.failed[0].help}"
        come = echo.aggregated if reason.partial else echo.acknowledged
        if echo.round != reason.round:
            return f"the aggregator is not in the round of worker {index} ({reason}): begin the job anew"
        where = where or str(reason)
        for shard in range(reason.workers):
            if not come >> shard & 1:
                missing.setdefault(shard, []).append(index)
    heard = {shard: waiting for shard, waiting in missing.items() if waiting}
    if heard:
        names = ", ".join(map(str, sorted(heard)))
        waiting = ", ".join(map(str, sorted({index for indices in heard.values() for index in indices})))
        return f"worker {names} no longer answers: worker {waiting} waited for it in vain ({where})"
    if missing:
        names = ", ".join(map(str, sorted(missing)))
        return (
            f"the aggregator does not answer worker {names}, not even a probe: its address is wrong, it does not run, "
            f"or a link is down ({unheard})"
        )
    return "a worker gave up waiting for the network"
