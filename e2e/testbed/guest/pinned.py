"""The guest as a node whose agent pins: bindings of its pods, and the CPUs that its kernel gives them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from concerto.api.cpulist import format_cpu_list, parse_cpu_list
from e2e.testbed.clusters import LocalControlPlane
from e2e.testbed.guest.cgroups import PodCgroups
from e2e.testbed.guest.node import GuestNode
from e2e.testbed.pinning_helpers import binding, pod, until_condition

SHARED = "pinned-guest"
"""Namespace of the pods that tests share."""


@dataclass
class Pinned:
    """The guest, with an agent that pins, two pods that run on it, and what its kernel shows.

    Attributes:
        plane: the control plane.
        node: the guest as a node.
        kernel: the guest's cgroups.
        uids: of the pods ``free`` and ``owner``, by name. To start a pod takes the guest 10 s, so tests share them.
    """

    plane: LocalControlPlane
    node: GuestNode
    kernel: PodCgroups
    uids: dict[str, str] = field(default_factory=dict)

    def start(self, namespace: str, name: str, command: str = "exec sleep 1000", **resources: Any) -> str:
        """A pod on the node; its UID."""
        made = pod(namespace, name, command, self.node.name, hostNetwork=True, restartPolicy="Always")
        made["spec"]["containers"][0]["resources"] = resources
        self.plane.apply(made)
        return self.uid(namespace, name)

    def uid(self, namespace: str, name: str) -> str:
        return str(self.plane.request("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")["metadata"]["uid"])

    def ask(self, name: str, cpus: frozenset[int], level: str = "CPU", namespace: str = SHARED, **spec: Any) -> None:
        """A binding of a pod."""
        made = binding(namespace, name, sorted(cpus), level)
        made["spec"] |= spec
        self.plane.apply(made)

    def bind(self, name: str, cpus: frozenset[int], level: str = "CPU", namespace: str = SHARED, **spec: Any) -> None:
        """A binding of a pod, once the agent has applied it."""
        self.ask(name, cpus, level, namespace, **spec)
        until_condition(self.plane, namespace, name, "Applied")

    def cpus_of(self, name_or_uid: str) -> frozenset[int]:
        """The CPUs that a pod's containers get; they all have the same."""
        (cpus,) = self.kernel.read(self.uids.get(name_or_uid, name_or_uid)).effective()
        return parse_cpu_list(cpus)

    def until(self, name: str, cpus: frozenset[int]) -> float:
        """Wait until a shared pod's containers and program have these CPUs; how long that took, seconds."""
        return self.kernel.until(self.uids[name], format_cpu_list(cpus))

    def programs(self, uid: str) -> dict[str, frozenset[int]]:
        """The CPUs of each ``sleep`` of a pod, by its command line."""
        found = self.kernel.read(uid).programs
        return {line.strip(): parse_cpu_list(cpus) for cpus, line in found if line.startswith("sleep ")}
