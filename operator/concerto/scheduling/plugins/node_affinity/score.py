"""NodeAffinity: the pod's preferred node affinity. Source: kube-scheduler's plugin of that name."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from concerto.scheduling.framework import Query, ScoreDefaults
from concerto.scheduling.state.columns import Floats, Rows


class NodeAffinity(ScoreDefaults):
    """The weights of the preferences that a node meets, 0 to 100 with 100 for the greatest sum."""

    name: ClassVar[str] = "NodeAffinity"
    needs_normalising: ClassVar[bool] = True

    def score(self, query: Query, rows: Rows) -> Floats:
        """Sums of weights; nothing to say about a pod without preferences."""
        preferred = query.pod.shape.preferred_nodes
        total = np.full(len(query.basis[rows]), 0.0 if preferred else np.nan)
        for weight, term in preferred:
            total += np.where(query.cluster.nodes.labels.in_term(term, rows), float(weight), 0.0)
        return total

    def normalise(self, query: Query, scores: Floats) -> Floats:
        """Percent of the greatest, rounded down as kube-scheduler's integers are."""
        greatest = np.fmax.reduce(scores, initial=0.0)
        return np.floor(scores * 100.0 / greatest) if greatest > 0 else scores
