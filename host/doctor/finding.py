"""Results of an examination."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

__all__ = ["Examination", "Finding", "Result"]


class Result(Enum):
    """Outcome of a check."""

    PASSED = "passed"
    WARNING = "warning"
    """Training works, but not as well as it could."""
    LATE = "late"
    """The worker is not there yet, which its entry in the cluster file allows."""
    FAILED = "failed"
    """Training does not work."""


@dataclass(frozen=True)
class Finding:
    """Result of one check of one worker.

    Parameters
    ----------
    worker
        Number of the worker in the cluster file, its shard where there is none; ``None`` if the check is of all workers
        together, or of a link of the aggregator.
    check
        Name of the check: ``worker``, ``board``, ``ethernet``, ``link``, ``settings``, ``packets``, ``allreduce`` or
        ``weights``; of a board's self-test ``clock``, ``memory <port>`` or ``cage <number>``.
    result
        Outcome of the check.
    evidence
        Numbers and addresses (as text) that were read, by name.
    problem
        What is wrong, if anything.
    remedy
        What to do about it.
    """

    worker: int | None
    check: str
    result: Result
    evidence: Mapping[str, int | str] = field(default_factory=dict)
    problem: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Examination:
    """The findings of an examination.

    Parameters
    ----------
    findings
        Findings in the order of the checks.
    complete
        Whether all checks were made. A check that fails ends the examination if later checks depend on it.
    """

    findings: tuple[Finding, ...]
    complete: bool

    @property
    def healthy(self) -> bool:
        """Whether no check has failed, so that the cluster can train."""
        return all(finding.result is not Result.FAILED for finding in self.findings)
