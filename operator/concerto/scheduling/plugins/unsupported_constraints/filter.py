"""UnsupportedConstraints: a pod is never placed against a hard constraint that Concerto does not evaluate.

Such a pod is refused everywhere, by the constraint's name. What other pods refuse (the required anti-affinity of pods
that run already, which binds whoever comes later) is evaluated, as kube-scheduler's InterPodAffinity does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from concerto.scheduling.framework import FilterDefaults, Query
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.columns import Bools, Ints, Rows


class UnsupportedConstraints(FilterDefaults):
    """The pod has no such constraint, and no pod in the same place as the node refuses it."""

    name: ClassVar[str] = "UnsupportedConstraints"
    # A pod with anti-affinity of its own is refused, so no placement of ours adds a refusal
    unaffected_by_placements: ClassVar[bool] = True
    requeue_on: ClassVar[Change] = Change.NODE | Change.ENDED

    def feasible(self, query: Query, rows: Rows) -> Bools:
        """No row for a pod with such a constraint; else those where nobody refuses it."""
        pod = query.pod
        free = ~query.cluster.anti_affinity.refused(pod.namespace, pod.labels, rows)
        return np.zeros_like(free) if pod.shape.unsupported else free

    def reasons(self, query: Query, rows: Ints) -> Mapping[str, int]:
        """Each unsupported constraint by its name, or the anti-affinity of others."""
        if query.pod.shape.unsupported:
            return {f"pod has {c}, which Concerto does not evaluate": len(rows) for c in query.pod.shape.unsupported}
        return {"node(s) didn't satisfy existing pods anti-affinity rules": len(rows)}
