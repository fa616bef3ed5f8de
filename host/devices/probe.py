"""Probes: what an aggregator answers when a worker asks it."""

from dataclasses import dataclass

from p4sgd.hw.spec import registers
from p4sgd.hw.spec.drop import VERDICT, Drop
from p4sgd.hw.spec.register_map import RegisterClient

__all__ = ["Echo", "failed_checks", "probe", "wait_for_echo"]

_READS = 1000
"""How often to look for an echo of which there is only one: it comes within microseconds or not at all."""

_READS_OF_MANY = 250
"""How often to look for one of many."""


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
    aggregated
        Bitmap of the shards whose partials the slot has there.
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
    aggregated: int
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
    head = wait_for_echo(client, _READS_OF_MANY)
    if head is None:
        return None
    return Echo(
        failed=failed_checks(head["verdict"]),
        port=head["port"],
        version=head["version"],
        workers=client.read(registers.ECHO_JOB)["workers"],
        slots=client.read(registers.ECHO_SLOTS)["value"],
        source=client.read_pair(registers.ECHO_SOURCE),
        expected=client.read_pair(registers.ECHO_EXPECTED),
        aggregated=client.read(registers.ECHO_AGGREGATED)["value"],
        cycles=client.read(registers.ECHO_CYCLES)["value"],
    )


def failed_checks(verdict: int) -> tuple[Drop, ...]:
    """Checks of `VERDICT` that an aggregator says have failed."""
    return tuple(check for bit, check in enumerate(VERDICT) if verdict >> bit & 1)


def wait_for_echo(client: RegisterClient, reads: int = _READS) -> dict[str, int] | None:
    """The fields of ECHO once the last probe is answered; None if it is not when it was read so often."""
    for _ in range(reads):
        echo = client.read(registers.ECHO)
        if echo["came"]:
            return echo
    return None
