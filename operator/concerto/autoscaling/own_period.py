"""The period of a load that repeats every 4 to 20 minutes, such as a job that starts every 17 minutes.

Hours, days and weeks are tried for every load. Another period has to be found: the load is correlated with itself one
period earlier, and not with itself half a period earlier. Source: docs/references.md, "Forecasts".
"""

from __future__ import annotations

import numpy as np

from concerto.autoscaling.forecast_settings import ForecastSettings
from concerto.autoscaling.forecasters import Floats, Seasons

_ROUNDED = 1e-6
"""Standard deviation, in parts of the mean, up to which a load stays the same, and repeats nothing."""
_ALIKE = 0.05
"""Correlations that differ by less are alike: of a period and its double, the period counts."""
_KNOWN = 0.9
"""Share of the samples that must be known."""


def own_seasons(series: Floats, now: float, settings: ForecastSettings, ahead_seconds: Floats) -> list[Seasons]:
    """Seasons of the length that each object's own load has; none where no object's load repeats.

    Where the forecast looks further ahead than a period, as many periods are taken as are longer: what comes after a
    sample is not known at that time. If the series does not hold two of these, nothing repeats.

    Args:
        series: demand in replicas, objects x samples, the newest last; NaN where there is no sample.
        now: time of the newest sample, seconds.
        settings: constants; `step_seconds` is that of the series.
        ahead_seconds: how far ahead each object's forecast looks from ``now``, at least 0.
    """
    found = own_periods(series, settings)
    found = found * (np.floor(ahead_seconds / settings.step_seconds / found) + 1.0)
    found = np.where(2.0 * found <= series.shape[1], found, np.nan)
    if not np.isfinite(found).any():
        return []
    begin = now - (series.shape[1] - 0.5) * settings.step_seconds
    # Nothing is known before the series, so nothing repeats after so long
    periods = np.where(np.isfinite(found), found, 2.0 * series.shape[1]) * settings.step_seconds
    return [Seasons(series, begin, settings.step_seconds, periods[:, None])]


def own_periods(series: Floats, settings: ForecastSettings) -> Floats:
    """Samples after which each object's load repeats, from `own_period_seconds` to a third of the series; NaN: never.

    A period shows as a high autocorrelation after a negative one: that of a trend stays positive.
    """
    longest = series.shape[1] // 3
    shortest = max(int(np.ceil(settings.own_period_seconds / settings.step_seconds)), 1)
    if longest <= shortest:
        return np.full(len(series), np.nan)
    correlation = _autocorrelation(series, longest + 2)
    was_negative = np.minimum.accumulate(correlation, axis=1) < 0.0
    likely = was_negative & (correlation >= settings.own_period_correlation)
    likely[:, :shortest] = False
    highest = np.max(np.where(likely, correlation, -1.0), axis=1, keepdims=True)
    lag = np.argmax(likely & (correlation >= highest - _ALIKE), axis=1)
    rows = np.arange(len(series))
    for _ in range(longest):  # up to the top of that peak
        after = np.minimum(lag + 1, longest + 1)
        lag = np.where(correlation[rows, after] > correlation[rows, lag], after, lag)
    known = np.isfinite(series).sum(axis=1) >= _KNOWN * series.shape[1]
    return np.where(likely.any(axis=1) & known & (lag <= longest), lag, np.nan)


def _autocorrelation(series: Floats, lags: int) -> Floats:
    """At lags from 0 to ``lags`` - 1, objects x lags; 0 for a load that stays the same.

    Missing samples count as the mean.
    """
    length = series.shape[1]
    known = np.isfinite(series)
    mean = np.where(known, series, 0.0).sum(axis=1, keepdims=True) / np.maximum(known.sum(axis=1, keepdims=True), 1)
    off = np.where(known, series - mean, 0.0)
    spectrum = np.fft.rfft(off, 2 * length, axis=1)
    products = np.fft.irfft(np.abs(spectrum) ** 2, 2 * length, axis=1)[:, :lags]
    squares = np.cumsum(off * off, axis=1)
    total = squares[:, -1:]
    earlier = squares[:, length - lags :][:, ::-1]
    later = total - np.column_stack([np.zeros(len(series)), squares[:, : lags - 1]])
    with np.errstate(invalid="ignore", divide="ignore"):
        found = products / np.sqrt(earlier * later)
    return np.where(total > length * (_ROUNDED * mean) ** 2, np.nan_to_num(found), 0.0)
