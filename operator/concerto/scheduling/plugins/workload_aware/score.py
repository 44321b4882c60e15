"""WorkloadAware: room that a node has for pods of this workload type. Source: docs/references.md, "CPU placement"."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from concerto.pinning.scoring import normalise, score
from concerto.scheduling.framework import Query, ScoreDefaults
from concerto.scheduling.state.columns import Floats, Rows
from concerto.scheduling.state.cpus import Workload


class WorkloadAware(ScoreDefaults):
    """⌈100·allocatable/total⌉ + allocatable of the level that the workload type names, over the feasible nodes.

    100 for the greatest under Balanced, 0 under MaximumUtilization (Stefanakis subtracts from the greatest integer,
    which kube-scheduler then normalises).
    """

    name: ClassVar[str] = "WorkloadAware"
    needs_normalising: ClassVar[bool] = True
    for_pinned_pods: ClassVar[bool] = True

    def score(self, query: Query, rows: Rows) -> Floats:
        """By the allocator; NaN for nodes whose CPUs are not known, and for pods without a workload type."""
        asked = query.workload
        names = query.names(rows)
        if not isinstance(asked, Workload):
            return np.full(len(names), np.nan)
        rooms = (query.cluster.cpus.room(name, asked) for name in names)
        return np.array([np.nan if room is None else float(score(*room)) for room in rooms])

    def normalise(self, query: Query, scores: Floats) -> Floats:
        """To 0 to 100 as the profile's policy says."""
        given = np.flatnonzero(~np.isnan(scores))
        result = np.full(len(scores), np.nan)
        result[given] = normalise(scores[given].tolist(), query.cpu_policy)
        return result
