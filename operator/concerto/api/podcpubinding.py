"""PodCPUBinding: the CPUs that a pod runs on, and their exclusiveness.

Source: Stefanakis, listings 6.2 to 6.4 (docs/references.md, "CPU topology").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

Level = Literal["None", "CPU", "Core", "Socket", "NUMA"]
"""Exclusiveness: what a binding keeps other pods from (Stefanakis, section 6.1; docs/references.md)."""
Memory = Literal["Bind", "Prefer", "None"]
"""Whether memory comes from the memory nodes of the CPUs: only, where it fits there, or from anywhere."""
ResourceStatus = Literal[
    "Pending",
    "Validated",
    "Applied",
    "InvalidCPUSet",
    "PodNotFound",
    "NodeTopologyNotFound",
    "CPUSetAllocationFailed",
    "Failed",
]
WORKLOAD_TYPE_LABEL = "concerto.dev/workload-type"
"""Label of pods, and of the bindings that the operator creates for them."""
BindingKey = tuple[str, str]
"""Namespace and name."""

FOREIGN_FINALIZERS = frozenset(
    f"{group}/pod-cpu-binding-finalizer" for group in ("cslab.ece.ntua.gr", "csllab.ece.ntua.gr")
)
"""The finalizer of Maestro's manifests, in both spellings of Stefanakis' listings. No other controller removes it."""


@dataclass(frozen=True)
class PodCPUBinding:
    """The spec of a PodCPUBinding, written by a person or by the operator.

    Attributes:
        namespace: its namespace, and the pod's.
        name: its name.
        uid: its UID.
        created: creation time, RFC 3339 in whole seconds, so that text order is time order.
        pod_name: the pod.
        cpus: numbers of the CPUs.
        level: the exclusiveness.
        memory: where its memory comes from.
        containers: names of the containers that the CPUs are for; empty: the whole pod.
    """

    namespace: str
    name: str
    uid: str
    created: str
    pod_name: str
    cpus: frozenset[int]
    level: Level = "None"
    memory: Memory = "Prefer"
    containers: frozenset[str] = frozenset()

    @property
    def key(self) -> BindingKey:
        """Namespace and name."""
        return (self.namespace, self.name)

    @property
    def pod_key(self) -> tuple[str, str]:
        """Namespace and name of the pod."""
        return (self.namespace, self.pod_name)

    @property
    def age_order(self) -> tuple[str, str, str]:
        """Sorts the older first; of two of the same second, by namespace and name."""
        return (self.created, self.namespace, self.name)

    @classmethod
    def from_raw(cls, obj: Mapping[str, Any]) -> Self:
        """The object as the API server has it."""
        metadata, spec = obj["metadata"], obj["spec"]
        return cls(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            created=metadata["creationTimestamp"],
            pod_name=spec["podName"],
            cpus=frozenset(item["cpuID"] for item in spec["cpuSet"]),
            level=spec.get("exclusivenessLevel", "None"),
            memory=spec.get("memory", "Prefer"),
            containers=frozenset(spec.get("containers") or ()),
        )
