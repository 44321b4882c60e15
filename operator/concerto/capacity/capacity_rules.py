"""How many pods fit, from usage and costs: small pure rules over N nodes, which the pipeline puts together.

Arrays are (N,) or (N, m). Usage, base and cost are fractions of the node; capacity is in pods.
Source: docs/references.md, "Capacity signal"; docs/capacity-control.md lists where we differ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

FULL = 0.95
"""Usage of a resource shared in space (memory) from which a node takes no further pod, whatever the settings."""
MAX_CAPACITY = 1024.0
"""Most pods that a status may claim, as in crds/nodecapacities.yaml; as many as it lists."""


@dataclass(frozen=True)
class Demand:
    """What nodes use, and what one more pod would add.

    Attributes:
        usage: (N, m) smoothed y; NaN for a resource that was never measured.
        known: (N, m) whether the resource has been measured.
        base: (N, m) usage without pods.
        cost: (N, m) usage that one pod adds.
        first_cost: (N, m) first guess of ``cost``.
        pods: (N,) pods counted, n.
        young: (N,) pods too young for their load to show.
    """

    usage: Floats
    known: Bools
    base: Floats
    cost: Floats
    first_cost: Floats
    pods: Floats
    young: Floats

    def admit_first_pod(self) -> Demand:
        """The demand by which an empty node takes one pod if the first guess of a pod fits.

        Otherwise one large pod could raise the cost so far that its node stays locked for good.
        """
        left = 1.0 - self.usage
        empty = (self.pods == 0.0)[:, None] & self.known & (left >= self.first_cost)
        return replace(
            self,
            cost=np.where(empty, np.minimum(self.cost, left), self.cost),
            base=np.where(empty, np.minimum(self.base, self.usage), self.base),
        )

    def by_usage(self, resources: Bools) -> Floats:
        """(N,) pods that fit on top of the measured usage of ``resources`` (N, m); infinite without any resource.

        Young pods may not have all of their memory yet: the larger of guess and estimate is held back for each.
        """
        owed = self.young[:, None] * np.maximum(self.cost, self.first_cost)
        return np.where(resources, (1.0 - self.usage - owed) / self.cost, np.inf).min(axis=1)  # type: ignore[no-any-return]

    def by_slots(self, resources: Bools) -> Floats:
        """(N,) pods that the node holds in all, (1 - base) / cost, by ``resources`` (N, m)."""
        return np.where(resources, np.maximum(1.0 - self.base, 0.0) / self.cost, np.inf).min(axis=1)  # type: ignore[no-any-return]

    def by_first_guess(self) -> Floats:
        """(N,) pods that fit while the node warms up, each taken for the first guess of a pod."""
        fits = np.where(self.known, (1.0 - self.usage) / self.first_cost, np.inf).min(axis=1)
        return fits - self.young  # type: ignore[no-any-return]

    def full(self, resources: Bools) -> Bools:
        """(N,) whether one of ``resources`` (N, m) is used up."""
        return np.any(resources & (self.usage >= FULL), axis=1)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Estimate:
    """What an estimator makes of N nodes, before warm-up, allowance and limits.

    Numbers of pods are signed: a node that runs too many pods has less than 0.

    Attributes:
        capacity: (N,) pods that may start now.
        room: (N,) pods that fit one after the other.
        limit: (N,) pods that fit by the resources shared in space. An allowance cannot go beyond it.
        baseline: (N,) signal without pods.
        per_pod_cost: (N,) signal units that one pod takes.
    """

    capacity: Floats
    room: Floats
    limit: Floats
    baseline: Floats
    per_pod_cost: Floats


def signal_units(by_slots: Floats, signal: Floats, cost: Floats, e: Floats, maximum: float) -> Floats:
    """(N,) signal units that one pod takes, so that signal / cost names the pods left by slots.

    Where no slot is left, it is the cost over the expected load of one signal unit, ``e``.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        per_pod = np.where((by_slots > 0.0) & np.isfinite(by_slots), signal / by_slots, 0.0)
    fallback = (cost / np.maximum(e, 1e-9)).max(axis=1)
    return np.clip(np.where(per_pod > 0.0, per_pod, fallback), 1e-9, maximum)


def first_signal_cost(e_binding: Floats, initial_cost: float, maximum: float) -> Floats:
    """(N,) first guess of a pod's cost in signal units: its share of the binding resource over that of one unit."""
    return np.minimum(initial_cost / np.maximum(e_binding, 1e-9), maximum)


def publishable(capacity: Floats, pods: Floats, allocatable: Floats) -> Floats:
    """(N,) the capacity within what a node can mean: at least -n (every pod too many), at most what the kubelet takes.

    The sign stays. The operator adds a pod to it for each end that the agent has not counted yet; added to a number cut
    off at 0, each end of an overloaded node would start a successor, and the overload would never drain.
    """
    return np.clip(capacity, -pods, np.minimum(allocatable - pods, MAX_CAPACITY))
