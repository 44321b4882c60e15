"""TaintToleration: a node's NoSchedule and NoExecute taints must be tolerated. Source: kube-scheduler's plugin."""

from __future__ import annotations

from typing import ClassVar

from concerto.scheduling.framework import FilterDefaults, Query, Reach, refused_unless
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.columns import Codes, Rows
from concerto.scheduling.state.taints import Taints


class TaintToleration(FilterDefaults):
    """The pod tolerates each of the node's taints that keep pods away."""

    name: ClassVar[str] = "TaintToleration"
    reach: ClassVar[Reach] = Reach.NOWHERE
    refusals: ClassVar[tuple[str, ...]] = ("node(s) had untolerated taint(s)",)
    requeue_on: ClassVar[Change] = Change.NODE

    def check(self, state: Query, rows: Rows) -> Codes:
        """Rows with an untolerated taint are refused."""
        shape = state.pod.shape

        def accepts(taints: Taints) -> bool:
            return all(t.effect not in ("NoSchedule", "NoExecute") or shape.tolerates(t) for t in taints)

        return refused_unless(state.cluster.nodes.taints.accepted(accepts, rows))
