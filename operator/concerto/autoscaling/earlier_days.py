"""The load that earlier days had at a time of day, for objects of which no metric has an answer."""

from __future__ import annotations

import numpy as np

from concerto.autoscaling.daylight_saving import by_todays_clock
from concerto.autoscaling.history import Ring

_DAY = 86400.0
_DAYS, _MIN_DAYS = 3, 2


def highest_of_earlier_days(ring: Ring, now: float, ahead_seconds: float, time_zone: str) -> float | None:
    """The highest load of the last three days from this time of day on; the present load is not known.

    It is the highest and not a mean, because one of the three may have been a Sunday.

    Args:
        ring: the load of the last days.
        now: seconds.
        ahead_seconds: length of the time that counts on each day.
        time_zone: IANA name of the zone that the time of day is of.

    Returns:
        Replicas at their target; None where fewer than two days are known.
    """
    first = int(now // ring.step) - ring.length + 1
    (values,) = by_todays_clock(ring.until(now, ring.length)[np.newaxis], [time_zone], first, ring.step)
    found = []
    for day in range(1, _DAYS + 1):
        begin, end = (int((now - day * _DAY + ahead) // ring.step) - first for ahead in (0.0, ahead_seconds))
        known = values[max(begin, 0) : max(end + 1, 0)]
        known = known[np.isfinite(known)]
        if known.size:
            found.append(float(known.max()))
    return max(found) if len(found) >= _MIN_DAYS else None
