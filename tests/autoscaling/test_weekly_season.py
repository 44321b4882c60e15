"""Seasons of a week by half hours, and days that do not follow seasons."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from concerto.autoscaling.forecast_influence import Subject, predict
from concerto.autoscaling.forecast_settings import ForecastSettings
from concerto.autoscaling.history import Ring, coarse_ring, weekly_ring

DAY, HOUR = 86400.0, 3600.0
THREE_DAYS = 72 * HOUR
SEVENTEEN_DAYS = 17 * DAY


def load(at: float) -> float:
    """2 replicas; on the first five of seven days they rise to 10 from 8:00 to 8:45, and fall at 18:00."""
    hour = at % DAY / HOUR
    if at // DAY % 7 >= 5 or hour >= 18:
        return 2.0
    return 2.0 + 8.0 * min(max((hour - 8.0) / 0.75, 0.0), 1.0)


def subject(now: float, history_seconds: float = THREE_DAYS) -> Subject:
    fine, coarse, weekly = Ring(15, 240), coarse_ring(history_seconds), weekly_ring(history_seconds)
    for at in np.arange(max(now - SEVENTEEN_DAYS, 0.0), now, 300.0):
        coarse, weekly = coarse.add(at, load(at)), weekly and weekly.add(at, load(at))
    for at in np.arange(now - HOUR, now, 15.0):
        fine = fine.add(at, load(at))
    return Subject(fine, coarse, 900.0, now - 7.5, models=("Seasonal",), weekly=weekly)


def expected(who: Subject, now: float) -> float | None:
    (found,) = predict([who], now, ForecastSettings(), stale_seconds=120.0)
    return found.expected


MONDAY, FRIDAY = 21 * DAY + 8.25 * HOUR, 25 * DAY + 8.25 * HOUR
RISEN = 6.0
"""Replicas: 4.7 now, and 7.3 a quarter of an hour later."""


def test_what_is_short_for_two_weeks_has_a_ring_of_half_hours_for_them():
    assert weekly_ring(THREE_DAYS) == Ring(1800, 720)
    assert weekly_ring(359 * HOUR) == Ring(1800, 720)
    assert weekly_ring(360 * HOUR) is None


@pytest.mark.parametrize("hours", [72, 168, 169, 200, 300, 400])
def test_weekends_are_known_whatever_the_length_of_the_history(hours):
    """Once Monday's rise is within the horizon it is expected, and none at that time of a Saturday."""
    for day, rises in ((26, False), (28, True)):
        now = day * DAY + 7.8 * HOUR
        assert (expected(subject(now, hours * HOUR), now) > 3.0) is rises


def test_after_a_weekend_the_week_before_shows_the_rise():
    who = subject(MONDAY)
    assert expected(who, MONDAY) > RISEN
    assert expected(replace(who, weekly=None), MONDAY) < RISEN


def test_an_exception_follows_no_season_of_a_day_or_longer():
    who = subject(FRIDAY)
    assert expected(who, FRIDAY) > RISEN
    today = (25 * DAY, 26 * DAY)
    assert expected(replace(who, exceptions=(today,)), FRIDAY) < RISEN


def test_an_exception_does_not_count_for_later_seasons():
    """Without the days before, the day that was one alone would show the rise."""
    who = subject(FRIDAY)
    only_yesterday = replace(who, season_start=24 * DAY, weekly=None, period_seconds=DAY)
    assert expected(only_yesterday, FRIDAY) > RISEN
    assert expected(replace(only_yesterday, exceptions=((24 * DAY, 25 * DAY),)), FRIDAY) is None


@pytest.mark.parametrize("span", [(0.0, DAY), (30 * DAY, 31 * DAY), (25 * DAY, 25 * DAY)])
def test_an_exception_outside_of_the_history_changes_nothing(span):
    who = subject(FRIDAY)
    assert expected(replace(who, exceptions=(span,)), FRIDAY) == expected(who, FRIDAY)


def test_neighbours_keep_their_seasons():
    who = subject(FRIDAY)
    off = replace(who, exceptions=((25 * DAY, 26 * DAY),))
    found = predict([off, who], FRIDAY, ForecastSettings(), stale_seconds=120.0)
    assert found[0].expected < RISEN
    assert found[1].expected == pytest.approx(expected(who, FRIDAY))
