"""WorkloadAware: room that a node has for pods of this workload type. Source: docs/references.md, "CPU placement"."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from concerto.pinning.scoring import normalise, score
from concerto.scheduling.framework import Query, ScoreDefaults
from concerto.scheduling.plugins.workload_aware.filter import Asked, ask
from concerto.scheduling.plugins.workload_aware.filter import WorkloadAware as WorkloadAwareFilter
from concerto.scheduling.state.columns import Floats, Rows
from concerto.scheduling.state.cpus import Workload


class WorkloadAware(ScoreDefaults):
    """⌈100·allocatable/total⌉ + allocatable of the level that the workload type names, over the feasible nodes.

    100 for the greatest under Balanced, 0 under MaximumUtilization (Stefanakis subtracts from the greatest integer,
    which kube-scheduler then normalises).
    """

    name: ClassVar[str] = "WorkloadAware"
    needs_normalising: ClassVar[bool] = True

    def prepare(self, query: Query) -> Asked | None:
        """The workload that the pod's labels name; none under a profile that gives pods no CPUs of their own."""
        asked = ask(query) if WorkloadAwareFilter.name in query.settings.filters else None
        return asked if asked is not None and isinstance(asked.workload, Workload) else None

    def score(self, state: Asked, rows: Rows) -> Floats:
        """By the allocator; NaN for nodes whose CPUs are not known."""
        assert isinstance(state.workload, Workload)
        asked, cpus = state.workload, state.query.cluster.cpus
        rooms = (cpus.room(name, asked) for name in state.query.names(rows))
        return np.array([np.nan if room is None else float(score(*room)) for room in rooms])

    def normalise(self, state: Asked, scores: Floats) -> Floats:
        """To 0 to 100 as the profile's policy says."""
        given = np.flatnonzero(~np.isnan(scores))
        result = np.full(len(scores), np.nan)
        result[given] = normalise(scores[given].tolist(), state.query.settings.workload_aware.policy)
        return result
