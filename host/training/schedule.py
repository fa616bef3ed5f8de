"""Learning-rate schedules, epoch by epoch: the rate is a register that the host writes before each run."""

__all__ = ["SCHEDULES", "LearningRateSchedule"]

SCHEDULES = ("constant", "invscaling", "adaptive")
"""Schedules by name, as scikit-learn calls them.

constant: the first rate throughout. invscaling: first rate / epoch^power. adaptive: the rate is divided by 5 whenever
the monitored loss has made no progress for as many epochs as training is patient, else for `ADAPTIVE_EPOCHS`; a patient
training ends when the rate can go no lower.
"""

ADAPTIVE_EPOCHS = 3
"""Epochs without progress before ``adaptive`` lowers the rate of a training that never stops early."""

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
    patience
        Epochs without progress before ``adaptive`` lowers the rate; ``None`` is `ADAPTIVE_EPOCHS`.
    divisor
        By what ``adaptive`` has divided the first rate so far.
    """

    def __init__(
        self,
        name: str,
        first: float,
        power: float,
        smallest: float = 0.0,
        patience: int | None = None,
        divisor: float = 1.0,
    ) -> None:
        self._name = name
        self._first = first
        self._power = power
        self._smallest = min(smallest, first)
        self._patience = patience or ADAPTIVE_EPOCHS
        self._divisor = divisor

    @property
    def divisor(self) -> float:
        """By what the first rate is divided now."""
        return self._divisor

    def rate(self, epoch: int) -> float:
        """The rate of an epoch, counted from 1."""
        # A negative power becomes 0 where a positive one would overflow.
        factor = float(epoch) ** -self._power if self._name == "invscaling" else 1 / self._divisor
        return max(self._first * factor, self._smallest)

    def lower_after(self, idle: int) -> bool:
        """Lower the rate if it is adaptive and ``idle`` epochs without progress are enough; whether it did."""
        lowers = self._name == "adaptive" and idle >= self._patience and self._first / self._divisor > self._smallest
        if lowers:
            self._divisor *= _ADAPTIVE_DIVISOR
        return lowers
