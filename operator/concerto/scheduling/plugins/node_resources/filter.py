"""NodeResources: what the pod requests is left on the node. Source: kube-scheduler's NodeResourcesFit (filter)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from concerto.scheduling.framework import FilterDefaults, Query
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.columns import Bools, Ints, Rows
from concerto.scheduling.state.resources import PODS

_EXCLUSIVE = "Insufficient cpu beside exclusive CPUs of pinned pods"


def _enough(query: Query, rows: Rows) -> Bools:
    """By resource (the number of pods first, then what the pod requests) and row, whether that much is left."""
    requests = query.pod.shape.requests
    free = query.cluster.resources.free((PODS, *requests), rows)
    if "cpu" in requests:
        free[1 + list(requests).index("cpu")] -= query.cluster.exclusive.beyond_requests[rows]
    enough: Bools = free >= np.array([1, *requests.values()])[:, None]
    return enough


class NodeResources(FilterDefaults):
    """Allocatable less what pods on the node request is enough for the pod, and one more pod may run.

    Pods with CPUs of their own count as the larger of their request and the CPUs that they keep from others.
    """

    name: ClassVar[str] = "NodeResources"
    requeue_on: ClassVar[Change] = Change.NODE | Change.ENDED

    def feasible(self, query: Query, rows: Rows) -> Bools:
        """Rows with enough of everything: each requested resource, extended ones too, and the number of pods."""
        if not all(query.cluster.resources.is_offered(resource) for resource in query.pod.shape.requests):
            return np.zeros_like(query.cluster.nodes.exists[rows])
        passed: Bools = np.logical_and.reduce(_enough(query, rows), axis=0)
        return passed

    def reasons(self, query: Query, rows: Ints) -> Mapping[str, int]:
        """A node counts under each resource that it lacks."""
        table, requests = query.cluster.resources, query.pod.shape.requests
        found = {"Too many pods": int(np.count_nonzero(table.free((PODS,), rows)[0] < 1))}
        for resource, amount in requests.items():
            lacking = len(rows)
            if table.is_offered(resource):
                free = table.free((resource,), rows)[0]
                lacking = int(np.count_nonzero(free < amount))
                if resource == "cpu":
                    beside = free - query.cluster.exclusive.beyond_requests[rows]
                    found[_EXCLUSIVE] = int(np.count_nonzero((beside < amount) & (free >= amount)))
            found[f"Insufficient {resource}"] = lacking
        return {reason: count for reason, count in found.items() if count}
