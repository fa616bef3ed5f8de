"""Learning-rate schedules, epoch by epoch: the rate is a register that the host writes before each run."""

__all__ = ["SCHEDULES", "LearningRateSchedule"]

SCHEDULES = ("constant", "invscaling", "adaptive")
"""Schedules by name, as scikit-learn calls them.

constant: the first rate throughout. invscaling: first rate / epoch^power. adaptive: the rate is divided by 5 whenever
the monitored loss has made no progress for `ADAPTIVE_EPOCHS` epochs.
"""

ADAPTIVE_EPOCHS = 3
"""Epochs without progress before ``adaptive`` lowers the rate."""

_ADAPTIVE_DIVISOR = 5.0


class LearningRateSchedule:
    """The learning rate of each epoch.

    Parameters
    ----------
    name
        One of `SCHEDULES`.
    first
        Rate of the first epoch.
    power
        Exponent of ``invscaling``.
    smallest
        Rate below which it does not go.
    """

    def __init__(self, name: str, first: float, power: float, smallest: float = 0.0) -> None:
        self._name = name
        self._first = first
        self._power = power
        self._smallest = smallest
        self._divisor = 1.0
        self._idle = 0

    def rate(self, epoch: int) -> float:
        """The rate of an epoch, counted from 1."""
        if self._name == "constant":
            return self._first
        divisor = float(epoch) ** self._power if self._name == "invscaling" else self._divisor
        return max(self._first / divisor, min(self._smallest, self._first))

    def report(self, *, progress: bool) -> None:
        """Tell whether the epoch that has ended lowered the monitored loss."""
        self._idle = 0 if progress else self._idle + 1
        if self._name == "adaptive" and self._idle >= ADAPTIVE_EPOCHS:
            self._divisor *= _ADAPTIVE_DIVISOR
            self._idle = 0
