"""Probes: what an aggregator answers when a worker asks it."""

from dataclasses import dataclass

from p4sgd.hw.spec import registers
from p4sgd.hw.spec.drop import VERDICT, Drop
from p4sgd.hw.spec.register_map import RegisterClient

__all__ = ["PROBES", "Echo", "ask_again", "probe", "wait_for_echo"]

PROBES = 32
"""Probes that a worker sends before the aggregator counts as silent: over a link that loses half of the round trips it
would once in 4,000 million times."""

_READS = 250
"""How often to look for an echo: it comes within microseconds or not at all."""


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

    failed: tuple[Drop, ...]
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


def probe(client: RegisterClient, *, slot: int, number: int, broadcast: bool) -> Echo | None:
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
    """
    client.write(registers.PROBE, slot=slot, number=number, broadcast=int(broadcast))
    return wait_for_echo(client)


def ask_again(client: RegisterClient, slot: int) -> Echo | None:
    """Have a worker ask the aggregator of PEER_MAC about a slot until it is answered; None if it never is."""
    answers = (probe(client, slot=slot, number=number, broadcast=False) for number in range(1, 1 + PROBES))
    return next((answer for answer in answers if answer is not None), None)


def wait_for_echo(client: RegisterClient) -> Echo | None:
    """The answer to a worker's last probe, once it is there; None if it does not come."""
    for _ in range(_READS):
        head = client.read(registers.ECHO)
        if head["came"]:
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
