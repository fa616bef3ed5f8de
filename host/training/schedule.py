"""Schedules that lower the learning rate over the epochs."""

SCHEDULES = ("constant", "invscaling", "adaptive")
"""Schedules by name, as scikit-learn calls them.

constant: the initial rate. invscaling: initial rate / epoch^power. adaptive: when the monitored loss has made no
progress for ``patience`` epochs, by default one, training goes back to the best weights with a fifth of the rate. If
that gives better weights, but too slowly to count as progress, it goes on from these with the rate from before; if it
gives none, with a fifth of the rate again. Then it keeps the rate for as long as that gives better weights.
With every schedule training that diverges begins again with a tenth of the rate, or with less where trials find that.
"""

_ADAPTIVE_DIVISOR = 5.0
"""Factor by which ``adaptive`` lowers the rate, that of scikit-learn."""

_LARGEST_DIVISOR = 5.0**4
"""Largest factor by which ``adaptive`` lowers the rate: with a smaller one weights would hardly move."""

_DIVERGENCE_DIVISOR = 10.0
"""Least factor by which the rate is lowered when training diverges."""


class LearningRateSchedule:
    """The learning rate of each epoch, by one of `SCHEDULES`: of the ``first`` one, as it is since training diverged
    last, and at least ``smallest``. ``power`` is the exponent of ``invscaling``; ``adaptive`` waits for ``patience``
    epochs without progress, ``None`` is 1, and has lowered the rate by a ``divisor`` so far."""

    def __init__(
        self,
        name: str,
        first: float,
        power: float,
        smallest: float = 0.0,
        patience: int | None = None,
        divisor: float = 1.0,
    ) -> None:
        self.first = first
        self.divisor = divisor
        self._name = name
        self._power = power
        self._smallest = min(smallest, first)
        self._patience = patience

    def rate(self, epoch: int) -> float:
        """The rate of an epoch, counted from 1."""
        # epoch^-power underflows to 0, where epoch^power would overflow.
        factor = float(epoch) ** -self._power if self._name == "invscaling" else 1.0
        return max(self.first * factor / self.divisor, self._smallest)

    @property
    def lowest(self) -> bool:
        """Whether the rate cannot be lowered further."""
        return self.first / self.divisor <= self._smallest

    def lower(self, most: float) -> None:
        """Begin again with a tenth of the rate, or with ``most`` if that is less: training diverged."""
        lower = min(self.first / self.divisor / _DIVERGENCE_DIVISOR, most)
        self.first, self.divisor = max(lower, self._smallest), 1.0

    def is_progress(self, loss: float, best: float, tolerance: float) -> bool:
        """Whether a loss is less than the best one by more than the tolerance, a fraction of the best one.

        With a lower rate, which makes smaller steps, ``adaptive`` divides the tolerance like the rate, unless training
        is to end after a patience.
        """
        return loss < best * (1 - tolerance / (1 if self._patience else self.divisor))

    def adapt(self, idle: int, since_best: int) -> bool:
        """Change the rate of ``adaptive`` if ``idle`` epochs without progress are enough; returns whether it did.

        After as many epochs as it waits for, it divides the rate by 5, which gets rid of noise. If that has only made a
        slow fall slower after as many more, it takes it back, and keeps the rate for as long as it finds better
        weights, the last ``since_best`` epochs ago. Whenever a rate has found none, it divides it once more: from the
        same weights it would give the same epochs again."""
        times, rest = divmod(idle, self._patience or 1)
        if self._name != "adaptive" or not times or rest:
            return False
        if times > 1 and since_best < (self._patience or 1):
            if times > 2 or self.divisor == 1:
                return False
            self.divisor /= _ADAPTIVE_DIVISOR
            return True
        lower = self.divisor * _ADAPTIVE_DIVISOR
        if self.lowest or lower > _LARGEST_DIVISOR:
            return False
        self.divisor = lower
        return True
