"""What a Pod requires of its node and of the pods beside it.

Source: Kubernetes' Pod API (core/v1); host ports as kube-scheduler's ``HostPortInfo``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from concerto.api.node import Taint
from concerto.api.selectors import LabelSelector

Raw = Mapping[str, Any]

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_WILDCARD = "0.0.0.0"
_CLAIM_VOLUMES = ("persistentVolumeClaim", "ephemeral")


@dataclass(frozen=True, slots=True)
class Tolerations:
    """Which taints a pod tolerates. An answer costs the same for one toleration as for a thousand.

    Attributes:
        exists: (key, effect) of tolerations with operator Exists; empty means every key, or every effect.
        equal: (key, value, effect) of those with operator Equal, likewise.
    """

    exists: frozenset[tuple[str, str]] = frozenset()
    equal: frozenset[tuple[str, str, str]] = frozenset()

    def tolerate(self, taint: Taint) -> bool:
        """Whether the pod may run on a node with that taint."""
        return any(
            (key, effect) in self.exists or (key, taint.value, effect) in self.equal
            for key in (taint.key, "")
            for effect in (taint.effect, "")
        )

    @classmethod
    def from_raw(cls, tolerations: Iterable[Raw] | None) -> Self:
        """``spec.tolerations``. An operator that is not known tolerates nothing."""
        items = [(t.get("operator") or "Equal", t.get("key", ""), t.get("effect", ""), t) for t in tolerations or ()]
        return cls(
            frozenset((key, effect) for operator, key, effect, _ in items if operator == "Exists"),
            frozenset((key, t.get("value", ""), effect) for operator, key, effect, t in items if operator == "Equal"),
        )


@dataclass(frozen=True, slots=True)
class HostPort:
    """A port of the node that a pod needs for itself.

    Attributes:
        ip: the address it is bound to; ``0.0.0.0`` is all of them.
        protocol: TCP, UDP or SCTP.
        port: the number.
    """

    ip: str
    protocol: str
    port: int

    def conflicts(self, other: HostPort) -> bool:
        """Whether one node cannot have both."""
        return (
            self.port == other.port
            and self.protocol == other.protocol
            and (self.ip == other.ip or _WILDCARD in (self.ip, other.ip))
        )


@dataclass(frozen=True, slots=True)
class AntiAffinityTerm:
    """Which pods a running pod refuses in its domain (its required pod anti-affinity).

    Attributes:
        topology_key: node label; nodes with the same value are one domain.
        selector: the refused pods' labels.
        namespaces: the refused pods' namespaces; empty means the pod's own.
        any_namespace: whether a namespace selector widens that. Namespaces' labels are not read, so a selector counts
            as selecting every namespace: too many pods may be refused, never too few.
    """

    topology_key: str
    selector: LabelSelector
    namespaces: tuple[str, ...]
    any_namespace: bool

    def refuses(self, own_namespace: str, namespace: str, labels: Mapping[str, str]) -> bool:
        """Whether a pod in ``own_namespace`` with this term refuses one in ``namespace`` with these labels."""
        if not self.any_namespace and namespace not in (self.namespaces or (own_namespace,)):
            return False
        return self.selector.matches(labels)


def parse_host_ports(ports: Iterable[Sequence[Raw] | None]) -> tuple[HostPort, ...]:
    """The host ports among the ``ports`` of containers that run at the same time."""
    return tuple(
        HostPort(p.get("hostIP") or _WILDCARD, p.get("protocol") or "TCP", p["hostPort"])
        for group in ports
        for p in group or ()
        if p.get("hostPort")
    )


def parse_anti_affinity(term: Raw) -> AntiAffinityTerm:
    """A term of ``podAntiAffinity``."""
    return AntiAffinityTerm(
        topology_key=term["topologyKey"],
        selector=LabelSelector.from_raw(term.get("labelSelector")),
        namespaces=tuple(term.get("namespaces") or ()),
        any_namespace=term.get("namespaceSelector") is not None,
    )


def claims_of(volume: Raw) -> dict[str, Any]:
    """The fields of a volume that make it a claim of a PersistentVolume; empty for all other volumes."""
    return {k: volume[k] for k in _CLAIM_VOLUMES if k in volume}
