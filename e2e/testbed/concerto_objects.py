"""Objects of our kinds, as small as their schemas let them be."""

from __future__ import annotations

from typing import Any

API_VERSION = "concerto.dev/v1alpha1"
NAMESPACED_KINDS = {"PodReservation", "PodCPUBinding", "PredictiveHPA"}
ASSIGNMENT = {"namespace": "default", "name": "p", "uid": "u", "node": "n", "units": 1, "basis": "Requests"}


def build_object(kind: str, name: str, spec: dict[str, Any], namespace: str = "default") -> dict[str, Any]:
    """An object of one of our kinds. A value ``NAME`` of its spec becomes its name."""
    spec = {key: name if value == "NAME" else value for key, value in spec.items()}
    metadata = {"name": name, **({"namespace": namespace} if kind in NAMESPACED_KINDS else {})}
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}
