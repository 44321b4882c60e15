"""NodeResourcesBalancedAllocation: cpu and memory requested in equal parts. Source: kube-scheduler's plugin."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from concerto.scheduling.framework import Query, ScoreDefaults
from concerto.scheduling.state.columns import Floats, Rows
from concerto.scheduling.state.provided_load import RESOURCES


class NodeResourcesBalancedAllocation(ScoreDefaults):
    """100 less the standard deviation of the parts of cpu and memory that are requested with the pod, in percent."""

    name: ClassVar[str] = "NodeResourcesBalancedAllocation"

    def score(self, state: Query, rows: Rows) -> Floats:
        """By row, rounded down; nothing to say about a pod that requests neither."""
        cluster, requests = state.cluster, state.pod.shape.requests
        parts, there = [], []
        for resource in RESOURCES:
            allocatable = cluster.resources.allocatable(resource, rows)
            requested = cluster.resources.used(resource, rows) + requests.get(resource, 0)
            parts.append(np.minimum(requested / np.maximum(allocatable, 1), 1.0))
            there.append(allocatable > 0)
        if not any(requests.get(resource, 0) for resource in RESOURCES):
            return np.full(len(parts[0]), np.nan)
        # The deviation of two parts is half their distance, and that of one is 0
        deviation = np.where(there[0] & there[1], np.abs(parts[0] - parts[1]) / 2.0, 0.0)
        score: Floats = np.floor((1.0 - deviation) * 100.0)
        return score
