"""Which bindings go together on a node.

Source: Stefanakis, section 6.1, compares only bindings of one level. Concerto compares across levels: the closure of a
binding is what its level keeps from others, and two bindings conflict if the closure of either meets the CPUs of the
other (docs/references.md, "CPU topology").
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
