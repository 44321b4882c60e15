"""Seasons by the clock of a time zone, before and after daylight saving time begins and ends."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from functools import cache
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from concerto.autoscaling.daylight_saving import by_todays_clock
from concerto.autoscaling.forecast_influence import Subject, predict
from concerto.autoscaling.forecast_settings import ForecastSettings
from concerto.autoscaling.history import Ring, coarse_ring, weekly_ring

HOUR = 3600.0
BERLIN = ZoneInfo("Europe/Berlin")


def load(at: float) -> float:
    """2 replicas; each day they rise to 10 from 8:00 to 8:45 in Berlin, and fall at 18:00."""
    time = datetime.fromtimestamp(at, BERLIN)
    hour = time.hour + time.minute / 60 + time.second / 3600
    return 2.0 if hour >= 18 else 2.0 + 8.0 * min(max((hour - 8.0) / 0.75, 0.0), 1.0)


def subject(now: float, time_zone: str, hours: float) -> Subject:
    fine, coarse, weekly = Ring(15, 240), coarse_ring(hours * HOUR), weekly_ring(hours * HOUR)
    for at in np.arange(now - (hours + 24.0) * HOUR, now, 300.0):
        coarse, weekly = coarse.add(at, load(at)), weekly and weekly.add(at, load(at))
    for at in np.arange(now - HOUR, now, 15.0):
        fine = fine.add(at, load(at))
    who = Subject(fine, coarse, 900.0, now - 7.5, models=("Seasonal",), weekly=weekly)
    return replace(who, time_zone=time_zone)


def berlin(day: str, time: str) -> float:
    return datetime.fromisoformat(f"{day}T{time}").replace(tzinfo=BERLIN).timestamp()


SUNDAYS = {"it begins": "2026-03-29", "it ends": "2026-10-25", "it began three days ago": "2026-04-01"}


@cache
def expected(day: str, time: str, time_zone: str = "Europe/Berlin", hours: float = 72.0) -> float | None:
    now = berlin(day, time)
    (found,) = predict([subject(now, time_zone, hours)], now, ForecastSettings(), stale_seconds=120.0)
    return found.expected


@pytest.mark.parametrize("hours", [72, 256])
@pytest.mark.parametrize("day", SUNDAYS.values(), ids=SUNDAYS)
@pytest.mark.parametrize("time", ["07:00", "07:55", "09:00"])
def test_a_rise_stays_at_its_local_time(day, hours, time):
    """... as if the clock had not been changed: there is no change in June."""
    assert expected(day, time, hours=hours) == pytest.approx(expected("2026-06-28", time, hours=hours))


def test_by_the_clock_of_utc_it_is_an_hour_late():
    assert expected("2026-03-29", "07:55") > 3.0
    assert expected("2026-03-29", "07:55", "UTC") == pytest.approx(2.0)


def test_only_rows_of_the_zone_move_and_the_array_given_stays():
    first = int(berlin("2026-03-28", "00:00") // 3600)
    values = np.vstack([np.arange(48.0)] * 3)
    moved = by_todays_clock(values, ["Europe/Berlin", "UTC", "Mars/Base"], first, 3600)
    assert (moved[1:] == values[1:]).all() and (values == np.arange(48.0)).all()
    # Until 2:00 of the 29th, a bucket of UTC+1 has the load of an hour later by the clock of UTC+2
    assert moved[0, :26].tolist() == [*range(1, 27)]
    assert moved[0, 26:].tolist() == [*range(26, 48)]


def test_buckets_that_do_not_divide_an_hour_are_interpolated():
    step = 1440
    first = int(berlin("2026-03-28", "00:00") // step)
    moved = by_todays_clock(np.arange(120.0)[None], ["Europe/Berlin"], first, step)
    assert moved[0, :60].tolist() == [i + 2.5 for i in range(60)]
    gap = np.where(np.arange(120) == 30, np.nan, 1.0)[None]
    assert np.isnan(by_todays_clock(gap, ["Europe/Berlin"], first, step)[0]).nonzero()[0].tolist() == [27, 28]


def test_what_did_not_occur_is_not_known():
    first = int(berlin("2026-10-24", "00:00") // 3600)
    moved = by_todays_clock(np.arange(48.0)[None], ["Europe/Berlin"], first, 3600)
    assert np.isnan(moved[0, 0]) and moved[0, 1] == 0.0


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Asia/Tokyo", "no zone", ""])
def test_without_a_change_nothing_is_copied(zone):
    values = np.ones((1, 48))
    assert by_todays_clock(values, [zone], int(berlin("2026-06-01", "00:00") // 3600), 3600) is values
