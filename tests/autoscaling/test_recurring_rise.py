"""Rises that every season has at the same time count before the last hour shows them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from concerto.autoscaling.forecast_influence import ForecastResult, Subject, predict
from concerto.autoscaling.forecast_settings import ForecastSettings
from concerto.autoscaling.history import Ring, coarse_ring, weekly_ring

DAY, HOUR = 86400.0, 3600.0
THREE_DAYS = 72 * HOUR
FIFTEEN_DAYS = 15 * DAY
Load = Callable[[float], float]


def mornings(at: float) -> float:
    """2 replicas, 8 from 8:00 to 18:00 on the first five of seven days."""
    return 8.0 if at // DAY % 7 < 5 and 8 <= at % DAY / HOUR < 18 else 2.0


def once(at: float) -> float:
    """The same, but only on day 24."""
    return mornings(at) if at // DAY == 24 else 2.0


def quarter_past(at: float) -> float:
    """2 replicas, 6 from 15 to 20 minutes past each hour."""
    return 6.0 if 900 <= at % HOUR < 1200 else 2.0


def subject(load: Load, now: float, *, days: float = 16, weekly: bool = True) -> Subject:
    fine, coarse, weeks = Ring(15, 240), coarse_ring(THREE_DAYS), weekly_ring(THREE_DAYS)
    assert weeks is not None
    for at in np.arange(now - days * DAY, now, 300.0):
        coarse, weeks = coarse.add(at, load(at)), weeks.add(at, load(at))
    for at in np.arange(now - HOUR, now, 15.0):
        fine = fine.add(at, load(at))
    return Subject(fine, coarse, 120.0, now - 7.5, weekly=weeks if weekly else None)


def result(who: Subject, now: float) -> ForecastResult:
    (found,) = predict([who], now, ForecastSettings(), stale_seconds=120.0)
    return found


def just_before(day: int, hour: float = 8.0) -> float:
    return day * DAY + hour * HOUR - 90.0


MONDAY, FRIDAY, SATURDAY = just_before(21), just_before(25), just_before(26)


def test_a_morning_that_all_days_had_counts_before_it_comes():
    found = result(subject(mornings, FRIDAY), FRIDAY)
    assert (found.reason, found.model, found.expected) == ("ForecastActive", "Seasonal", 8.0)


@pytest.mark.parametrize("minutes", [5, 60])
def test_it_does_not_count_before_the_horizon_reaches_it_nor_twice(minutes):
    early, late = FRIDAY - 60.0 * minutes, FRIDAY + 90.0 + 60.0 * minutes
    assert result(subject(mornings, early), early).expected < 3.0
    assert result(subject(mornings, late), late).expected < 9.0


def test_weeks_know_the_weekend():
    assert result(subject(mornings, MONDAY), MONDAY).expected == 8.0
    assert result(subject(mornings, SATURDAY), SATURDAY).expected < 3.0


def test_without_weeks_days_decide():
    assert result(subject(mornings, MONDAY, weekly=False), MONDAY).expected < 3.0
    assert result(subject(mornings, SATURDAY, weekly=False), SATURDAY).expected == 8.0


def test_what_only_one_season_had_does_not_count():
    assert result(subject(once, FRIDAY), FRIDAY).expected < 3.0
    assert result(subject(mornings, FRIDAY, days=1.5), FRIDAY).expected < 3.0


def test_hours_count_if_three_in_a_row_agree():
    now = just_before(25, 8.25)
    assert result(subject(quarter_past, now, days=0.2), now).expected == 6.0
    assert result(subject(quarter_past, now, days=2.5 / 24), now).expected < 3.0


def test_today_is_scaled_by_how_it_compares():
    who = subject(lambda at: 0.5 * mornings(at) if at // DAY == 25 else mornings(at), FRIDAY)
    assert result(who, FRIDAY).expected == 4.0


def test_a_model_without_seasons_has_no_recurring_rise():
    assert result(replace(subject(mornings, FRIDAY), models=("Linear",)), FRIDAY).expected < 3.0


def test_one_object_does_not_depend_on_the_others():
    mine, other = subject(mornings, FRIDAY), subject(once, FRIDAY)
    found = predict([other, mine], FRIDAY, ForecastSettings(), stale_seconds=120.0)
    assert [found[0].expected < 3.0, found[1].expected] == [True, 8.0]
