"""TaintToleration: nodes with taints that would rather be without the pod. Source: kube-scheduler's plugin."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from concerto.scheduling.framework import Query, Reach, ScoreDefaults
from concerto.scheduling.state.columns import Floats, Rows


class TaintToleration(ScoreDefaults):
    """The fewer PreferNoSchedule taints that the pod does not tolerate, the better: 100 for none, 0 for the most."""

    name: ClassVar[str] = "TaintToleration"
    reach: ClassVar[Reach] = Reach.NOWHERE
    needs_normalising: ClassVar[bool] = True

    def prepare(self, query: Query) -> Query | None:
        """Pods that tolerate every such taint of the cluster are not concerned."""
        counts = self.score(query, slice(0, query.cluster.size))
        return query if counts.any() else None

    def score(self, state: Query, rows: Rows) -> Floats:
        """Counts of untolerated taints."""
        tolerates = state.pod.shape.tolerates
        return state.cluster.nodes.taints.counted(
            lambda taints: sum(t.effect == "PreferNoSchedule" and not tolerates(t) for t in taints), rows
        )

    def normalise(self, state: Query, scores: Floats) -> Floats:
        """100 less the percentage of the greatest count, which is rounded down as kube-scheduler's integers are."""
        greatest = np.fmax.reduce(scores, initial=0.0)
        return 100.0 - np.floor(scores * 100.0 / greatest) if greatest > 0 else scores + 100.0
