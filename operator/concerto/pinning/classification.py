"""Which kind of workload a program is, from how long it takes where.

Source: 004 algorithm 1 (§7.4) with e = 0.05. Times are decimals and never binary floats: freqmine-4 of table 8.1 lies
so close to the threshold that a float's rounding decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

Class = Literal["PackedFriendly", "SpreadFriendly", "IsolationFriendly", "Agnostic", "Vanilla"]

THRESHOLD = Decimal("0.05")

LABEL = "concerto.dev/workload-type"
EXCLUSIVENESS_LABEL = "concerto.dev/exclusiveness"
"""Label of a pod that asks for another exclusiveness than that of its workload type."""
WORKLOAD_TYPES: dict[Class, str] = {
    "PackedFriendly": "cpu-bound",
    "Agnostic": "cpu-bound",
    "SpreadFriendly": "memory-bound",
    "IsolationFriendly": "cpu-bound",
}
"""Value of the label for each class (004 §8.2); Vanilla pods get none."""


@dataclass(frozen=True)
class Slowdowns:
    """Times in units of the vanilla one: below 1 is faster (004 equation 7.4.1).

    Attributes:
        packed: all threads near each other.
        spread: threads on different memory nodes.
    """

    packed: Decimal
    spread: Decimal


def classify(slowdowns: Slowdowns, threshold: Decimal = THRESHOLD) -> Class:
    """The class of a workload (004 algorithm 1)."""
    best, worst = sorted((slowdowns.packed, slowdowns.spread))
    tag: Class = "PackedFriendly" if best == slowdowns.packed else "SpreadFriendly"
    if worst - best >= threshold:
        return tag
    if 1 - best > threshold:
        return "IsolationFriendly" if 1 - worst > threshold else tag
    return "Agnostic" if abs(1 - worst) < threshold else "Vanilla"
