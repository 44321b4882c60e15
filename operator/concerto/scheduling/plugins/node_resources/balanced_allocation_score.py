"""NodeResourcesBalancedAllocation: cpu and memory requested in equal parts. Source: kube-scheduler 1.37's plugin."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from concerto.scheduling.framework import Query, ScoreDefaults
from concerto.scheduling.state.columns import Floats, Ints, Rows
from concerto.scheduling.state.provided_load import RESOURCES


class NodeResourcesBalancedAllocation(ScoreDefaults):
    """75 where the pod leaves cpu and memory as evenly requested as they are, 100 at best and 50 at worst."""

    name: ClassVar[str] = "NodeResourcesBalancedAllocation"

    def prepare(self, query: Query) -> Query | None:
        """Pods that request neither are not concerned."""
        requests = query.pod.shape.requests
        return query if any(requests.get(resource, 0) for resource in RESOURCES) else None

    def score(self, state: Query, rows: Rows) -> Floats:
        """By row, rounded down."""
        resources, requests = state.cluster.resources, state.pod.shape.requests
        allocatable = np.array([resources.allocatable(resource, rows) for resource in RESOURCES])
        used = np.array([resources.used(resource, rows) for resource in RESOURCES])
        pod = np.array([[requests.get(resource, 0)] for resource in RESOURCES])
        gain = _evenness(used + pod, allocatable) - _evenness(used, allocatable)
        return (50 + (50 + gain) // 2).astype(np.float64)


def _evenness(requested: Ints, allocatable: Ints) -> Ints:
    """100 less the standard deviation of the parts that are requested, in percent; both of shape (2, rows).

    The deviation of two parts is half their distance. That of one part is 0, where the node has none of the other.
    """
    parts = np.minimum(requested / np.maximum(allocatable, 1), 1.0)
    deviation = np.where((allocatable > 0).all(axis=0), np.abs(parts[0] - parts[1]) / 2.0, 0.0)
    evenness: Ints = ((1.0 - deviation) * 100.0).astype(np.int64)
    return evenness
