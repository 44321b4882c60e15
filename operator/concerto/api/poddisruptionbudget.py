"""A PodDisruptionBudget as preemption sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from concerto.api.object_bounds import is_large, trim_metadata
from concerto.api.selectors import LabelSelector


@dataclass(frozen=True, slots=True)
class DisruptionBudget:
    """How many of the pods that it selects may be evicted now.

    Attributes:
        namespace: its namespace; it selects pods there alone.
        name: its name.
        selector: which pods it is for. An empty selector selects all of them, an absent one none.
        allowed: ``status.disruptionsAllowed``.
        disrupted: names of the pods whose eviction the API server has counted already.
    """

    namespace: str
    name: str
    selector: LabelSelector
    allowed: int
    disrupted: frozenset[str] = frozenset()

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.namespace, self.name

    @classmethod
    def from_raw(cls, obj: Mapping[str, Any]) -> Self:
        """The object as the API server holds it; without a status, it allows no disruption."""
        metadata, status = obj["metadata"], obj.get("status") or {}
        return cls(
            metadata["namespace"],
            metadata["name"],
            LabelSelector.from_raw(obj["spec"].get("selector")),
            int(status.get("disruptionsAllowed") or 0),
            frozenset(status.get("disruptedPods") or ()),
        )


def trim_budget(obj: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a raw PodDisruptionBudget that ``DisruptionBudget`` reads.

    One with a selector that is too large to be compared protects all pods of its namespace.
    """
    status, selector = obj.get("status") or {}, obj["spec"].get("selector")
    if is_large(selector):
        status, selector = {}, {}
    return {
        "metadata": trim_metadata(obj),
        "spec": {"selector": selector},
        "status": {k: status[k] for k in ("disruptionsAllowed", "disruptedPods") if k in status},
    }
