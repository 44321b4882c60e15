"""TaintToleration: a node's NoSchedule and NoExecute taints must be tolerated. Source: kube-scheduler's plugin."""

from __future__ import annotations

from typing import ClassVar

from concerto.api.pod_shape import PodShape
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
        return refused_unless(state.cluster.nodes.taints.accepted(lambda taints: not _untolerated(shape, taints), rows))

    def detail(self, state: Query, row: int) -> str:
        """The taints, as kubectl writes them."""
        taints = _untolerated(state.pod.shape, state.cluster.nodes.views[row].taints)
        return ", ".join(f"{t.key}={t.value}:{t.effect}" if t.value else f"{t.key}:{t.effect}" for t in taints)


def _untolerated(shape: PodShape, taints: Taints) -> Taints:
    return tuple(t for t in taints if t.effect in ("NoSchedule", "NoExecute") and not shape.tolerates(t))
