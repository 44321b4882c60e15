"""What a Pod requires of its node and of the pods beside it.

Source: Kubernetes' Pod API (core/v1); host ports as kube-scheduler's ``HostPortInfo``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from concerto.api.node import Taint
from concerto.api.selectors import LabelSelector, Requirement

Raw = Mapping[str, Any]

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
WILDCARD = "0.0.0.0"
EVERY_PORT = 65536
"""No port has this number: it stands for all ports of the node."""
_DECIMAL = re.compile("0|-?[1-9][0-9]{0,18}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Tolerations:
    """Which taints a pod tolerates. An answer costs the same for one toleration as for a thousand.

    Attributes:
        exists: (key, effect) of tolerations with operator Exists; empty means every key, or every effect.
        equal: (key, value, effect) of those with operator Equal, likewise.
        below: by (key, effect) of those with operator Lt, likewise: numbers below this one are tolerated.
        above: by (key, effect) of those with operator Gt, likewise: numbers above this one are tolerated.
    """

    exists: frozenset[tuple[str, str]] = frozenset()
    equal: frozenset[tuple[str, str, str]] = frozenset()
    below: Mapping[tuple[str, str], int] = field(default_factory=dict)
    above: Mapping[tuple[str, str], int] = field(default_factory=dict)

    def tolerate(self, taint: Taint) -> bool:
        """Whether the pod may run on a node with that taint."""
        return any(
            (key, effect) in self.exists
            or (key, taint.value, effect) in self.equal
            or self._tolerates_number((key, effect), taint.value)
            for key in (taint.key, "")
            for effect in (taint.effect, "")
        )

    def _tolerates_number(self, of: tuple[str, str], value: str) -> bool:
        below, above = self.below.get(of), self.above.get(of)
        if (below is None and above is None) or (number := _decimal(value)) is None:
            return False
        return (below is not None and number < below) or (above is not None and number > above)

    @classmethod
    def from_raw(cls, tolerations: Iterable[Raw] | None) -> Self:
        """``spec.tolerations``. An operator that is not known tolerates nothing."""
        items = [(t.get("operator") or "Equal", t.get("key", ""), t.get("effect", ""), t) for t in tolerations or ()]
        below: dict[tuple[str, str], int] = {}
        above: dict[tuple[str, str], int] = {}
        for operator, key, effect, t in items:
            if operator in ("Lt", "Gt") and (number := _decimal(t.get("value", ""))) is not None:
                if operator == "Lt":
                    below[key, effect] = max(number, below.get((key, effect), number))
                else:
                    above[key, effect] = min(number, above.get((key, effect), number))
        return cls(
            frozenset((key, effect) for operator, key, effect, _ in items if operator == "Exists"),
            frozenset((key, t.get("value", ""), effect) for operator, key, effect, t in items if operator == "Equal"),
            below,
            above,
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


@dataclass(frozen=True, slots=True)
class PodAffinityTerm:
    """Which pods a pod wants or refuses in its domain (pod affinity or anti-affinity).

    The API server has put ``matchLabelKeys`` and ``mismatchLabelKeys`` into the selector when it took the pod.

    Attributes:
        topology_key: node label; nodes with the same value are one domain.
        selector: the other pods' labels.
        namespaces: the other pods' namespaces.
        namespace_selector: labels of further namespaces; None for no selector. Without selector and namespaces, the
            pod's own namespace is meant.
    """

    topology_key: str
    selector: LabelSelector
    namespaces: tuple[str, ...]
    namespace_selector: LabelSelector | None = None

    @property
    def any_namespace(self) -> bool:
        """Whether it selects pods of every namespace."""
        return self.namespace_selector is not None and self.namespace_selector.requirements == ()

    def selects(
        self, own_namespace: str, namespace: str, labels: Mapping[str, str], namespace_labels: Mapping[str, str]
    ) -> bool:
        """Whether the term of a pod in ``own_namespace`` selects a pod with these labels.

        Args:
            own_namespace: namespace of the pod that has the term.
            namespace: the other pod's.
            labels: the other pod's.
            namespace_labels: of the other pod's namespace.
        """
        if not self.selector.matches(labels):
            return False
        if self.namespace_selector is None:
            return namespace in (self.namespaces or (own_namespace,))
        return namespace in self.namespaces or self.namespace_selector.matches(namespace_labels)


@dataclass(frozen=True, slots=True)
class SpreadConstraint:
    """How evenly pods are to be spread over domains (``topologySpreadConstraints``).

    Attributes:
        topology_key: node label; nodes with the same value are one domain.
        max_skew: matching pods that a domain may have more than the one that has the fewest.
        min_domains: below so many domains, the fewest are 0.
        selector: the labels of the pods that are counted.
        match_label_keys: labels whose values must be the pod's own, beside the selector.
        honors_affinity: whether only nodes that the pod's node selector and affinity accept are domains.
        honors_taints: whether only nodes whose taints the pod tolerates are domains.
    """

    topology_key: str
    max_skew: int
    min_domains: int
    selector: LabelSelector
    match_label_keys: tuple[str, ...]
    honors_affinity: bool
    honors_taints: bool

    def selector_of(self, labels: Mapping[str, str]) -> LabelSelector:
        """The selector for a pod with these labels."""
        if self.selector.requirements is None:
            return self.selector
        own = tuple(Requirement(key, "In", (labels[key],)) for key in self.match_label_keys if key in labels)
        return LabelSelector(self.selector.requirements + own)

    @classmethod
    def from_raw(cls, raw: Raw) -> Self:
        """An item of ``topologySpreadConstraints``."""
        return cls(
            topology_key=raw["topologyKey"],
            max_skew=raw["maxSkew"],
            min_domains=raw.get("minDomains") or 1,
            selector=LabelSelector.from_raw(raw.get("labelSelector")),
            match_label_keys=tuple(raw.get("matchLabelKeys") or ()),
            honors_affinity=raw.get("nodeAffinityPolicy", "Honor") == "Honor",
            honors_taints=raw.get("nodeTaintsPolicy", "Ignore") == "Honor",
        )


def _decimal(text: str) -> int | None:
    """A number as Kubernetes compares those of taints: an int64 without sign +, spaces and leading zeros; else None."""
    number = int(text) if _DECIMAL.fullmatch(text) else 2**63
    return number if -(2**63) <= number < 2**63 else None


def parse_host_ports(ports: Iterable[Sequence[Raw] | None]) -> tuple[HostPort, ...]:
    """The host ports among the ``ports`` of containers that run at the same time."""
    return tuple(
        HostPort(p.get("hostIP") or WILDCARD, p.get("protocol") or "TCP", p["hostPort"])
        for group in ports
        for p in group or ()
        if p.get("hostPort")
    )


def parse_pod_affinity(term: Raw) -> PodAffinityTerm:
    """A required term of ``podAffinity`` or ``podAntiAffinity``, or what a preferred term weighs."""
    selector = term.get("namespaceSelector")
    return PodAffinityTerm(
        topology_key=term["topologyKey"],
        selector=LabelSelector.from_raw(term.get("labelSelector")),
        namespaces=tuple(term.get("namespaces") or ()),
        namespace_selector=None if selector is None else LabelSelector.from_raw(selector),
    )


def parse_preferred(terms: Iterable[Raw] | None, sign: int) -> tuple[tuple[int, PodAffinityTerm], ...]:
    """(weight, term) of preferred terms, the weight times the sign."""
    return tuple((sign * t["weight"], parse_pod_affinity(t["podAffinityTerm"])) for t in terms or ())
