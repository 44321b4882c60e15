"""Of how many nodes load is known, and how well. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from concerto.api.metric_provider import MetricProviderSettings
from concerto.scheduling.framework import Score
from concerto.scheduling.profile import Profile
from concerto.scheduling.state.cluster import ClusterState
from concerto.scheduling.state.measured_capacity import MEASURED
from concerto.scheduling.state.provided_load import RESOURCES

MAX_TOLD = 10
_FRESH_SECONDS = 60.0
"""What a provider says is fresh up to this age, however often it is asked: metrics-server looks every 15 to 60 s."""


@dataclass(frozen=True)
class Coverage:
    """Nodes by what is known of their load, each in one of these.

    Attributes:
        provider: who measures it.
        fresh: measured lately: heard within the heartbeats that an agent may miss, or a provider's two intervals
            or a minute.
        stale: measured before that, and used still.
        missing: not measured, not usably, or too long ago.
        missing_nodes: names of the first of these.
        lacking: (score, what its provider is not asked for) for scores that abstain everywhere for that reason.
    """

    provider: str = "Agents"
    fresh: int = 0
    stale: int = 0
    missing: int = 0
    missing_nodes: tuple[str, ...] = ()
    lacking: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def nodes(self) -> int:
        """All of them."""
        return self.fresh + self.stale + self.missing


def coverage(cluster: ClusterState, profile: Profile, now: float) -> Coverage:
    """What is known, as of now, of the load that a profile's scores ask for."""
    settings = profile.settings
    rows = slice(0, cluster.size)
    exists = cluster.nodes.exists[rows]
    by_telemetry = [score for score, _ in profile.scores if score.needs_telemetry]
    basis = cluster.measured.basis(
        now, stale_after_seconds=settings.stale_after_seconds, policy=settings.metrics_policy
    )
    if settings.load.provider:
        heard = cluster.load.heard(settings.load.provider, rows)
        missing = heard < now - settings.stale_after_seconds
        late = now - heard > max(2 * settings.metric_provider.interval_seconds, _FRESH_SECONDS)
        if any("capacity" in score.needs_telemetry for score in by_telemetry):
            missing |= basis != MEASURED
    else:
        missing = basis != MEASURED
        if profile.reads_load:
            missing |= np.isnan(cluster.load.measured("cpu", "latest", settings.load, rows))
        late = np.zeros_like(missing)
        silent = cluster.ledger.nodes.with_stale_agent(now, settings.heartbeats_missed)
        late[[cluster.row_of[name] for name in silent if name in cluster.row_of]] = True
    names = sorted(cluster.names[row] for row in np.flatnonzero(missing & exists))
    return Coverage(
        settings.metric_provider.type,
        int(np.count_nonzero(exists & ~missing & ~late)),
        int(np.count_nonzero(exists & ~missing & late)),
        len(names),
        tuple(names[:MAX_TOLD]),
        tuple((score.name, lacks) for score in by_telemetry if (lacks := _lacks(score, settings.metric_provider))),
    )


def _lacks(score: Score, provider: MetricProviderSettings) -> tuple[str, ...]:
    """What a load-aware score needs and the provider is not asked for, as ``queries`` call it."""
    if "load" not in score.needs_telemetry or provider.type == "Agents":
        return ()
    if provider.prometheus is None:
        told = {f"{resource}.latest" for resource in RESOURCES}
    else:
        told = {query.name for query in provider.prometheus.queries}
    needs_deviation = "deviation" in score.needs_telemetry
    lacks = []
    for resource in RESOURCES if needs_deviation else RESOURCES[:1]:
        if not told & {f"{resource}.average", f"{resource}.latest"}:
            lacks.append(f"{resource}.average")
        if needs_deviation and f"{resource}.standardDeviation" not in told:
            lacks.append(f"{resource}.standardDeviation")
    return tuple(lacks)
