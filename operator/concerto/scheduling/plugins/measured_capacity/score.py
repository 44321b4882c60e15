"""Capacity: the more measured capacity is left, the better. Source: algorithms section 4."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from concerto.scheduling.framework import Query, rounded
from concerto.scheduling.state.columns import Floats, Rows
from concerto.scheduling.state.resources import PODS


def pods_by_requests(query: Query, rows: Rows) -> Floats:
    """How many such pods the nodes could still take by requests: least over cpu, memory and the number of pods.

    Both what the pod requests and what pods on the node do are counted with kube-scheduler's defaults for containers
    that request nothing (100m, 200Mi), or such pods would cost nothing.
    """
    cluster, shape = query.cluster, query.pod.shape
    pods = (cluster.resources.allocatable(PODS, rows) - cluster.resources.used(PODS, rows)).astype(np.float64)
    amounts = (("cpu", shape.nonzero_cpu_millicores), ("memory", shape.nonzero_memory_bytes))
    for (resource, amount), used in zip(amounts, cluster.usage.nonzero[:, : cluster.size]):
        if amount:
            pods = np.minimum(pods, (cluster.resources.allocatable(resource, rows) - used[rows]) / amount)
    return np.maximum(pods, 0.0)


class Capacity:
    """Available over the feasible nodes, 0 to 100 with 100 for the greatest.

    A node that takes part by requests has its number of pods by requests instead, but counts for no more than the mean
    of the measured nodes that are feasible: requests say what was asked for, not what is free, and a node that nobody
    measures must not draw all pods because of it.
    """

    name: ClassVar[str] = "Capacity"
    needs_normalising: ClassVar[bool] = True
    needs_telemetry: ClassVar[bool] = True

    def score(self, query: Query, rows: Rows) -> Floats:
        """Pods that the nodes can still take."""
        available = query.available(rows)
        by_requests = query.is_by_requests(rows)
        if by_requests.any():
            available = np.where(by_requests, pods_by_requests(query, rows), available)
        return available

    def normalise(self, query: Query, scores: Floats) -> Floats:
        """100 times the share of the greatest, rounded."""
        by_requests = query.is_by_requests(slice(0, len(scores)))
        if by_requests.any():
            measured = scores[~by_requests & ~np.isnan(scores)]
            if len(measured):
                scores = np.where(by_requests, np.minimum(scores, measured.mean()), scores)
        greatest = np.fmax.reduce(scores, initial=0.0)
        if greatest <= 0:
            return scores * 0.0
        return rounded(scores * 100.0 / greatest)
