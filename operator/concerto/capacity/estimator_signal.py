"""Carico's estimator: two 1-D Kalman filters for baseline and per-pod cost.

signal = b - c n, b by the one filter and c by the other, so that no covariance between the two can oscillate. It is
selectable for comparison; docs/capacity-control.md names its faults. Source: Carico, section 4.2.4
(docs/references.md).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from concerto.api.capacity_settings import EstimatorSettings

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


class SignalEstimator:
    """Baseline and per-pod cost of N nodes, in units of the signal.

    Attributes:
        baseline: (N,) b; NaN until the first measurement.
        cost: (N,) c; NaN until the first measurement.
    """

    def __init__(self, n_nodes: int) -> None:
        """Nothing measured yet; both variances start at 1."""
        self.baseline: Floats = np.full(n_nodes, np.nan)
        self.cost: Floats = np.full(n_nodes, np.nan)
        self._baseline_variance: Floats = np.ones(n_nodes)
        self._cost_variance: Floats = np.ones(n_nodes)

    def update(
        self,
        settings: EstimatorSettings,
        *,
        signal: Floats,
        pods: Floats,
        measured: Bools,
        churn: Bools,
        initial_cost: Floats,
        elapsed_seconds: float,
    ) -> None:
        """Take one batch: cost first, then baseline with the new cost. Halted while signal = 0 and in churn.

        Args:
            settings: noises and idle growth.
            signal: (N,) the capacity signal.
            pods: (N,) pods running, n.
            measured: (N,) where the batch holds a measurement at all.
            churn: (N,) whether a churn window touched the batch.
            initial_cost: (N,) ``initialPerPodCost`` of the node along the binding resource, in signal units.
            elapsed_seconds: time since the batch before.
        """
        new = measured & np.isnan(self.cost)
        np.copyto(self.cost, initial_cost, where=new)
        np.copyto(self.baseline, signal + self.cost * pods, where=new)
        quiet = measured & (signal > 0.0) & ~churn
        noise, drift = settings.measurement_noise, settings.process_noise

        busy = quiet & (pods >= 1.0)
        p = self._cost_variance
        gain = p * pods / (pods * pods * p + noise)
        cost = self.cost + gain * (self.baseline - signal - pods * self.cost)
        np.copyto(self.cost, cost, where=busy)
        np.copyto(self._cost_variance, (1.0 - gain * pods) * p + drift, where=busy)

        p = self._baseline_variance
        gain = p / (p + noise)
        baseline = self.baseline + gain * (signal + self.cost * pods - self.baseline)
        np.copyto(self.baseline, baseline, where=quiet)
        np.copyto(self._baseline_variance, (1.0 - gain) * p + drift, where=quiet)

        # idleCostGrowth is a share of the node a second; this quotient turns it into signal units.
        growth = settings.idle_cost_growth * elapsed_seconds * initial_cost / settings.initial_per_pod_cost
        idle = quiet & (pods == 0.0) & (self.cost < initial_cost)
        np.copyto(self.cost, np.minimum(self.cost + growth, initial_cost), where=idle)
