"""Growth of counters per second, as it is measured between two reads."""

from __future__ import annotations

import math

NAN = math.nan


class Rate:
    """Growth per second of a counter; NaN for a time in which it went backwards (it was made anew)."""

    def __init__(self) -> None:
        self._last: float | None = None

    def update(self, value: float | None, seconds: float) -> float:
        """The growth since the last update, per second; NaN without two usable readings.

        Args:
            value: the counter now, None if it can't be read.
            seconds: time since the last update; 0 if that time is not to be trusted.
        """
        last, self._last = self._last, value
        if value is None or last is None or seconds <= 0 or value < last:
            return NAN
        return (value - last) / seconds


class Share:
    """A rate as a part of what is possible at most, in [0, 1].

    Counters are read a moment after the clock, later still where tasks queue for the CPU: what is over 1 in one sample
    is missing in the next, and carried there. Cut off instead, a node that is full all the time would read as 0.9.
    """

    def __init__(self) -> None:
        self._over_seconds = 0.0

    def update(self, rate: float, seconds: float) -> float:
        """The part; NaN if the rate is.

        Args:
            rate: growth per second over what it can be at most.
            seconds: time that the rate spans.
        """
        if math.isnan(rate):
            self._over_seconds = 0.0
            return NAN
        total = rate + self._over_seconds / seconds
        share = clip(total)
        # Never for longer than a sample: the known maximum may itself be wrong
        self._over_seconds = min(total - share, 1.0) * seconds
        return share


def clip(value: float) -> float:
    """Into [0, 1]; NaN stays NaN."""
    return value if math.isnan(value) else min(max(value, 0.0), 1.0)
