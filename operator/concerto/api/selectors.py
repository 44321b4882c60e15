"""Label selectors and node selectors, as Kubernetes evaluates them.

Source: ``labels.Requirement.Matches`` of k8s.io/apimachinery and ``nodeaffinity`` of k8s.io/component-helpers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

FIELD_NAME = "metadata.name"


def integer(text: str) -> int | None:
    """What Go's ``strconv.ParseInt(text, 10, 64)`` reads of a label value, which has no sign; None where it fails."""
    value = int(text) if text.isascii() and text.isdigit() else 2**63
    return value if value < 2**63 else None


@dataclass(frozen=True, slots=True)
class Requirement:
    """What one label (or field) has to be.

    Attributes:
        key: the label's key.
        operator: In, NotIn, Exists, DoesNotExist, Gt or Lt.
        values: what it is compared with.
    """

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def accepts(self, value: str | None) -> bool:
        """Whether a label with this value meets it; None stands for a label that is not there."""
        match self.operator:
            case "In":
                return value is not None and value in self.values
            case "NotIn":
                return value is None or value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                have = None if value is None else integer(value)
                want = integer(self.values[0]) if len(self.values) == 1 else None
                if have is None or want is None:
                    return False
                return have > want if self.operator == "Gt" else have < want
        return False

    @classmethod
    def from_raw(cls, raw: Mapping[str, Any]) -> Self:
        """A ``matchExpressions`` item."""
        return cls(raw["key"], raw["operator"], tuple(raw.get("values") or ()))


def _matches(requirements: Iterable[Requirement], labels: Mapping[str, str]) -> bool:
    for requirement in requirements:  # not all(): this runs for every pod
        value = labels.get(requirement.key)
        if not requirement.accepts(value):
            return False
    return True


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """A ``metav1.LabelSelector``: an empty one selects everything, an absent one nothing.

    Attributes:
        requirements: what all have to hold; None selects nothing.
    """

    requirements: tuple[Requirement, ...] | None

    @property
    def parts(self) -> int:
        """What a comparison with labels costs: requirements, and every eighth of their values, as these cost less."""
        return 1 + sum(1 + len(requirement.values) // 8 for requirement in self.requirements or ())

    @property
    def required_label(self) -> tuple[str, str] | None:
        """A label that each object has that is selected; None if no single one is required."""
        required = [(r.key, r.values[0]) for r in self.requirements or () if r.operator == "In" and len(r.values) == 1]
        return min(required, default=None)

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels is selected."""
        return self.requirements is not None and _matches(self.requirements, labels)

    @classmethod
    def from_raw(cls, raw: Mapping[str, Any] | None) -> Self:
        """The selector as the API server holds it."""
        if raw is None:
            return cls(None)
        labels = (raw.get("matchLabels") or {}).items()
        expressions = raw.get("matchExpressions") or ()
        return cls(
            tuple(Requirement(key, "In", (value,)) for key, value in labels)
            + tuple(Requirement.from_raw(e) for e in expressions)
        )


@dataclass(frozen=True, slots=True)
class NodeSelectorTerm:
    """One alternative of a node selector: every requirement of it has to hold.

    Attributes:
        labels: requirements on the node's labels.
        names: requirements on the node's name (``matchFields`` knows no other field).
    """

    labels: tuple[Requirement, ...]
    names: tuple[Requirement, ...] = ()

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether a node of that name and with these labels meets it; an empty term meets no node."""
        if not self.labels and not self.names:
            return False
        return _matches(self.labels, labels) and all(r.accepts(name) for r in self.names)

    @property
    def named_nodes(self) -> frozenset[str] | None:
        """The only nodes that it can meet, as far as it lists names; None where it lists none."""
        lists = [frozenset(r.values) for r in self.names if r.operator == "In"]
        return frozenset.intersection(*lists) if lists else None

    @classmethod
    def from_raw(cls, raw: Mapping[str, Any]) -> Self:
        """A ``nodeSelectorTerms`` item, or a preferred term's ``preference``."""
        return cls(
            tuple(Requirement.from_raw(e) for e in raw.get("matchExpressions") or ()),
            tuple(Requirement.from_raw(e) for e in raw.get("matchFields") or ()),
        )


@dataclass(frozen=True, slots=True)
class NodeSelector:
    """Where a pod may run: the pod's ``nodeSelector`` and its required node affinity together.

    Attributes:
        labels: requirements of ``spec.nodeSelector``; all have to hold.
        terms: alternatives of the required node affinity, one of which has to hold; None without one.
    """

    labels: tuple[Requirement, ...] = ()
    terms: tuple[NodeSelectorTerm, ...] | None = None

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether a node of that name and with these labels is one of them."""
        if not _matches(self.labels, labels):
            return False
        return self.terms is None or any(t.matches(name, labels) for t in self.terms)

    @property
    def named_nodes(self) -> frozenset[str] | None:
        """The only nodes that its terms can match, as far as they list names; None where one of them lists none."""
        names: frozenset[str] = frozenset()
        for term in self.terms or ():
            if (named := term.named_nodes) is None:
                return None
            names |= named
        return names if self.terms else None

    @classmethod
    def from_raw(cls, node_selector: Mapping[str, str] | None, required: Mapping[str, Any] | None) -> Self:
        """A pod's ``nodeSelector`` and ``affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution``."""
        terms = None
        if required is not None:
            terms = tuple(NodeSelectorTerm.from_raw(t) for t in required.get("nodeSelectorTerms") or ())
        return cls(tuple(Requirement(k, "In", (v,)) for k, v in (node_selector or {}).items()), terms)
