"""TaintToleration: a node's NoSchedule and NoExecute taints must be tolerated. Source: kube-scheduler's plugin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import ClassVar

from concerto.api.node import Taint
from concerto.api.pod_shape import PodShape
from concerto.scheduling.framework import FilterDefaults, Query
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.columns import Bools, Ints, Rows


def _untolerated(shape: PodShape, taints: tuple[Taint, ...]) -> Taint | None:
    return next((t for t in taints if t.effect in ("NoSchedule", "NoExecute") and not shape.tolerates(t)), None)


class TaintToleration(FilterDefaults):
    """The pod tolerates each of the node's taints that keep pods away."""

    name: ClassVar[str] = "TaintToleration"
    unaffected_by_placements: ClassVar[bool] = True
    requeue_on: ClassVar[Change] = Change.NODE

    def feasible(self, query: Query, rows: Rows) -> Bools:
        """Rows without an untolerated taint."""
        shape = query.pod.shape
        return query.cluster.nodes.taints.accepted(lambda taints: _untolerated(shape, taints) is None, rows)

    def reasons(self, query: Query, rows: Ints) -> Mapping[str, int]:
        """A node counts under the first taint that is not tolerated."""
        found: Counter[str] = Counter()
        for taints, count in query.cluster.nodes.taints.lists(rows):
            found[f"node(s) had untolerated taint {_untolerated(query.pod.shape, taints)}"] += count
        return found
