"""UnsupportedConstraints: a pod is never placed against a hard constraint that Concerto does not evaluate.

Such a pod is refused everywhere, by the constraint's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from concerto.scheduling.framework import FilterDefaults, Query
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.columns import Bools, Ints, Rows


class UnsupportedConstraints(FilterDefaults):
    """The pod has no such constraint."""

    name: ClassVar[str] = "UnsupportedConstraints"
    unaffected_by_placements: ClassVar[bool] = True
    requeue_on: ClassVar[Change] = Change.NODE

    def feasible(self, query: Query, rows: Rows) -> Bools:
        """No row for a pod with such a constraint; else all of them."""
        return np.full_like(query.cluster.nodes.exists[rows], not query.pod.shape.unsupported)

    def reasons(self, query: Query, rows: Ints) -> Mapping[str, int]:
        """Each unsupported constraint by its name."""
        return {f"pod has {c}, which Concerto does not evaluate": len(rows) for c in query.pod.shape.unsupported}
