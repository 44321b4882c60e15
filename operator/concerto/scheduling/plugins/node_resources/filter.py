"""NodeResources: what the pod requests is left on the node. Source: kube-scheduler's NodeResourcesFit (filter)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from concerto.scheduling.framework import FilterDefaults, Query
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.columns import Bools, Ints, Rows
from concerto.scheduling.state.resources import PODS


def _enough(query: Query, rows: Rows) -> Bools:
    """By resource (the number of pods first, then what the pod requests) and row, whether that much is left."""
    requests = query.pod.shape.requests
    amounts = np.array([1, *requests.values()])
    enough: Bools = query.cluster.resources.free((PODS, *requests), rows) >= amounts[:, None]
    return enough


class NodeResources(FilterDefaults):
    """Allocatable less what pods on the node request is enough for the pod, and one more pod may run."""

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
                lacking = int(np.count_nonzero(table.free((resource,), rows)[0] < amount))
            found[f"Insufficient {resource}"] = lacking
        return {reason: count for reason, count in found.items() if count}
