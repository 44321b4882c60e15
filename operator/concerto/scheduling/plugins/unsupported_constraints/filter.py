"""UnsupportedConstraints: a pod is never placed against a hard constraint that Concerto does not evaluate.

Such a pod is refused everywhere, by the constraint's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from concerto.scheduling.framework import FilterDefaults, Query, Reach
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.columns import Codes, Ints, Rows


class UnsupportedConstraints(FilterDefaults):
    """The pod has no such constraint."""

    name: ClassVar[str] = "UnsupportedConstraints"
    reach: ClassVar[Reach] = Reach.NOWHERE
    refusals: ClassVar[tuple[str, ...]] = ("pod has a constraint that Concerto does not evaluate",)
    requeue_on: ClassVar[Change] = Change.NODE

    def prepare(self, query: Query) -> Query | None:
        """Pods without such a constraint are not concerned."""
        return query if query.pod.shape.unsupported else None

    def check(self, state: Query, rows: Rows) -> Codes:
        """All rows are refused."""
        return np.ones(len(state.basis[rows]), dtype=np.int8)

    def no_node_helps(self, state: Query) -> bool:
        """The constraint is evaluated on no node."""
        return True

    def reasons(self, state: Query, rows: Ints, codes: Codes) -> Mapping[str, int]:
        """Each unsupported constraint by its name."""
        return {f"pod has {c}, which Concerto does not evaluate": len(rows) for c in state.pod.shape.unsupported}
