"""Probes: what an aggregator answers when a worker asks it."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat

from p4sgd.hw.spec import registers
from p4sgd.hw.spec.drop import VERDICT, Drop
from p4sgd.hw.spec.register_map import RegisterClient

__all__ = ["PROBES", "Echo", "ask_again", "probe", "wait_for_echo"]

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
