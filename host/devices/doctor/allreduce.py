"""AllReduces of all workers, tried with a small job."""

import numpy as np
import numpy.typing as npt

from p4sgd.host.devices.doctor.finding import Finding, Result
from p4sgd.host.devices.doctor.trial import Trial
from p4sgd.host.devices.session import Session
from p4sgd.host.errors import P4sgdError
from p4sgd.host.switch.controller import Controller
from p4sgd.hw.spec.fixed import IntArray

__all__ = ["examine_allreduce"]

_RUNS = 48
"""Of two workers that lose 30 % of all frames each way, one that is in the group seems not to be in 72 % of the runs:
in so many of them once in 7 million times."""

_CHECK = "allreduce"


def examine_allreduce(session: Session, trial: Trial, aggregator: Controller | None) -> list[Finding]:
    """Run a job of one micro-batch many times, and compare its weights with the golden model's.

    A worker that gets nothing of what is sent to all trains all the same, slowly: it sends everything again, and the
    aggregator answers to it alone. So a worker gets what is sent to all if in some run it sent less often again than
    for the first time: something was answered that was not sent again.

    Parameters
    ----------
    session, trial
        A session on the cluster, and the job, which has not run yet.
    aggregator
        The aggregator, if it can be read.

    Returns
    -------
    Findings ``allreduce`` and ``weights`` of every worker; one of all together if a run fails.
    """
    sent, resent = np.zeros((2, session.workers), np.int64)
    hears = np.zeros(session.workers, bool)
    before = None if aggregator is None else aggregator.counters()
    for run in range(_RUNS):
        try:
            counters = trial.run()
        except P4sgdError as error:
            return [Finding(None, _CHECK, Result.FAILED, {"runs": run}, str(error))]
        again = np.array([worker["PACKETS_RESENT"] for worker in counters])
        total = np.array([worker["PACKETS_SENT"] for worker in counters])
        hears |= again < total - again
        sent += total
        resent += again
    answered: dict[str, int] = {}
    if aggregator is not None and before is not None:
        after = aggregator.counters()
        names = [name for name in ("FULLS_TO_ONE", "CLEARS_TO_ONE") if name in after]
        answered = {f"aggregator_{name.lower()}": after[name] - before[name] for name in names}
    evidence = [{"packets": int(sent[i]), "sent_again": int(resent[i])} | answered for i in range(session.workers)]
    weights = zip(session.read_weights(), trial.weights, strict=True)
    return [
        *(_judge(worker, hears, each) for worker, each in enumerate(evidence)),
        *(_compare(worker, *each) for worker, each in enumerate(weights)),
    ]


def _judge(worker: int, hears: npt.NDArray[np.bool_], evidence: dict[str, int]) -> Finding:
    if not hears[worker]:
        return Finding(
            worker,
            _CHECK,
            Result.FAILED,
            evidence,
            "nothing that the aggregator sends to all comes to it, only what is sent to it alone",
            "see that the job's ports at the aggregator have that of the worker, and that switches on the way forward "
            "the group address to it",
        )
    if evidence["sent_again"] and hears.all():  # else the others only had to wait for one that hears nothing
        return Finding(
            worker,
            _CHECK,
            Result.WARNING,
            evidence,
            f"it sent {evidence['sent_again']} of {evidence['packets']} packets again, which none should need",
            "check the links for bit errors, and that an answer takes less than RESEND_CYCLES",
        )
    return Finding(worker, _CHECK, Result.PASSED, evidence)


def _compare(worker: int, weights: IntArray, expected: IntArray) -> Finding:
    wrong = int(np.count_nonzero(weights != expected))
    evidence: dict[str, int] = {"weights": weights.size, "wrong": wrong}
    if not wrong:
        return Finding(worker, "weights", Result.PASSED, evidence)
    return Finding(
        worker,
        "weights",
        Result.FAILED,
        evidence,
        f"{wrong} of its {weights.size} weights are not those of the exact model",
        "see that no other device changes or sends packets of this job; then suspect the board and its memory",
    )
