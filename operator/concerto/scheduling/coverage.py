"""Of how many nodes load is known, and how well. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from concerto.api.metric_provider import MetricProviderSettings
from concerto.api.pod import PodView
from concerto.api.schedulingprofile import ProfileSettings
from concerto.scheduling.framework import Query, Score
from concerto.scheduling.profile import Profile
from concerto.scheduling.queries import query_for
from concerto.scheduling.state.cluster import ClusterState
from concerto.scheduling.state.columns import Bools, Rows
from concerto.scheduling.state.measured_capacity import MEASURED

_MAX_NAMED = 10
_FRESH_SECONDS = 60.0
"""What a provider says is fresh up to this age, however often it is asked: metrics-server looks every 15 to 60 s."""
_ANY_POD = PodView.from_raw({"metadata": {"name": "any", "namespace": "default", "uid": ""}, "spec": {}})
"""Which nodes are measured does not depend on the pod."""


@dataclass(frozen=True)
class Coverage:
    """Nodes by what is known of their load, each in one of these.

    Attributes:
        provider: who measures it.
        fresh: measured lately: reported within the heartbeats that an agent may miss, or a provider's two intervals
            or a minute.
        stale: measured before that, and used still.
        missing: not measured, not usably, or too long ago.
        missing_nodes: names of the first of these.
        lacking: (score, what its provider is not asked for) for scores that go without some of what they read.
        affected: (score, rule for such nodes, how many nodes) for scores whose metrics are missing on some nodes.
    """

    provider: str = "Agents"
    fresh: int = 0
    stale: int = 0
    missing: int = 0
    missing_nodes: tuple[str, ...] = ()
    lacking: tuple[tuple[str, tuple[str, ...]], ...] = ()
    affected: tuple[tuple[str, str, int], ...] = ()

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
    lacking = {score.name: lacks for score in by_telemetry if (lacks := _lacks(score, settings.metric_provider))}
    asked = query_for(cluster, _ANY_POD, profile, now)
    without = {
        score: exists & _without_metrics(score, asked, rows)
        for score in by_telemetry
        if not _reads_nothing(score, lacking.get(score.name, ()))
    }
    missing = np.logical_or.reduce([np.zeros_like(exists), *without.values()])
    if settings.load.provider:
        measured_at = cluster.load.measured_at(settings.load.provider, rows)
        missing |= measured_at < now - settings.stale_after_seconds
        late = now - measured_at > max(2 * settings.metric_provider.interval_seconds, _FRESH_SECONDS)
    else:
        late = np.zeros_like(missing)
        silent = cluster.ledger.nodes.with_stale_agent(now, settings.heartbeats_missed)
        late[[cluster.row_of[name] for name in silent if name in cluster.row_of]] = True
    if not settings.load.provider or any("capacity" in score.needs_telemetry for score in by_telemetry):
        missing |= asked.basis != MEASURED
    names = sorted(cluster.names[row] for row in np.flatnonzero(missing & exists))
    return Coverage(
        settings.metric_provider.type,
        int(np.count_nonzero(exists & ~missing & ~late)),
        int(np.count_nonzero(exists & ~missing & late)),
        len(names),
        tuple(names[:_MAX_NAMED]),
        tuple(lacking.items()),
        tuple(
            (score.name, _rule(score, settings), int(np.count_nonzero(lacks)))
            for score, lacks in without.items()
            if lacks.any()
        ),
    )


def _without_metrics(score: Score, asked: Query, rows: Rows) -> Bools:
    """Rows whose metrics the score lacks."""
    return ~score.knows(asked, rows) if "load" in score.needs_telemetry else ~asked.is_measured(rows)


def _rule(score: Score, settings: ProfileSettings) -> str:
    """The setting that decides how the score uses nodes without metrics."""
    by_load = "load" in score.needs_telemetry
    return f"missingMetrics {score.missing_metrics}" if by_load else f"metricsPolicy {settings.metrics_policy}"


def _reads_nothing(score: Score, lacks: tuple[str, ...]) -> bool:
    """Whether the provider is asked for nothing that the score could do with."""
    return bool(score.resources) and {f"{resource}.average" for resource in score.resources}.issubset(lacks)


def _lacks(score: Score, provider: MetricProviderSettings) -> tuple[str, ...]:
    """What a load-aware score reads and the provider is not asked for, as ``queries`` call it."""
    if "load" not in score.needs_telemetry or provider.prometheus is None:
        return ()
    named = {query.name for query in provider.prometheus.queries}
    lacks = []
    for resource in score.resources:
        if not named & {f"{resource}.average", f"{resource}.latest"}:
            lacks.append(f"{resource}.average")
        if "deviation" in score.needs_telemetry and f"{resource}.standardDeviation" not in named:
            lacks.append(f"{resource}.standardDeviation")
    return tuple(lacks)
