"""SubspaceSnapshot: directions of resource use and what pods cost by kind, of each node and, merged, of the cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from concerto.api.timestamps import format_micro_timestamp, parse_timestamp

CLUSTER_NAME = "cluster"
"""The one object that the operator writes and every agent watches."""

Placement = Literal["ByKind", "ByUnit"]
"""What the operator places pods by: what pods of their kind cost, or units of nodes' capacity."""

_DIGITS = 9

KindEntry = tuple[str, tuple[float, ...]]
"""Key of a kind of pods or of a group of kinds, and its sums (``capacity.kinds.sums.FIELDS``)."""


def model_numbers(numbers: Iterable[float]) -> tuple[float, ...]:
    """Numbers of a model as a status has them: more digits than it is exact to, and no more than can be read."""
    return tuple(round(float(x), _DIGITS) for x in numbers)


@dataclass(frozen=True)
class SubspaceStatus:
    """A model of m resources and rank r.

    Attributes:
        observed_at: when it was computed, seconds since the epoch by its writer's clock.
        observed_generation: generation of the spec it was computed for.
        resources: names of the m resources, in the order of the numbers in each direction.
        sigma: r strengths, greatest first.
        directions: r directions of m numbers each, ``directions[k]`` being u_k.
        batches: batches folded in since the writer's start.
        nodes: how many nodes are merged; None on a node's own model.
        kinds: what was measured of each kind of pods.
        costliest: the kinds that take most, for people; only on the cluster's object.
        conditions: Ready, Reconciling, Stalled; as the API holds them.
        placement: what the operator places pods by; only on the cluster's object.
    """

    observed_at: float
    observed_generation: int
    resources: tuple[str, ...]
    sigma: tuple[float, ...]
    directions: tuple[tuple[float, ...], ...]
    batches: int
    nodes: int | None = None
    kinds: tuple[KindEntry, ...] = ()
    costliest: tuple[Mapping[str, Any], ...] = ()
    conditions: tuple[Mapping[str, Any], ...] = ()
    placement: Placement | None = None

    @classmethod
    def from_raw(cls, status: Mapping[str, Any]) -> Self:
        """SubspaceSnapshot ``status``; it must have been published (see ``SubspaceSnapshot.from_raw``).

        Raises:
            Exception: it cannot be read.
        """
        if not all(isinstance(resource, str) for resource in status["resources"]):
            raise ValueError("status.resources has an item that is not a string")
        return cls(
            observed_at=parse_timestamp(status["observedAt"]),
            observed_generation=status.get("observedGeneration", 0),
            resources=tuple(status["resources"]),
            sigma=tuple(status["sigma"]),
            directions=tuple(tuple(d) for d in status["directions"]),
            batches=status["batches"],
            nodes=status.get("nodes"),
            kinds=tuple((entry["key"], tuple(entry["sums"])) for entry in status.get("kinds") or ()),
            costliest=tuple(status.get("costliest") or ()),
            conditions=tuple(status.get("conditions", ())),
            placement=status.get("placement"),
        )

    def to_raw(self) -> dict[str, Any]:
        """SubspaceSnapshot ``status``, as it is written."""
        raw: dict[str, Any] = {
            "observedAt": format_micro_timestamp(self.observed_at),
            "observedGeneration": self.observed_generation,
            "resources": list(self.resources),
            "sigma": list(self.sigma),
            "directions": [list(d) for d in self.directions],
            "batches": self.batches,
            "kinds": [{"key": key, "sums": list(sums)} for key, sums in self.kinds],
            "conditions": [dict(c) for c in self.conditions],
        }
        if self.nodes is not None:
            raw["nodes"] = self.nodes
        if self.placement is not None:
            raw["placement"] = self.placement
        if self.costliest:
            raw["costliest"] = [dict(c) for c in self.costliest]
        return raw


@dataclass(frozen=True)
class SubspaceSnapshot:
    """A SubspaceSnapshot object.

    Attributes:
        name: the node's name, or ``cluster``.
        resource_version: its version.
        generation: generation of its spec.
        status: the model; None while none has been published.
    """

    name: str
    resource_version: str
    generation: int
    status: SubspaceStatus | None

    @classmethod
    def from_raw(cls, obj: Mapping[str, Any]) -> Self:
        """The object as the API server holds it."""
        metadata = obj["metadata"]
        status = obj.get("status") or {}
        return cls(
            name=metadata["name"],
            resource_version=metadata.get("resourceVersion", ""),
            generation=metadata.get("generation", 0),
            status=SubspaceStatus.from_raw(status) if "observedAt" in status else None,
        )
