"""What the load-aware scores have in common: whose load they read, and what they do where it is missing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from concerto.api.score_arguments import MissingMetrics
from concerto.scheduling.framework import Query, ScoreDefaults
from concerto.scheduling.plugins.load.node_load import NodeLoad
from concerto.scheduling.state.columns import Bools, Floats, Rows
from concerto.scheduling.state.provided_load import RESOURCES


@dataclass(frozen=True)
class LoadAwareScore(ScoreDefaults):
    """A score by the load of nodes.

    Attributes:
        missing_metrics: what it does about a node whose load is not known (docs/load-aware.md, "When metrics are
            missing").
        resources: the resources whose load it reads. One of them is enough.
    """

    missing_metrics: MissingMetrics = field(default="LeastScore", kw_only=True)
    needs_telemetry: ClassVar[frozenset[str]] = frozenset({"load"})
    resources: ClassVar[tuple[str, ...]] = RESOURCES

    def knows(self, query: Query, rows: Rows) -> Bools:
        """Rows with the load of at least one of its resources."""
        return self._knows(NodeLoad.of(query), rows)

    def _knows(self, load: NodeLoad, rows: Rows) -> Bools:
        known: Bools = np.logical_or.reduce([load.knows(resource, rows) for resource in self.resources])
        return known

    def prepare(self, query: Query) -> NodeLoad:
        """The nodes' load by the pod's profile."""
        return NodeLoad.of(query)

    def load(self, load: NodeLoad, resource: str, rows: Rows) -> Floats:
        """By row, the load as a fraction of the machine; NaN where it is missing and requests do not stand in."""
        mean = load.mean(resource, rows)
        if self.missing_metrics != "Requests":
            return mean
        return np.where(self._knows(load, rows), mean, load.requested(resource, rows))
