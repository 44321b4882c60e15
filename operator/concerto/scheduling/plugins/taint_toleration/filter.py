"""TaintToleration: a node's NoSchedule and NoExecute taints must be tolerated. Source: kube-scheduler's plugin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import ClassVar

from concerto.api.node import Taint
from concerto.api.pod_shape import PodShape
from concerto.scheduling.framework import FilterDefaults, Query, Reach, refused_unless
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.columns import Codes, Ints, Rows


def _untolerated(shape: PodShape, taints: tuple[Taint, ...]) -> Taint | None:
    return next((t for t in taints if t.effect in ("NoSchedule", "NoExecute") and not shape.tolerates(t)), None)


class TaintToleration(FilterDefaults):
    """The pod tolerates each of the node's taints that keep pods away."""

    name: ClassVar[str] = "TaintToleration"
    reach: ClassVar[Reach] = Reach.NOWHERE
    refusals: ClassVar[tuple[str, ...]] = ("node(s) had untolerated taint(s)",)
    requeue_on: ClassVar[Change] = Change.NODE

    def check(self, state: Query, rows: Rows) -> Codes:
        """Rows with an untolerated taint are refused."""
        shape = state.pod.shape
        return refused_unless(state.cluster.nodes.taints.accepted(lambda t: _untolerated(shape, t) is None, rows))

    def reasons(self, state: Query, rows: Ints, codes: Codes) -> Mapping[str, int]:
        """A node counts under the first taint that is not tolerated."""
        found: Counter[str] = Counter()
        for taints, count in state.cluster.nodes.taints.lists(rows):
            found[f"node(s) had untolerated taint {_untolerated(state.pod.shape, taints)}"] += count
        return found
