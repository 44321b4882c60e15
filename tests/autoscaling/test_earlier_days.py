"""The load that earlier days had at a time of day."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from concerto.autoscaling.earlier_days import highest_of_earlier_days
from concerto.autoscaling.history import Ring, coarse_ring

DAY, HOUR = 86400.0, 3600.0
NOW = 100 * DAY + 8 * HOUR


def ring(load: Callable[[float], float], days: float, now: float = NOW) -> Ring:
    """The load of so many days, and nothing of the last hour."""
    found = coarse_ring(96 * HOUR)
    for at in np.arange(now - days * DAY, now - HOUR, 300.0):
        found = found.add(at, load(at))
    return found


def morning(at: float) -> float:
    """1 replica, and from 8:15 on one more than the day of four days."""
    return 1.0 if at % DAY < 8.25 * HOUR else 2.0 + at // DAY % 4


DAYS = {
    "a rise within the time that counts": (ring(morning, 3.5), 1200.0, 5.0),
    "a rise after it": (ring(morning, 3.5), 600.0, 1.0),
    "two days are enough": (ring(morning, 2.5), 1200.0, 5.0),
    "one is not": (ring(morning, 1.5), 1200.0, None),
    "nothing is known": (coarse_ring(72 * HOUR), 1200.0, None),
    "a ring that is shorter than a day": (Ring(300, 12).add(NOW, 4.0), 1200.0, None),
}


@pytest.mark.parametrize(("known", "ahead", "load"), DAYS.values(), ids=DAYS)
def test_the_highest_of_the_last_days_counts(known, ahead, load):
    assert highest_of_earlier_days(known, NOW, ahead, "UTC") == load


def test_the_time_of_day_is_that_of_the_time_zone():
    berlin = ZoneInfo("Europe/Berlin")
    now = datetime(2026, 3, 30, 8, tzinfo=berlin).timestamp()

    def load(at: float) -> float:
        time = datetime.fromtimestamp(at, berlin)
        return 5.0 if (time.hour, time.minute) >= (8, 15) else 1.0

    known = ring(load, 3.5, now)
    assert highest_of_earlier_days(known, now, 1200.0, "Europe/Berlin") == 5.0
    assert highest_of_earlier_days(known, now, 600.0, "Europe/Berlin") == 1.0
