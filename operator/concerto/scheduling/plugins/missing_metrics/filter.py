"""MissingMetrics: a node without metrics takes no pods of a profile that avoids such nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from concerto.scheduling.framework import FilterDefaults, Query, Reach, Score, refused_unless
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.columns import Codes, Ints, Rows


@dataclass(frozen=True)
class MissingMetrics(FilterDefaults):
    """Every score with ``missingMetrics: Avoid`` has its metrics of the node. Pods that belong to their node pass."""

    scores: tuple[Score, ...]
    name: ClassVar[str] = "MissingMetrics"
    reach: ClassVar[Reach] = Reach.NOWHERE
    refusals: ClassVar[tuple[str, ...]] = ("node(s) had no metrics for a score",)
    requeue_on: ClassVar[Change] = Change.NODE | Change.CAPACITY | Change.LOAD

    def prepare(self, query: Query) -> Query | None:
        """Pods that belong to their node are not concerned."""
        return query if query.pod.counted else None

    def check(self, state: Query, rows: Rows) -> Codes:
        """Rows that are not measured are refused."""
        return refused_unless(np.logical_and.reduce([score.knows(state, rows) for score in self.scores]))

    def reasons(self, state: Query, rows: Ints, codes: Codes) -> Mapping[str, int]:
        """A node counts under each score that lacks its metrics."""
        missing = {score.name: int(np.count_nonzero(~score.knows(state, rows))) for score in self.scores}
        return {f"node(s) had no metrics for {name}": count for name, count in missing.items() if count}
