"""Results of an examination. Every check gathers evidence and problems, and `judge` makes findings of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias

Evidence: TypeAlias = Mapping[str, int | str]
"""Numbers and addresses (as text) that were read, by name."""


class Result(Enum):
    """Outcome of a check."""

    PASSED = "passed"
    WARNING = "warning"  # training works, but not as well as it could
    LATE = "late"  # the worker is not there yet, which its entry in the cluster file allows
    FAILED = "failed"  # training does not work


class Problem(NamedTuple):
    """A problem, and what to do about it."""

    text: str
    remedy: str = ""
    result: Result = Result.FAILED


@dataclass(frozen=True)
class Finding:
    """Result of one check of one worker."""

    # Its number in the cluster file, its shard where there is none; None if the check is of all workers together, or of
    # a link of the aggregator.
    worker: int | None
    # ``worker``, ``board``, ``card``, ``ethernet``, ``link``, ``settings``, ``packets``, ``rack``, ``allreduce`` or
    # ``weights``; of a board's self-test ``clock``, ``memory <port>``, ``cage <number>`` or ``card``.
    check: str
    result: Result
    evidence: Evidence = field(default_factory=dict)
    problem: str = ""
    remedy: str = ""


def judge(worker: int | None, check: str, evidence: Evidence, *problems: Problem | None) -> list[Finding]:
    """A finding for each problem that there is, or one that has passed."""
    found = [problem for problem in problems if problem is not None]
    if not found:
        return [Finding(worker, check, Result.PASSED, evidence)]
    return [Finding(worker, check, problem.result, evidence, problem.text, problem.remedy) for problem in found]


@dataclass(frozen=True)
class Examination:
    """Findings in the order of the checks; a failed one on which later checks depend leaves it not ``complete``."""

    findings: tuple[Finding, ...]
    complete: bool

    @property
    def healthy(self) -> bool:
        """No check has failed, so the cluster can train."""
        return all(finding.result is not Result.FAILED for finding in self.findings)
