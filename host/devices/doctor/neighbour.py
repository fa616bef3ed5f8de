"""What an aggregator that cannot be read has heard of silent workers: it tells others when they ask."""

import contextlib
from dataclasses import replace

from p4sgd.host.devices.doctor.finding import Finding
from p4sgd.host.devices.doctor.link import DOWN_REMEDY, UP_REMEDY
from p4sgd.host.devices.doctor.trial import Trial
from p4sgd.host.devices.probe import ask_again
from p4sgd.host.errors import P4sgdError
from p4sgd.hw.spec.register_map import RegisterClient

__all__ = ["ask_neighbour", "tell_ways_apart"]


def ask_neighbour(trial: Trial, client: RegisterClient, echo_s: float) -> int | None:
    """Have all workers begin an AllReduce that silent ones do not let end; a neighbour asks whose partials have come.

    Parameters
    ----------
    trial
        The job, which has not run yet.
    client
        A worker with nothing wrong.
    echo_s
        As `p4sgd.host.devices.probe.probe` has it.

    Returns
    -------
    Bitmap of shards; ``None`` if there is no answer.
    """
    with contextlib.suppress(P4sgdError):
        trial.run()
    echo = ask_again(client, slot=0, echo_s=echo_s)
    return None if echo is None else echo.aggregated


def tell_ways_apart(link: Finding, heard: int) -> Finding:
    """What is wrong with the link of a worker of which no probe is answered, given whose partials have come."""
    assert link.worker is not None
    if heard >> link.worker & 1:
        problem, remedy = "no probe is answered, but its partial came: the way down is dead", DOWN_REMEDY
    else:
        problem = "no probe is answered and no partial came: the way up is dead, or its settings are wrong"
        remedy = UP_REMEDY
    return replace(link, evidence={**link.evidence, "partials_of": f"{heard:#b}"}, problem=problem, remedy=remedy)
