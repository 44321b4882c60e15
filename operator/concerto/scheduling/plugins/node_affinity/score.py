"""NodeAffinity: nodes that the pod or its profile prefers. Source: kube-scheduler's plugin of that name."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from concerto.scheduling.framework import Query, Reach, ScoreDefaults
from concerto.scheduling.state.columns import Floats, Rows


class NodeAffinity(ScoreDefaults):
    """The weights of the preferences that a node meets, 0 to 100 with 100 for the greatest sum."""

    name: ClassVar[str] = "NodeAffinity"
    reach: ClassVar[Reach] = Reach.NOWHERE
    needs_normalising: ClassVar[bool] = True

    def prepare(self, query: Query) -> Query | None:
        """Pods without preferences are not concerned, unless their profile has some."""
        return query if query.pod.shape.preferred_nodes or query.settings.added_preferences else None

    def score(self, state: Query, rows: Rows) -> Floats:
        """Sums of weights."""
        total = np.zeros(len(state.basis[rows]))
        for weight, term in (*state.settings.added_preferences, *state.pod.shape.preferred_nodes):
            total += np.where(state.cluster.nodes.labels.in_term(term, rows), float(weight), 0.0)
        return total

    def normalise(self, state: Query, scores: Floats) -> Floats:
        """Percent of the greatest, rounded down as kube-scheduler's integers are."""
        greatest = np.fmax.reduce(scores, initial=0.0)
        return np.floor(scores * 100.0 / greatest) if greatest > 0 else scores
