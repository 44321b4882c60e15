"""Rises that every season has at the same time, such as the morning of a working day.

The backtest cannot credit them, because it judges by the last hour, and a morning comes once a day. So what counts is
that all remembered seasons agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from concerto.autoscaling.forecast import Forecasts
from concerto.autoscaling.forecasters import Floats, Seasons

_DAY_SECONDS, _WEEK_SECONDS = 86400.0, 604800.0
_RECENT_BUCKETS = 6
"""Whose mean a rise is above: half an hour of the coarse history."""
_POINTS = 4
"""Moments within the horizon that are compared, beside its begin."""
_MIN_SEASONS = 2


def with_recurring_rise(found: Forecasts, load: Floats, before: Floats) -> Forecasts:
    """The forecasts with recurring rises where they are higher: then they are active, and come from Seasonal.

    Args:
        found: of a group of objects.
        load: what `recurring_peak` gives now.
        before: what it gave one sample earlier.
    """
    is_higher = found.warm & (load > found.expected)
    return replace(
        found,
        expected=np.where(is_higher, load, found.expected),
        upper=np.where(is_higher, np.fmax(load, found.upper), found.upper),
        expected_before=np.where(is_higher, np.fmax(before, found.expected_before), found.expected_before),
        model=np.where(is_higher, len(found.names), found.model),
        names=(*found.names, "Seasonal"),
        better_than_no_change=found.better_than_no_change | is_higher,
    )


def recurring_peak(at: float, horizon_seconds: Floats, seasons: Sequence[Seasons], min_rise: float) -> Floats:
    """The load after the rise that all earlier seasons had within the horizon.

    Weeks know weekends, which days do not. Where two weeks are known, a rise of the days counts only if the weeks have
    it about that time.

    Args:
        at: the time, seconds.
        horizon_seconds: one per object.
        seasons: what earlier seasons had; each of one length for all objects.
        min_rise: a smaller rise does not count, as a share of the present load.

    Returns:
        Replicas, one per object; NaN where there is no such rise.
    """
    short, day = np.full(len(horizon_seconds), np.nan), np.full(len(horizon_seconds), np.nan)
    for season in sorted(seasons, key=lambda s: s.period_seconds):
        peak = _agreed_peak(season, at, horizon_seconds, min_rise)
        if season.period_seconds < _DAY_SECONDS:
            short = np.fmax(short, peak)
        elif season.period_seconds < _WEEK_SECONDS:
            day = peak
        else:
            about = _agreed_peak(season, at, horizon_seconds + season.step_seconds, min_rise)
            day = np.where(_knows(season, at), np.fmax(np.minimum(day, about), peak), day)
    return np.asarray(np.fmax(short, day))


def _agreed_peak(season: Seasons, at: float, ahead_seconds: Floats, min_rise: float) -> Floats:
    """The load after the least rise of all seasons, scaled by how today compares with them; NaN without one.

    Buckets are not interpolated, because people and programs begin on whole hours. Of seasons shorter than a day all
    must be known: three hours in a row may be alike by chance.
    """
    today, rises = _recent(season, at), []
    for number in range(1, season.remembered + 1):
        then = at - number * float(season.period_seconds)
        moments = [then + ahead_seconds * i / _POINTS for i in range(_POINTS + 1)]
        highest = np.max(np.stack([_bucket(season, each) for each in moments]), axis=0)
        recent = _recent(season, then)
        with np.errstate(invalid="ignore", divide="ignore"):
            rises.append((highest - recent) * np.clip(today / recent, 0.5, 2.0))
    least = np.fmin.reduce(rises)
    known = np.isfinite(rises).sum(axis=0)
    enough = _MIN_SEASONS if season.period_seconds >= _DAY_SECONDS else season.remembered
    return np.where((known >= enough) & (least > min_rise * today), today + least, np.nan)


def _knows(season: Seasons, at: float) -> NDArray[np.bool_]:
    """Whether enough seasons are known at that time, one per object."""
    numbers = range(1, season.remembered + 1)
    known = [np.isfinite(_recent(season, at - number * float(season.period_seconds))) for number in numbers]
    return np.asarray(np.sum(known, axis=0) >= _MIN_SEASONS)


def _recent(season: Seasons, at: float) -> Floats:
    """Mean of the last buckets that are over at that time, one per object; NaN without any."""
    end = max(int((at - season.first_at) // season.step_seconds), 0)
    part = season.values[:, max(end - _RECENT_BUCKETS, 0) : end]
    known = np.isfinite(part)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(known, part, 0.0).sum(axis=1) / known.sum(axis=1))


def _bucket(season: Seasons, at: Floats) -> Floats:
    """The load of the bucket that holds the time, one per object; NaN where it is not known."""
    place = np.floor((at - season.first_at) / season.step_seconds).astype(int)
    inside = (place >= 0) & (place < season.values.shape[1])
    found = season.values[np.arange(len(season.values)), np.where(inside, place, 0)]
    return np.where(inside, found, np.nan)
