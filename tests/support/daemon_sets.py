"""The marks that the DaemonSet controller leaves on its pods."""

from __future__ import annotations

from typing import Any


def daemon_affinity(node: str) -> dict[str, Any]:
    """``spec.affinity`` of the pod for that node."""
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    return {"nodeAffinity": {required: {"nodeSelectorTerms": [term]}}}


def owner(kind: str, group: str = "apps/v1", name: str = "owner") -> dict[str, Any]:
    """A controlling owner reference."""
    return {"apiVersion": group, "kind": kind, "controller": True, "name": name, "uid": f"uid-{name}"}
