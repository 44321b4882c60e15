"""Profiles that both schedulers have: the default one, and others that give plugins arguments.

Each is written twice, in the form of a KubeSchedulerConfiguration and in that of a SchedulingProfile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from e2e.testbed.placement.random_objects import GPU, ZONE

DEFAULT, PACKING, SHAPED = "default-scheduler", "packing", "shaped"
WEIGHTS = {
    "TaintToleration": 3,
    "NodeAffinity": 2,
    "PodTopologySpread": 2,
    "InterPodAffinity": 2,
    "ImageLocality": 1,
    "NodeResourcesFit": 1,
    "NodeResourcesBalancedAllocation": 1,
    "VolumeBinding": 1,
}
"""Of kube-scheduler's default scores. Source: kubernetes/kubernetes, ``getDefaultPlugins``."""
_TERMS = [
    {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["a", "b"]}]},
    {"matchExpressions": [{"key": "disk", "operator": "Exists"}]},
]
ADDED_TERMS: Mapping[str, Sequence[Mapping[str, Any]]] = {PACKING: _TERMS}
"""Node selector terms, one of which each node has to match, by profile."""
_PREFERENCES = [
    {"weight": 30, "preference": {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}},
    {"weight": 70, "preference": {"matchExpressions": [{"key": "rack", "operator": "In", "values": ["1"]}]}},
]
_MOST = [{"name": n, "weight": w} for n, w in (("cpu", 2), ("memory", 1), ("ephemeral-storage", 1), (GPU, 3))]
_BOTH = [{"name": "cpu", "weight": 3}, {"name": "memory", "weight": 1}]
_SHAPE = [{"utilization": u, "score": s} for u, s in ((0, 2), (40, 10), (100, 0))]


def _plugin(name: str, **args: Any) -> Mapping[str, Any]:
    return {"name": name, "args": {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": f"{name}Args", **args}}


KUBE_SCHEDULER: Sequence[Mapping[str, Any]] = (
    {"schedulerName": DEFAULT},
    {
        "schedulerName": PACKING,
        "pluginConfig": [
            _plugin(
                "NodeAffinity",
                addedAffinity={
                    "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": _TERMS},
                    "preferredDuringSchedulingIgnoredDuringExecution": _PREFERENCES,
                },
            ),
            _plugin("NodeResourcesFit", scoringStrategy={"type": "MostAllocated", "resources": _MOST}),
        ],
    },
    {
        "schedulerName": SHAPED,
        "pluginConfig": [
            _plugin(
                "NodeResourcesFit",
                scoringStrategy={
                    "type": "RequestedToCapacityRatio",
                    "resources": _BOTH,
                    "requestedToCapacityRatio": {"shape": _SHAPE},
                },
            ),
        ],
    },
)
"""``profiles`` of its configuration."""


def _scores(**args: Any) -> list[dict[str, Any]]:
    fit = {"NodeResourcesFit": {"nodeResourcesFit": args}} if args else {}
    return [{"name": name, "weight": weight, **fit.get(name, {})} for name, weight in WEIGHTS.items()]


CONCERTO: Sequence[Mapping[str, Any]] = (
    {"schedulerName": DEFAULT, "scores": _scores()},
    {
        "schedulerName": PACKING,
        "addedAffinity": {"nodeSelectorTerms": _TERMS, "preferredSchedulingTerms": _PREFERENCES},
        "scores": _scores(strategy="MostAllocated", resources=_MOST),
    },
    {
        "schedulerName": SHAPED,
        "scores": _scores(strategy="RequestedToCapacityRatio", resources=_BOTH, shape=_SHAPE),
    },
)
"""``spec`` of its SchedulingProfiles."""
