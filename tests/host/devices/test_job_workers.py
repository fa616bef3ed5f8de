"""Joins of workers in several ranks."""

import pytest
from support.ranks import run_ranks
from support.recording_device import RecordingWorker

from p4sgd.host.aggregators.membership import NumberTakenError
from p4sgd.host.devices.job_workers import JobWorkers
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import PRESETS

RANKS = 3


class Refusing:
    """A `Membership` that refuses the last worker."""

    def __init__(self):
        self.joined = []

    def join(self, applicant, port, first_round, *, index):
        self.joined.append(index)
        if len(self.joined) == RANKS:
            raise NumberTakenError("the number is taken")


def test_a_refusal_reaches_all_ranks():
    """All ranks must then take the next number. Only the first controls the aggregator."""
    membership = Refusing()

    def join(ranks):
        workers = JobWorkers(lambda: membership if ranks.rank == 0 else pytest.fail("not the first"), ranks)
        worker = RecordingWorker(PRESETS["tiny"](), size=16)
        with pytest.raises(NumberTakenError, match="the number is taken"):
            workers.before_write(worker, ranks.rank, 0, registers.JOIN.offset, registers.JOIN.encode(round=1))
        return ranks.rank

    assert run_ranks(RANKS, join) == [0, 1, 2]
    assert membership.joined == [0, 1, 2]
