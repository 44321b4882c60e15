"""Classification of a workload, from its run times packed, spread and unpinned.

Source: Stefanakis, algorithm 1 with e = 0.05 (docs/references.md, "Workload classification"). Times are decimals, never
binary floats: freqmine-4 of table 8.1 is so close to the threshold that a float's rounding decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from concerto.api.podcpubinding import WORKLOAD_TYPE_LABEL

Class = Literal["PackedFriendly", "SpreadFriendly", "IsolationFriendly", "Agnostic", "Vanilla"]

THRESHOLD = Decimal("0.05")

LABEL = WORKLOAD_TYPE_LABEL
EXCLUSIVENESS_LABEL = "concerto.dev/exclusiveness"
"""Label of a pod that asks for another exclusiveness than that of its workload type."""
WORKLOAD_TYPES: dict[Class, str] = {
    "PackedFriendly": "cpu-bound",
    "Agnostic": "cpu-bound",
    "SpreadFriendly": "memory-bound",
    "IsolationFriendly": "cpu-bound",
}
"""Value of the label for each class (Stefanakis, section 8.2); Vanilla pods get no label."""


@dataclass(frozen=True)
class Slowdowns:
    """Times divided by the unpinned (vanilla) time: below 1 is faster (Stefanakis, equation 7.4.1).

    Attributes:
        packed: all threads near each other.
        spread: threads on different memory nodes.
    """

    packed: Decimal
    spread: Decimal


def classify(slowdowns: Slowdowns, threshold: Decimal = THRESHOLD) -> Class:
    """The class of a workload (Stefanakis, algorithm 1)."""
    best, worst = sorted((slowdowns.packed, slowdowns.spread))
    tag: Class = "PackedFriendly" if best == slowdowns.packed else "SpreadFriendly"
    if worst - best >= threshold:
        return tag
    if 1 - best > threshold:
        return "IsolationFriendly" if 1 - worst > threshold else tag
    return "Agnostic" if abs(1 - worst) < threshold else "Vanilla"
