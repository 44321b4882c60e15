"""MissingMetrics: a node without metrics takes no pods of a profile that avoids such nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from concerto.scheduling.framework import FilterDefaults, Query, Score
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.columns import Bools, Ints, Rows


@dataclass(frozen=True)
class MissingMetrics(FilterDefaults):
    """Every score with ``missingMetrics: Avoid`` has its metrics of the node. Pods that belong to their node pass."""

    scores: tuple[Score, ...]
    name: ClassVar[str] = "MissingMetrics"
    unaffected_by_placements: ClassVar[bool] = True
    requeue_on: ClassVar[Change] = Change.NODE | Change.CAPACITY | Change.LOAD

    def feasible(self, query: Query, rows: Rows) -> Bools:
        """Rows that are measured."""
        passed = np.ones_like(query.cluster.nodes.exists[rows])
        if query.pod.counted:
            for score in self.scores:
                passed &= score.knows(query, rows)
        return passed

    def reasons(self, query: Query, rows: Ints) -> Mapping[str, int]:
        """A node counts under each score that lacks its metrics."""
        missing = {score.name: int(np.count_nonzero(~score.knows(query, rows))) for score in self.scores}
        return {f"node(s) had no metrics for {name}": count for name, count in missing.items() if count}
