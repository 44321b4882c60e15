"""A PodGroup (scheduling.k8s.io) as scheduling sees it: pods that are to be placed together, or none of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from concerto.api.conditions import find_condition
from concerto.api.object_bounds import trim_metadata

Raw = Mapping[str, Any]
GroupKey = tuple[str, str]
"""Namespace and name of a PodGroup."""

INITIALLY_SCHEDULED = "PodGroupInitiallyScheduled"
"""Condition that says whether the group has been scheduled; once it is True, it stays so."""
_SPEC = (
    "schedulingPolicy", "priority", "disruptionMode", "schedulingConstraints", "parentCompositePodGroupName",
    "resourceClaims",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PodGroup:
    """Pods that a scheduler places together.

    Attributes:
        namespace: its namespace, and that of its pods.
        name: its name, as pods name it in ``spec.schedulingGroup.podGroupName``.
        uid: its UID.
        generation: of its spec.
        min_count: pods that have to be placed at once (policy ``gang``); 0 for the policy ``basic``, whose pods are
            placed one by one.
        priority: of the group, which its pods have to share; None where nothing has set it.
        unsupported: the fields that Concerto does not evaluate.
        scheduled: status, reason and message of the condition ``PodGroupInitiallyScheduled``; empty without it.
        disrupted_as_a_whole: whether all of its pods are evicted together (``disruptionMode: {all: {}}``).
    """

    namespace: str
    name: str
    uid: str
    generation: int
    min_count: int
    priority: int | None = None
    unsupported: tuple[str, ...] = ()
    scheduled: tuple[str, str, str] = ("", "", "")
    disrupted_as_a_whole: bool = False

    @property
    def key(self) -> GroupKey:
        """Namespace and name."""
        return self.namespace, self.name

    @classmethod
    def from_raw(cls, obj: Raw) -> Self:
        """The object as the API server holds it, whole or as ``trim_pod_group`` leaves it."""
        metadata, spec = obj["metadata"], obj["spec"]
        policy, constraints = spec["schedulingPolicy"], spec.get("schedulingConstraints") or {}
        named = {
            "schedulingConstraints": bool(constraints.get("topology")),
            "parentCompositePodGroupName": bool(spec.get("parentCompositePodGroupName")),
            "resourceClaims": bool(spec.get("resourceClaims")),
            "schedulingPolicy": not policy.keys() & {"gang", "basic"},
        }
        condition = find_condition((obj.get("status") or {}).get("conditions"), INITIALLY_SCHEDULED) or {}
        return cls(
            metadata["namespace"],
            metadata["name"],
            metadata.get("uid", ""),
            int(metadata.get("generation") or 0),
            int(policy["gang"]["minCount"]) if "gang" in policy else 0,
            spec.get("priority"),
            tuple(field for field, present in named.items() if present),
            (condition.get("status", ""), condition.get("reason", ""), condition.get("message", "")),
            "all" in (spec.get("disruptionMode") or {}),
        )


def trim_pod_group(obj: Raw) -> dict[str, Any]:
    """The part of a raw PodGroup that ``PodGroup`` reads."""
    spec = obj["spec"]
    condition = find_condition((obj.get("status") or {}).get("conditions"), INITIALLY_SCHEDULED)
    return {
        "metadata": trim_metadata(obj, "generation"),
        "spec": {k: spec[k] for k in _SPEC if k in spec},
        "status": {"conditions": [condition]} if condition else {},
    }
