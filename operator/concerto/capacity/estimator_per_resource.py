"""What a pod costs, per resource (docs/references.md, "Capacity signal"; docs/capacity-control.md).

For every resource, usage = base + cost * (pods old enough to show their load). The parts of the law, each there because
the source's rules run away without it:

- *base* is measured (non-pod usage), not estimated: at a constant number of pods nothing else separates it from cost.
- *young pods*: how long a new pod takes to show its load is learned. One regression runs for each of a few candidate
  ages; the age whose regression explains the usage best is the settle time. A younger pod is no evidence about cost.
- *censoring*: a full resource says only that its pods want at least what there is. Such a sample takes part where the
  regression predicts less, so it raises the cost and never lowers it.
- *a first guess* that is one pod's worth of evidence, so that the first wave is small and the second one informed.
- *idle drift*: without pods the cost creeps back up to the first guess.

The regressions forget at the rate at which a Kalman filter with the given noises would (gain √(Q/R) a batch).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from concerto.api.capacity_settings import EstimatorSettings

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.intp]

SETTLE_AGES = (0.0, 1.0, 1.5, 2.25, 3.5, 5.0, 7.5, 11.0, 17.0, 25.0)
"""Candidates for the settle time, in seconds: geometric, so that each is a half more than the one before."""

_FIRST_CHOICE = 4
"""Settle age believed before anything was learned: rather too old than too young (the other way runs away)."""
_BETTER = 0.8
"""A candidate takes over when its error is below this share of the present one's: no flutter between equals."""


@dataclass(frozen=True)
class UsageBatch:
    """One batch of b samples of N nodes and m resources.

    Attributes:
        usage: (N, b, m) smoothed usage; any number where not ``measured``.
        measured: (N, b, m).
        quiet: (N, b) outside of churn windows.
        pods: (N, b) pods running, n.
        younger: (N, b, K) of which younger than each of SETTLE_AGES.
        non_pod: (N, m) mean usage outside of pods over the batch; NaN where it is unknown.
    """

    usage: Floats
    measured: Bools
    quiet: Bools
    pods: Floats
    younger: Floats
    non_pod: Floats


class PerResourceEstimator:
    """Base and cost of N nodes along m resources, as fractions of the node, and the settle time of each node.

    Attributes:
        base: (N, m) usage without pods.
        cost: (N, m) usage that one pod adds.
        choice: (N,) index into SETTLE_AGES of the learned settle time.
    """

    def __init__(self, n_nodes: int, n_resources: int, first_cost: Floats, settings: EstimatorSettings) -> None:
        """Nothing measured yet.

        Args:
            n_nodes: N.
            n_resources: m.
            first_cost: (N, m) or (m,) what a pod is believed to cost until pods were seen.
            settings: noises, idle growth.
        """
        ages = len(SETTLE_AGES)
        self.first_cost: Floats = np.array(np.broadcast_to(first_cost, (n_nodes, n_resources)), dtype=float)
        self.base: Floats = np.full((n_nodes, n_resources), np.nan)
        self.cost: Floats = self.first_cost.copy()
        self.choice: Ints = np.full(n_nodes, _FIRST_CHOICE)
        # Sums of the regressions usage = cost * mature, one per candidate age: Σh², Σhu, Σu².
        weight = settings.measurement_noise / np.maximum(self.first_cost, 1e-6) ** 2
        self._hh: Floats = np.repeat(weight[:, :, None], ages, axis=2)
        self._hu: Floats = self._hh * self.first_cost[:, :, None]
        self._uu: Floats = self._hu * self.first_cost[:, :, None]

    def update(
        self,
        settings: EstimatorSettings,
        batch: UsageBatch,
        *,
        full_above: float,
        least_cost: Floats,
        elapsed_seconds: float,
    ) -> None:
        """Take one batch of b samples.

        Args:
            settings: noises, idle growth.
            batch: the samples.
            full_above: usage from which a resource counts as full.
            least_cost: (N,) cost below which no estimate goes.
            elapsed_seconds: time since the batch before.
        """
        gain = min(1.0, sqrt(settings.process_noise / settings.measurement_noise))
        usage, measured, pods = batch.usage, batch.measured, batch.pods
        samples = usage.shape[1]
        self._update_base(gain, usage, measured, pods, batch.non_pod)
        own = np.maximum(usage - self._known_base()[:, None, :], 0.0)
        counted = measured & (pods > 0.0)[:, :, None]
        full = counted & (usage >= full_above)
        weight = ((counted & ~full) & batch.quiet[:, :, None]) / samples
        mature = pods[:, :, None] - batch.younger

        forget = gain * weight.sum(axis=1)
        weighted = weight * own
        hh = weight.swapaxes(1, 2) @ (mature * mature)
        hu = weighted.swapaxes(1, 2) @ mature
        uu = (weighted * own).sum(axis=1)
        keep = (1.0 - forget)[:, :, None]
        self._hh = self._hh * keep + hh
        self._hu = self._hu * keep + hu
        self._uu = self._uu * keep + uu[:, :, None]
        if full.any():
            self._take_full(gain, np.flatnonzero(full.any(axis=(1, 2))), own, full, mature)

        self._choose()
        rows = np.arange(len(self.choice))
        cost = self._hu[rows, :, self.choice] / self._hh[rows, :, self.choice]
        # Another settle time may name a lower cost, but a batch that only saw the resource full is no reason for one.
        only_full = full.any(axis=1) & (forget == 0.0)
        cost = np.where(only_full, np.maximum(cost, self.cost), cost)
        self.cost = np.clip(cost, least_cost[:, None], 1.0)
        self._drift(settings, pods[:, -1] == 0.0, measured[:, -1], elapsed_seconds)

    def cost_at(self, age: Ints, least_cost: Floats) -> Floats:
        """(N, m) cost of pods older than the age, an (N,) index into SETTLE_AGES; the first guess until there are."""
        at = age[:, None, None]
        cost = np.take_along_axis(self._hu, at, axis=2) / np.take_along_axis(self._hh, at, axis=2)
        return np.clip(cost[:, :, 0], least_cost[:, None], 1.0)

    def _known_base(self) -> Floats:
        return np.where(np.isnan(self.base), 0.0, self.base)

    def _update_base(self, gain: float, usage: Floats, measured: Bools, pods: Floats, non_pod: Floats) -> None:
        """Base follows measured non-pod usage, or without it the usage at times without pods.

        The latter is followed down at once: what the last pods leave behind fades, and is not the node's own.
        """
        empty = measured & (pods == 0.0)[:, :, None]
        samples = empty.sum(axis=1)
        seen = (usage * empty).sum(axis=1) / np.maximum(samples, 1)
        target = np.where(np.isnan(non_pod), np.where(samples > 0, seen, np.nan), non_pod)
        known = ~np.isnan(target)
        at_once = np.isnan(self.base) | (np.isnan(non_pod) & (target < self.base))
        step = np.where(at_once, target, self.base + gain * (target - self.base))
        np.copyto(self.base, step, where=known)

    def _take_full(self, gain: float, nodes: Ints, own: Floats, full: Bools, mature: Floats) -> None:
        """Censored samples of the nodes that have any: evidence only where a regression predicts less than it."""
        samples = own.shape[1]
        hh, hu, uu = self._hh[nodes], self._hu[nodes], self._uu[nodes]
        u, h = own[nodes][:, :, :, None], mature[nodes][:, :, None, :]
        short = full[nodes][:, :, :, None] & (h * (hu / hh)[:, None] < u)
        weight = short / samples
        chosen = self.choice[nodes][:, None, None]
        forget = gain * np.take_along_axis(weight.sum(axis=1), chosen, axis=2)
        keep = 1.0 - forget
        self._hh[nodes] = hh * keep + (weight * h * h).sum(axis=1)
        self._hu[nodes] = hu * keep + (weight * h * u).sum(axis=1)
        self._uu[nodes] = uu * keep + (weight * u * u).sum(axis=1)

    def _choose(self) -> None:
        """The settle age whose regression leaves the least error, if it is clearly better than the present one."""
        error = np.maximum(self._uu - self._hu * self._hu / self._hh, 0.0).sum(axis=1)
        best = error.argmin(axis=1)
        rows = np.arange(len(best))
        better = error[rows, best] < _BETTER * error[rows, self.choice] - 1e-6
        np.copyto(self.choice, best, where=better)

    def _drift(self, settings: EstimatorSettings, empty: Bools, measured: Bools, elapsed_seconds: float) -> None:
        """Without pods a cost below the first guess creeps up to it."""
        rising = (empty[:, None] & measured) & (self.cost < self.first_cost)
        if not rising.any():
            return
        growth = settings.idle_cost_growth * elapsed_seconds
        risen = np.minimum(self.cost + growth, self.first_cost)
        np.copyto(self.cost, risen, where=rising)
        np.copyto(self._hu, self._hh * risen[:, :, None], where=rising[:, :, None])
