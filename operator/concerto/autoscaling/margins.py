"""How wrong a forecast may be: room for rises that nothing announces, quantiles of past errors, and measures of error.

The quantile is that of a newsvendor: a missing replica costs more than a surplus one, and how much more depends on the
horizon. Source: docs/references.md, "Forecasts".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from concerto.autoscaling.forecast_settings import ForecastSettings
from concerto.autoscaling.forecasters import Floats

SMALL_LOAD = 0.25
"""Replicas: where errors or rises are relative to the load, a smaller load counts as this one."""


@dataclass(frozen=True)
class Past:
    """Demand of the last days, coarsely.

    Attributes:
        values: objects x buckets, in replicas, the newest last; NaN where nothing is known.
        step_seconds: length of a bucket.
    """

    values: Floats
    step_seconds: float


def critical_fractile(horizon_seconds: Floats, shortage_seconds: float) -> Floats:
    """Newsvendor: cost of too few over the sum of both, where the cost of too many grows with the horizon."""
    return np.asarray(shortage_seconds / (shortage_seconds + horizon_seconds))


def surprise(
    falls: NDArray[np.bool_],
    horizon_seconds: Floats,
    paid_seconds: Floats,
    past: Past | None,
    settings: ForecastSettings,
) -> Floats:
    """Replicas that a load of one replica may grow by within the horizon with nothing to announce it, per object.

    None for a young object that ``falls`` for certain; what days have shown comes from falls, too.
    """
    power, by_horizon = settings.surprise_powers
    feared = settings.surprise * (paid_seconds / settings.surprise_seconds) ** by_horizon
    share = np.zeros(len(feared))
    if past is not None:
        known, risen = _risen(past, horizon_seconds, power, settings.risen)
        share = np.minimum(known / settings.risen_samples, 1.0)
        feared += share * np.nan_to_num(np.clip(risen, settings.risen_min * feared, feared) - feared)
    return np.asarray(np.where(falls, share * feared, feared))


def _risen(past: Past, horizon_seconds: Floats, power: float, quantile: float) -> tuple[Floats, Floats]:
    """How many rises within the horizon the long history holds, and that quantile of them for a load of one replica.

    A rise within a part of a bucket is taken for the root of that part, as in a random walk. NaN without any.
    """
    values = past.values
    buckets = np.maximum(np.ceil(horizon_seconds / past.step_seconds), 1).astype(int)
    count, found = np.zeros(len(values)), np.full(len(values), np.nan)
    for ahead in np.unique(buckets[buckets < values.shape[1]]):
        rows = np.flatnonzero(buckets == ahead)
        base = values[rows, :-ahead]
        highest = np.fmax.reduce([values[rows, i : i + base.shape[1]] for i in range(1, ahead + 1)])
        rise = np.sort(
            np.maximum(highest - base, 0.0) / np.fmax(base, SMALL_LOAD) ** power, axis=1
        )  # NaN is sorted last
        known = np.isfinite(rise).sum(axis=1)
        last = np.maximum(np.ceil(quantile * known).astype(int) - 1, 0)
        part = np.sqrt(np.minimum(horizon_seconds[rows] / (ahead * past.step_seconds), 1.0))
        count[rows], found[rows] = known, rise[np.arange(len(rows)), last] * part
    return count, found


def margins(
    error: Floats,
    rising: NDArray[np.bool_],
    fractile: Floats,
    weights: Floats,
    prior: Floats,
    prior_weight: float,
) -> tuple[Floats, Floats]:
    """The weighted fractile of the errors made while the model pointed the way it points now; never below zero.

    Errors on the way up are of another kind than those on the way down, where a peak cannot be missed. Few errors show
    little about rare ones: ``prior``, an error of each object, counts beside them until there are many.

    Returns the margin without and with ``prior``.
    """
    alike = np.where(rising == rising[:, -1:], error, np.nan)
    enough = np.isfinite(alike).sum(axis=1, keepdims=True) >= 4
    chosen = np.column_stack([np.where(enough, alike, error), prior])
    order = np.argsort(chosen, axis=1)
    ranked = np.take_along_axis(chosen, order, axis=1)
    rows = np.arange(len(ranked))
    found = []
    for weight in (0.0, prior_weight):
        weighed = np.where(np.isfinite(chosen), np.append(weights, weight), 0.0)
        share = np.cumsum(np.take_along_axis(weighed, order, axis=1), axis=1)
        index = (share < fractile[:, None] * share[:, -1:]).sum(axis=1)
        value = ranked[rows, np.minimum(index, ranked.shape[1] - 1)]
        found.append(np.asarray(np.maximum(np.nan_to_num(value), 0.0)))
    return found[0], found[1]


def share_that_came(forecast: Floats, came: Floats, weights: Floats, prior: Floats) -> Floats:
    """How much of the rises that were forecast came, from 0 to 1, per object: the regression through the origin.

    Args:
        forecast: rises as forecast, objects x samples; NaN where there was no forecast.
        came: what the load did in that time, NaN where that is not known yet.
        weights: of the samples.
        prior: one more rise, squared, that came as it was forecast: few rises show little. One per object.
    """
    known = np.isfinite(forecast) & np.isfinite(came)
    product, square = (np.where(known, forecast * other, 0.0) @ weights for other in (came, forecast))
    return np.asarray(np.clip((product + prior) / (square + prior), 0.0, 1.0))


def decision_cost(
    asked: Floats, load: Floats, actual: Floats, room: float, fractile: Floats, weights: Floats
) -> Floats:
    """Mean cost of what forecasts asked for above what current metrics ask for anyway, per object.

    A replica too few costs ``fractile``, one too many the rest of 1. A replica is missing only where load exceeds the
    room that the target leaves, and surplus only if neither the load of then nor that at the horizon needed it.

    Args:
        asked: replicas, objects x samples; NaN where there was no forecast.
        load: at that time.
        actual: at the horizon.
        room: share of the load at the target that replicas bear on top of it.
        fractile: one per object.
        weights: of the samples.
    """
    replicas, share = np.maximum(load, asked), fractile[:, None]
    missing = np.maximum(actual / (1.0 + room) - replicas, 0.0)
    surplus = np.maximum(replicas - np.maximum(load, actual), 0.0)
    cost = share * missing + (1.0 - share) * surplus
    known = np.isfinite(cost)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((np.where(known, cost, 0.0) @ weights) / (known @ weights))


def weighted_error(error: Floats, actual: Floats) -> Floats:
    """Weighted mean absolute error, percent of the load, per object."""
    known = np.isfinite(error)
    load = np.where(known, actual, 0.0).sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        return np.asarray(100.0 * np.where(known, np.abs(error), 0.0).sum(axis=1) / load)


def share_under(error: Floats) -> Floats:
    """Share of the error that was too low, percent, per object."""
    missed = np.where(np.isfinite(error), error, 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(100.0 * np.maximum(missed, 0.0).sum(axis=1) / np.abs(missed).sum(axis=1))
