"""The load of nodes as scores by load read it, in parts of the machine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from concerto.api.prometheus_queries import Statistic
from concerto.scheduling.framework import Query
from concerto.scheduling.state.columns import Bools, Floats, Rows
from concerto.scheduling.state.provided_load import RESOURCES

_MEANS: tuple[Statistic, ...] = ("average", "latest")


@dataclass(frozen=True, slots=True)
class NodeLoad:
    """Measured load for one pod's profile.

    Attributes:
        query: the pod and its profile.
        oldest: when a provider's metric must have been measured at least, seconds.
    """

    query: Query
    oldest: float

    @classmethod
    def of(cls, query: Query) -> NodeLoad:
        """Load by the profile's provider and window, no older than it allows."""
        return cls(query, query.now - query.settings.stale_after_seconds)

    def mean(self, resource: str, rows: Rows) -> Floats:
        """The mean over the window (else the latest measurement), with young pods in full and without ended ones.

        0 or more, in parts of the machine; NaN where telemetry is missing, unusable or too old.
        """
        load, settings = self.query.cluster.load, self.query.settings.load
        mean = self._measured(resource, "average", rows)
        mean = np.where(np.isnan(mean), self._measured(resource, "latest", rows), mean)
        recent = self.part(resource, load.recent(resource, settings, rows), rows)
        contained = self.part(resource, load.contained(resource, settings, rows), rows)
        with np.errstate(invalid="ignore", divide="ignore"):
            measured = np.minimum(mean / contained, 1.0)  # of what was predicted
        return mean + np.where(recent < 0.0, recent * measured, recent)

    def deviation(self, resource: str, rows: Rows) -> Floats:
        """The standard deviation over the window, as a fraction of the machine; 0 where only the load is known.

        Source: Trimaran's plugins, which take a deviation that nobody measured as 0.
        """
        return np.nan_to_num(self._measured(resource, "deviation", rows))

    def knows(self, resource: str, rows: Rows) -> Bools:
        """Where `mean` is a number."""
        known = [self._measured(resource, statistic, rows) for statistic in _MEANS]
        return ~np.isnan(np.fmax(*known))

    def requested(self, resource: str, rows: Rows) -> Floats:
        """What pods on the nodes request, in parts of the machine, with kube-scheduler's defaults for the rest."""
        requested = self.query.cluster.usage.nonzero[RESOURCES.index(resource)][rows]
        return self.part(resource, requested.astype(np.float64), rows)

    def has(self, resource: str, rows: Rows) -> Bools:
        """Where the machine has some of the resource."""
        there: Bools = self.query.cluster.nodes.machine[RESOURCES.index(resource)][rows] > 0
        return there

    def part(self, resource: str, amount: Floats | float, rows: Rows) -> Floats:
        """An amount (millicores, bytes) in parts of the machine; 1 where the machine has none of the resource."""
        machine = self.query.cluster.nodes.machine[RESOURCES.index(resource)][rows]
        parts: Floats = amount / np.maximum(machine, 1)
        return np.where(machine > 0, parts, np.minimum(parts, 1.0))

    def _measured(self, resource: str, statistic: Statistic, rows: Rows) -> Floats:
        query = self.query
        measured = query.cluster.load.measured(resource, statistic, query.settings.load, rows, self.oldest)
        return measured if query.settings.load.provider else np.where(query.is_measured(rows), measured, np.nan)
