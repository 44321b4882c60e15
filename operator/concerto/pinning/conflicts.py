"""Which bindings go together on a node.

Source: 004 §6.1, where only bindings of one level are compared. Here they are compared across levels: with a
binding's closure being what its level keeps from others, two conflict if the closure of either meets the CPUs of the
other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from concerto.api.podcpubinding import Level
from concerto.pinning.topology import TopologyIndex


@dataclass(frozen=True)
class Claim:
    """CPUs that a binding takes.

    Attributes:
        cpus: those it names, as bits.
        level: what it keeps from others.
        best_effort: whether it is a best-effort pod's, which takes others of its kind beside it.
    """

    cpus: int
    level: Level = "None"
    best_effort: bool = False


def conflict(index: TopologyIndex, a: Claim, b: Claim) -> bool:
    """Whether the two cannot be had at once; symmetric."""
    return bool(index.closure(a.cpus, a.level) & b.cpus or index.closure(b.cpus, b.level) & a.cpus)


def shared_pool(index: TopologyIndex, kubelet_exclusive: int, claims: Iterable[Claim]) -> int:
    """Where pods without a binding run beside these claims, as bits: it must never be empty."""
    pool = index.online & ~kubelet_exclusive
    for claim in claims:
        pool &= ~index.closure(claim.cpus, claim.level)
    return pool
