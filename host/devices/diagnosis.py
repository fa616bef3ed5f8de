"""Why workers gave up waiting for the network."""

from collections.abc import Sequence

from p4sgd.host.devices.probe import ask_again, wait_for_echo
from p4sgd.host.errors import P4sgdError
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.register_map import RegisterClient

__all__ = ["NetworkError", "explain_network_error"]


class NetworkError(P4sgdError):
    """Workers gave up waiting for the network."""


def explain_network_error(clients: Sequence[RegisterClient]) -> str:
    """What the workers that have given up know of it, in one line.

    Each has asked the aggregator about the slot that went without an answer, and asks again if it was not heard: a
    network that loses much is no dead one. What comes back says which shards are missing there, or what is wrong with
    the worker's own settings.

    Parameters
    ----------
    clients
        The workers, by shard index.
    """
    missing: dict[int, list[int]] = {}
    where = unheard = ""
    for index, client in enumerate(clients):
        reason = client.read(registers.GIVEN_UP)
        if not reason["given_up"]:
            continue
        here = f"slot {reason['slot']}, round {reason['round']}"
        echo = wait_for_echo(client) or ask_again(client, reason["slot"])
        if echo is None:
            unheard = unheard or here
            missing.setdefault(index, [])  # those that were heard know better
            continue
        if echo.failed:
            return f"the aggregator drops what worker {index} sends: it is {echo.failed[0].help}"
        come = echo.aggregated if reason["partial"] else echo.acknowledged
        if echo.round != reason["round"]:
            return f"the aggregator is not in the round of worker {index} ({here}): begin the job anew"
        where = where or here
        for shard in range(client.read(registers.JOB)["workers"]):
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
