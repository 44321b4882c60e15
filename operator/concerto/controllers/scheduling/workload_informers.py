"""How Services and workloads reach the selectors by which pods are spread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from concerto.api.object_bounds import is_large, trim_metadata
from concerto.api.selectors import LabelSelector
from concerto.controllers.runtime.metrics import Metrics
from concerto.controllers.runtime.watched_kinds import OnChange
from concerto.controllers.scheduling.informers import Informer
from concerto.kube import Object
from concerto.kube.resources import REPLICA_SETS, REPLICATION_CONTROLLERS, SERVICES, STATEFUL_SETS, Resource
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.workload_selectors import WorkloadSelectors

SPREADING = (SERVICES, REPLICATION_CONTROLLERS, REPLICA_SETS, STATEFUL_SETS)
"""Kinds by whose selectors pods are spread."""


def trim_to_selector(obj: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a raw Service or workload that is read: its name, and its selector if that is not large."""
    selector = (obj.get("spec") or {}).get("selector")
    return {
        "metadata": trim_metadata(obj),
        "spec": {"selector": selector} if selector and not is_large(selector) else {},
    }


def follow_selectors(resource: Resource, selectors: WorkloadSelectors, metrics: Metrics) -> OnChange:
    """Takes changes of one of these kinds. Workloads of group apps have label selectors, the others sets of labels.

    An object whose selector can't be read selects nothing.
    """

    def read(obj: Object) -> tuple[Object, Any]:
        raw = (obj.get("spec") or {}).get("selector")
        if resource.group:
            selector = None if raw is None else LabelSelector.from_raw(raw)
            hash(selector)  # members of other types than the schema's
            return obj, selector
        labels = dict(raw or {})
        if not all(isinstance(text, str) for pair in labels.items() for text in pair):
            raise ValueError(f"spec.selector {raw!r} is not a map of strings")
        return obj, labels or None

    def put(found: tuple[Object, Any]) -> Change:
        metadata, selector = found[0]["metadata"], found[1]
        if resource.kind == "Service":
            selectors.set_service(metadata["namespace"], metadata["name"], selector)
        else:
            if not resource.group and selector is not None:
                selector = LabelSelector.from_raw({"matchLabels": selector})
            selectors.set_workload(metadata["namespace"], resource.kind, metadata["name"], selector)
        return Change.NOTHING

    def remove(obj: Object) -> Change:
        return put((obj, None))

    return Informer(resource.kind, read, put, remove, metrics, lambda change: None).on_change
