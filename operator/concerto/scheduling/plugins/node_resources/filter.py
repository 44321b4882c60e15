"""NodeResources: what the pod requests is left on the node. Source: kube-scheduler's NodeResourcesFit (filter)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from concerto.scheduling.framework import FilterDefaults, Query
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.columns import Bools, Codes, Ints, Rows
from concerto.scheduling.state.device_classes import BY_NAME
from concerto.scheduling.state.resources import PODS

_EXCLUSIVE = "Insufficient cpu beside exclusive CPUs of pinned pods"
_INSUFFICIENT, _NEVER_ENOUGH = 1, 2


class NodeResources(FilterDefaults):
    """Allocatable less what pods on the node request is enough for the pod, and one more pod may run.

    Pods with CPUs of their own count as the larger of their request and the CPUs that they keep from others.
    """

    name: ClassVar[str] = "NodeResources"
    refusals: ClassVar[tuple[str, ...]] = ("Insufficient resources", "Insufficient resources, even on an empty node")
    by_amount: ClassVar[bool] = True
    resolvable: ClassVar[frozenset[int]] = frozenset({_INSUFFICIENT})
    requeue_on: ClassVar[Change] = Change.NODE | Change.ENDED

    def check(self, state: Query, rows: Rows) -> Codes:
        """Rows are refused that lack some requested resource, extended ones too, or have the most pods they may."""
        table, requests = state.cluster.resources, state.pod.shape.requests
        if not all(table.is_offered(resource) for resource in requests):
            return np.full(len(state.basis[rows]), _NEVER_ENOUGH, dtype=np.int8)
        passes: Bools = np.logical_and.reduce(_enough(state, rows), axis=0)
        codes: Codes = (~passes).view(np.int8)
        if not passes.all():
            refused = np.flatnonzero(codes)
            of = np.arange(state.cluster.size)[rows][refused]
            for resource, amount in ((PODS, 1), *requests.items()):
                codes[refused[table.allocatable(resource, of) < amount]] = _NEVER_ENOUGH
        return codes

    def no_node_helps(self, state: Query) -> bool:
        """Devices are requested by the name of their class, and Concerto does not allocate them.

        A new node may have a device plugin that offers any other resource.
        """
        table = state.cluster.resources
        return any(r.startswith(BY_NAME) and not table.is_offered(r) for r in state.pod.shape.requests)

    def reasons(self, state: Query, rows: Ints, codes: Codes) -> Mapping[str, int]:
        """A node counts under each resource that it lacks; devices that it does not offer itself are named as such."""
        table, requests = state.cluster.resources, state.pod.shape.requests
        found = {"Too many pods": int(np.count_nonzero(table.free((PODS,), rows)[0] < 1))}
        for resource, amount in requests.items():
            lacking = len(rows)
            if table.is_offered(resource):
                free = table.free((resource,), rows)[0]
                lacking = int(np.count_nonzero(free < amount))
                if resource == "cpu":
                    beside = free - state.cluster.exclusive.beyond_requests[rows]
                    found[_EXCLUSIVE] = int(np.count_nonzero((beside < amount) & (free >= amount)))
            if device_class := table.device_classes.offering(resource):
                of_class = int(np.count_nonzero(table.allocatable(resource, rows) == 0))
                found[f"pod has {resource} of DeviceClass {device_class}, which Concerto does not evaluate"] = of_class
                lacking -= of_class
            found[f"Insufficient {resource}"] = lacking
        return {reason: count for reason, count in found.items() if count}


def _enough(query: Query, rows: Rows) -> Bools:
    """By resource (the number of pods first, then what the pod requests) and row, whether that much is left."""
    requests = query.pod.shape.requests
    free = query.cluster.resources.free((PODS, *requests), rows)
    if "cpu" in requests:
        free[1 + list(requests).index("cpu")] -= query.cluster.exclusive.beyond_requests[rows]
    enough: Bools = free >= np.array([1, *requests.values()])[:, None]
    return enough
