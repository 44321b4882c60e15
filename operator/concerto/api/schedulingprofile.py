"""SchedulingProfile: how pods with its scheduler name are placed.

The defaults below are those of the CRD (crds/schedulingprofiles.yaml).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from concerto.api.quantities import parse_duration, parse_quantity

MetricsPolicy = Literal["FallbackToRequests", "Avoid"]
TieBreaking = Literal["Random", "FirstByName"]

DEFAULT_FILTERS = (
    "NodeName", "NodeUnschedulable", "NodeReady", "TaintToleration", "NodeAffinity", "NodeResources", "NodePorts",
    "UnsupportedConstraints", "PodCapacity",
)  # fmt: skip


@dataclass(frozen=True)
class ProfileSettings:
    """SchedulingProfile ``spec``.

    Attributes:
        scheduler_name: the pods it is for: those with this ``spec.schedulerName``.
        filters: names of the filters, in the order in which they run.
        scores: (name, weight) of the scores.
        metrics_policy: what happens to a node whose telemetry is missing or older than ``stale_after_seconds``.
        stale_after_seconds: age up to which a silent node's last telemetry is still used.
        heartbeats_missed: heartbeats without a word after which a node counts as silent.
        admit_fraction: room that a node must have left to be given one more pod, in pods.
        tie_breaking: which of several best nodes is taken.
        max_units_per_namespace: most units that the standing reservations of one namespace may hold together.
        unbound_ttl_seconds: time after which a placement that could not be carried out is given up.
    """

    scheduler_name: str
    filters: tuple[str, ...] = DEFAULT_FILTERS
    scores: tuple[tuple[str, int], ...] = (("Capacity", 1),)
    metrics_policy: MetricsPolicy = "FallbackToRequests"
    stale_after_seconds: float = 600.0
    heartbeats_missed: int = 3
    admit_fraction: float = 1.0
    tie_breaking: TieBreaking = "Random"
    max_units_per_namespace: int = 100
    unbound_ttl_seconds: float = 60.0

    @classmethod
    def from_raw(cls, spec: Mapping[str, Any]) -> Self:
        """SchedulingProfile ``spec`` as the API server holds it; what is left out takes its default."""
        reservations = spec.get("reservations") or {}
        return cls(
            scheduler_name=spec["schedulerName"],
            filters=tuple(f["name"] for f in spec["filters"]) if "filters" in spec else cls.filters,
            scores=tuple((s["name"], s.get("weight", 1)) for s in spec["scores"]) if "scores" in spec else cls.scores,
            metrics_policy=spec.get("metricsPolicy", cls.metrics_policy),
            stale_after_seconds=parse_duration(spec["staleAfter"]) if "staleAfter" in spec else cls.stale_after_seconds,
            heartbeats_missed=spec.get("heartbeatsMissed", cls.heartbeats_missed),
            admit_fraction=float(parse_quantity(spec.get("admitFraction", "1"))),
            tie_breaking=spec.get("tieBreaking", cls.tie_breaking),
            max_units_per_namespace=reservations.get("maxUnitsPerNamespace", cls.max_units_per_namespace),
            unbound_ttl_seconds=parse_duration(reservations.get("unboundTTL", "60s")),
        )
