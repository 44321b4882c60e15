"""Other autoscalers of a target: two that scale one target undo each other's changes."""

from __future__ import annotations

import contextlib
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from concerto.api.object_bounds import trim_metadata
from concerto.api.predictivehpa import ObjectReference
from concerto.kube import Resource

HORIZONTAL_POD_AUTOSCALERS = Resource("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", True)

Scaler = tuple[str, str, str]
"""Kind, namespace and name of an autoscaler."""
_Target = tuple[str, str, str, str]


class TargetConflicts:
    """Autoscalers by their targets."""

    def __init__(self) -> None:
        self._targets: dict[Scaler, _Target] = {}
        self._scalers: defaultdict[_Target, list[Scaler]] = defaultdict(list)  # in order: each of thousands asks

    def put(self, scaler: Scaler, target: ObjectReference | None) -> None:
        """Register the target of an autoscaler; None removes the autoscaler."""
        if (before := self._targets.pop(scaler, None)) is not None:
            scalers = self._scalers[before]
            del scalers[bisect_left(scalers, scaler)]
            if not scalers:
                del self._scalers[before]
        if target is not None:
            # Versions of a group show the same objects
            self._targets[scaler] = key = (scaler[1], target.group, target.kind, target.name)
            insort(self._scalers[key], scaler)

    def of(self, scaler: Scaler, max_named: int = 8) -> tuple[list[Scaler], int]:
        """The first of the other autoscalers of the same target, in order, and how many more there are."""
        target = self._targets.get(scaler)
        if target is None:
            return [], 0
        scalers = self._scalers[target]
        first = [other for other in scalers[: max_named + 1] if other != scaler][:max_named]
        return first, len(scalers) - 1 - len(first)

    def on_hpa(self, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> None:
        """Take note that a HorizontalPodAutoscaler appeared, changed or was deleted."""
        meta = (new or old or {})["metadata"]
        scaler = (HORIZONTAL_POD_AUTOSCALERS.kind, meta["namespace"], meta["name"])
        target = None
        if new is not None:
            # An invalid reference cannot name a target of ours
            with contextlib.suppress(ValueError, KeyError):
                target = ObjectReference.from_raw(new["spec"]["scaleTargetRef"])
        self.put(scaler, target)


def trim_hpa(obj: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a HorizontalPodAutoscaler that names its target."""
    return {"metadata": trim_metadata(obj), "spec": {"scaleTargetRef": obj["spec"]["scaleTargetRef"]}}
