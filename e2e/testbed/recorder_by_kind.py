"""What the recorder recomputes of placements that were decided by what pods cost; none of Concerto's code.

A node has cores C of which S are not for pods. It is filled to h * (C - S), and what is committed of that are the costs
of its pods. A pod's cost is that of the placements of pods like it which were recorded nearest in time: more is
learned of a kind while its pods run, so the smaller of the one before and the one after is what was surely committed.
"""

from __future__ import annotations

from bisect import bisect
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

OVERHANG = 0.3
"""Part of a pod's CPU that must be left: the last pod of a node may exceed what is left by the rest."""
MEMORY_FILLED = 0.95
HEAD_ROOM = (1.0, 2.0)
_ROUNDING = 2
"""Millicores by which sums of rounded numbers may be off."""
_LEARNING = 0.1
"""Part of the committed costs that may have changed between two recorded placements of a kind."""


@dataclass(frozen=True)
class RecordedCost:
    """``cost`` of an assignment; millicores and bytes."""

    cpu: int
    memory: int
    head_room: float
    cpu_left: int
    memory_left: int

    @classmethod
    def from_raw(cls, raw: Mapping[str, Any]) -> RecordedCost:
        """As the API server has it."""
        return cls(
            cpu=int(raw["cpu"].removesuffix("m")),
            memory=int(raw["memory"]),
            head_room=float(raw["headRoom"]),
            cpu_left=int(raw["cpuLeft"].removesuffix("m")),
            memory_left=int(raw["memoryLeft"]),
        )


def kind_of(pod: Mapping[str, Any]) -> str:
    """Pods that are alike: those of one controller with the same images."""
    meta, containers = pod["metadata"], pod["spec"].get("containers", ())
    owner = next((o["uid"] for o in meta.get("ownerReferences", ()) if o.get("controller")), meta["uid"])
    return " ".join([owner, *(c.get("image", "") for c in containers)])


@dataclass(frozen=True)
class Node:
    """A node when a placement was decided: millicores and bytes of the machine, and what is not for pods of it."""

    cpu: int
    memory: int
    own_cpu: float
    own_memory: float

    @classmethod
    def from_raw(cls, node: Mapping[str, Any], status: Mapping[str, Any]) -> Node:
        """From a Node, and the status of its NodeCapacity."""
        cpu, memory = amount(node["status"]["capacity"]["cpu"]), amount(node["status"]["capacity"]["memory"]) // 1000
        memories = [r.get("nonPod", 0.0) for r in status.get("resources", ()) if r["name"] == "memory"]
        return cls(cpu, memory, cpu * float(status.get("systemCPU", 0.0)), memory * sum(memories))


def amount(quantity: str) -> int:
    """Thousandths of a quantity."""
    suffixes = {"m": 1, "Ki": 1000 << 10, "Mi": 1000 << 20, "Gi": 1000 << 30, "Ti": 1000 << 40, "k": 10**6, "M": 10**9}
    for suffix, factor in suffixes.items():
        if quantity.endswith(suffix):
            return int(float(quantity.removesuffix(suffix)) * factor)
    return int(float(quantity) * 1000)


class Costs:
    """Recorded costs by kind, in the order of their placements."""

    def __init__(self) -> None:
        self._at: dict[str, list[int]] = defaultdict(list)
        self._costs: dict[str, list[RecordedCost]] = defaultdict(list)

    def add(self, kind: str, at: int, cost: RecordedCost) -> None:
        """A placement of a pod of the kind; later ones come later."""
        self._at[kind].append(at)
        self._costs[kind].append(cost)

    def surely(self, kind: str, at: int) -> tuple[int, int]:
        """CPU and memory that a pod of the kind was at least taken to cost; 0 while no cost of it is recorded."""
        costs, after = self._costs.get(kind, []), bisect(self._at.get(kind, []), at)
        near = costs[max(0, after - 1) : after + 1]
        return min((c.cpu for c in near), default=0), min((c.memory for c in near), default=0)


def judge(cost: RecordedCost, node: Node, others: Iterable[tuple[int, int]]) -> str | None:
    """What is wrong with a placement; None if nothing is.

    Args:
        cost: as recorded.
        node: the node then.
        others: costs of its other pods (`Costs.surely`).
    """
    others = list(others)
    if not HEAD_ROOM[0] <= cost.head_room <= HEAD_ROOM[1]:
        return f"head room {cost.head_room} is not in {HEAD_ROOM}"
    committed = sum(cpu for cpu, _ in others)
    left = cost.head_room * max(node.cpu - node.own_cpu, 0.0) - committed
    tolerance = _LEARNING * committed + _ROUNDING * (1 + len(others))
    if cost.cpu_left > left + tolerance:
        return f"recorded {cost.cpu_left}m of CPU left, recomputed {left:.0f}m beside {len(others)} pods"
    if others and cost.cpu_left < OVERHANG * cost.cpu - _ROUNDING:
        return f"a pod of {cost.cpu}m was placed where {cost.cpu_left}m were left"
    taken = sum(memory for _, memory in others)
    memory_left = MEMORY_FILLED * node.memory - node.own_memory - taken
    if cost.memory_left > memory_left + _LEARNING * taken + 1e-4 * node.memory:
        return f"recorded {cost.memory_left} bytes left, recomputed {memory_left:.0f}"
    if cost.memory_left < (cost.memory if others else 1):
        return f"a pod of {cost.memory} bytes was placed where {cost.memory_left} were left"
    return None
