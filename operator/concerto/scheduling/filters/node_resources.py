"""NodeResources: what the pod requests is left on the node. Source: kube-scheduler's NodeResourcesFit (filter)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from concerto.scheduling.plugin import Query
from concerto.scheduling.snapshot import PODS, Bools, Change, Ints, Rows


def _lacking(query: Query, resource: str, amount: int, rows: Rows) -> Bools:
    snapshot = query.snapshot
    lacking: Bools = snapshot.allocatable(resource, rows) - snapshot.used(resource, rows) < amount
    return lacking


class NodeResources:
    """Allocatable less what pods on the node request is enough for the pod, and one more pod may run."""

    name: ClassVar[str] = "NodeResources"
    fixed: ClassVar[bool] = False
    helped_by: ClassVar[Change] = Change.NODE | Change.ENDED

    def feasible(self, query: Query, rows: Rows) -> Bools:
        """Rows with enough of everything: each requested resource, extended ones too, and the number of pods."""
        lacking = _lacking(query, PODS, 1, rows)
        for resource, amount in query.pod.shape.requests.items():
            lacking |= _lacking(query, resource, amount, rows)
        return ~lacking

    def reasons(self, query: Query, rows: Ints) -> Mapping[str, int]:
        """A node counts under each resource that it lacks."""
        found = {"Too many pods": int(np.count_nonzero(_lacking(query, PODS, 1, rows)))}
        for resource, amount in query.pod.shape.requests.items():
            found[f"Insufficient {resource}"] = int(np.count_nonzero(_lacking(query, resource, amount, rows)))
        return {reason: count for reason, count in found.items() if count}
