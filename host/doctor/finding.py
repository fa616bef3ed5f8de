"""What an examination says."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

__all__ = ["Examination", "Finding", "Result"]


class Result(Enum):
    """How a check ended."""

    PASSED = "passed"
    WARNING = "warning"
    """Training works, but not as well as it could."""
    FAILED = "failed"
    """Training does not work."""


@dataclass(frozen=True)
class Finding:
    """What one check of one worker gave.

    Parameters
    ----------
    worker
        Index of the worker; ``None`` if it is about all of them together.
    check
        Name of the check: ``worker``, ``ethernet``, ``link``, ``settings``, ``allreduce`` or ``weights``.
    result
        How it ended.
    evidence
        Numbers, and addresses as text, that were read, by name.
    problem
        What is wrong, if something is.
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
    """All findings.

    Parameters
    ----------
    findings
        In the order of the checks.
    complete
        Whether all checks were made: one that fails ends the examination, because those after it need it.
    """

    findings: tuple[Finding, ...]
    complete: bool

    @property
    def healthy(self) -> bool:
        """Whether nothing keeps the cluster from training."""
        return all(finding.result is not Result.FAILED for finding in self.findings)
