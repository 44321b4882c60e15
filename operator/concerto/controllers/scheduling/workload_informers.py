"""How Services and workloads reach the selectors by which pods are spread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from concerto.api.selectors import LabelSelector
from concerto.controllers.runtime.watched_kinds import OnChange
from concerto.kube import Object
from concerto.kube.resources import Resource
from concerto.scheduling.state.workload_selectors import WorkloadSelectors

_METADATA = ("namespace", "name", "uid", "resourceVersion")


def trim_to_selector(obj: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a raw Service or workload that is read: its name and selector."""
    metadata, spec = obj["metadata"], obj.get("spec") or {}
    return {
        "metadata": {key: metadata[key] for key in _METADATA if key in metadata},
        "spec": {"selector": spec["selector"]} if spec.get("selector") else {},
    }


def follow_selectors(resource: Resource, selectors: WorkloadSelectors) -> OnChange:
    """Takes changes of one of these kinds. Workloads of group apps have label selectors, the others sets of labels."""

    def on_change(old: Object | None, new: Object | None) -> None:
        metadata = (new or old or {})["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        raw = None if new is None else (new.get("spec") or {}).get("selector")
        if resource.kind == "Service":
            selectors.set_service(namespace, name, raw)
            return
        selector = None
        if raw is not None:
            selector = LabelSelector.from_raw(raw if resource.group else {"matchLabels": raw})
        selectors.set_workload(namespace, resource.kind, name, selector)

    return on_change
