"""LowRiskOverCommitment: avoid nodes whose limits, or whose load, are likely to exceed what they can give.

Source: docs/references.md, "Load-aware scores".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from concerto.api.score_arguments import LowRiskOverCommitmentArgs
from concerto.scheduling.plugins.load.base import LoadAwareScore
from concerto.scheduling.plugins.load.beta import beta_cdf
from concerto.scheduling.plugins.load.node_load import NodeLoad
from concerto.scheduling.rounding import rounded
from concerto.scheduling.state.columns import Floats, Rows
from concerto.scheduling.state.provided_load import RESOURCES

_MAX_VARIANCE = 0.99
"""Part of the largest variance that a mean allows, up to which a beta distribution is fitted (upstream's)."""
_STEADY = 1e-8
"""Variance below which nothing varies: a deviation of a hundredth of a percent. Upstream says 0; a distribution that
narrow is a step as well, but takes thousands of terms to compute."""

_SAME = 1e-9
"""How far apart sums of the same fractions come out; where nothing varies, load as requested is no risk."""


def risk_of_limits(requests: Floats, limits: Floats, allocatable: Floats) -> Floats:
    """How much of what may be used beyond the requests is not there: (L - C) / (L - R) where L > C, else 0."""
    excess = np.maximum(limits - allocatable, 0.0)
    return np.divide(excess, limits - requests, out=np.zeros_like(excess), where=(excess > 0) & (limits > requests))


def risk_of_load(
    mean: Floats, deviation: Floats, requested: Floats, limited: Floats, smoothing_window: float
) -> Floats:
    """How likely the load is above what was requested, by a beta distribution of that mean and deviation.

    Args:
        mean: of the load, as fractions; NaN stays NaN.
        deviation: of the smoothed load.
        requested: requests of the pods on the node, as fractions of it.
        limited: limits of the pods on the node, as fractions; below 1 they bound the load.
        smoothing_window: samples that were smoothed into one.
    """
    mu = np.clip(mean, 0.0, 1.0)
    variance = np.minimum(deviation**2 * smoothing_window, _MAX_VARIANCE * mu * (1.0 - mu))
    threshold = np.clip(requested, 0.0, 1.0)
    with np.errstate(invalid="ignore"):
        below = np.where((mu == 0.0) | (mu <= threshold + _SAME), 1.0, 0.0)  # nothing varies
    fitted = variance > _STEADY
    m, v = mu[fitted], variance[fitted]
    k = m * (1.0 - m) / v - 1.0
    alpha, beta = m * k, (1.0 - m) * k
    bounded = limited < 1.0
    possible = np.ones_like(mu)
    conditioned = fitted & bounded
    # Both in one call: for the few rows that a placement has changed, calls are what costs
    n = len(m)
    inside = bounded[fitted]
    cdf = beta_cdf(
        np.concatenate([threshold[fitted], np.clip(limited[conditioned], 0.0, 1.0)]),
        np.concatenate([alpha, alpha[inside]]),
        np.concatenate([beta, beta[inside]]),
    )
    below[fitted], possible[conditioned] = cdf[:n], cdf[n:]
    below = np.divide(below, possible, out=below, where=possible > 0.0)
    below = np.where(bounded & (limited <= 0.0), 1.0, np.clip(below, 0.0, 1.0))
    return np.where(np.isnan(mean) | np.isnan(deviation), np.nan, 1.0 - below)


@dataclass(frozen=True)
class LowRiskOverCommitment(LoadAwareScore):
    """100 less the greater risk of cpu and memory; 0 for a BestEffort pod, of which nothing is promised.

    Of a resource whose load is not measured, limits alone are a risk. A node that offers none of it is at full risk.
    Nodes without a risk are alike, however full they are: requests decide among them.
    """

    args: LowRiskOverCommitmentArgs
    name: ClassVar[str] = "LowRiskOverCommitment"
    needs_telemetry: ClassVar[frozenset[str]] = frozenset({"load", "deviation"})
    ties_by_requests: ClassVar[bool] = True

    def score(self, state: NodeLoad, rows: Rows) -> Floats:
        """By row; NaN where neither cpu nor memory is measured."""
        columns = [self._columns(state, resource, rows) for resource in self.resources]
        requests, limits, allocatable, used, limited, mean, deviation = (np.concatenate(c) for c in zip(*columns))
        there_is = np.maximum(allocatable, 1.0)
        of_limits = risk_of_limits(np.minimum(requests, allocatable), limits, allocatable)
        of_load = risk_of_load(
            mean,
            deviation,
            np.minimum(used, allocatable) / there_is,
            limited / there_is,
            self.args.smoothing_window or 1,
        )
        by_resource = dict(self.args.limit_risk_weights)
        weights = [by_resource.get(resource, self.args.limit_risk_weight) for resource in self.resources]
        weight = np.repeat(weights, len(of_limits) // len(weights))
        risk = weight * of_limits + (1.0 - weight) * np.nan_to_num(of_load)
        risk = np.where(allocatable > 0, risk, 1.0).reshape(len(self.resources), -1).max(axis=0)
        scores = np.zeros_like(risk) if state.query.pod.shape.qos == "BestEffort" else rounded(100.0 * (1.0 - risk))
        measured = ~np.isnan(mean.reshape(len(self.resources), -1)).all(axis=0)
        return np.where(measured, scores, np.nan)

    def _columns(self, load: NodeLoad, resource: str, rows: Rows) -> tuple[Floats, ...]:
        """Requests and limits with the pod, allocatable, requests and limits without it, mean and deviation."""
        cluster, shape = load.query.cluster, load.query.pod.shape
        allocatable = cluster.resources.allocatable(resource, rows).astype(np.float64)
        used = cluster.resources.used(resource, rows).astype(np.float64)
        limited = cluster.usage.limits[RESOURCES.index(resource)][rows].astype(np.float64)
        request = shape.requests.get(resource, 0)
        limit = max(shape.limits.get(resource, 0), request)
        mean, deviation = self.load(load, resource, rows), load.deviation(resource, rows)
        return used + request, limited + limit, allocatable, used, limited, mean, deviation
