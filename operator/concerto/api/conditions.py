"""Conditions in Kubernetes' form: a list-map by type whose transition time moves only with the status."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["True", "False", "Unknown"]
MESSAGE_LENGTH = 32768
"""Limit of the CRDs; the API server refuses a status with a longer message."""


@dataclass(frozen=True)
class Condition:
    """A condition of an object.

    Attributes:
        type: CamelCase name, unique in its object.
        status: "True", "False" or "Unknown".
        reason: CamelCase, machine readable; a reason never changes its meaning.
        message: a sentence a person can act on.
    """

    type: str
    status: Status
    reason: str
    message: str


NOT_RECONCILING = "No change is being applied."
NOT_STALLED = "The object is not stalled."
"""Messages of the conditions Reconciling and Stalled that are False, the same for every kind."""


def with_progress(ready: Condition, reconciling: str = "", *, has_ended: bool = False) -> list[Condition]:
    """The condition Ready, and beside it Reconciling and Stalled, which kstatus reads; all have the reason of Ready.

    Args:
        ready: the condition Ready. If it is False and nothing is being done about it, the object is stalled.
        reconciling: what is being done about it, as a sentence; empty if nothing is.
        has_ended: whether nothing is to be done about it, as the object's time is over: then it is not stalled.
    """
    is_stalled = ready.status == "False" and not reconciling and not has_ended
    return [
        ready,
        Condition("Reconciling", "True" if reconciling else "False", ready.reason, reconciling or NOT_RECONCILING),
        Condition(
            "Stalled", "True" if is_stalled else "False", ready.reason, ready.message if is_stalled else NOT_STALLED
        ),
    ]


def merge_conditions(
    old: Iterable[Mapping[str, Any]], new: Iterable[Condition], *, now: str, observed_generation: int
) -> list[dict[str, Any]]:
    """The conditions list with ``new`` merged in.

    Args:
        old: the object's present conditions; types that ``new`` does not hold stay as they are.
        new: the present conditions.
        now: RFC 3339 time, used as lastTransitionTime where a status differs from before.
        observed_generation: the generation that ``new`` was computed from.
    """
    by_type: dict[str, dict[str, Any]] = {c["type"]: dict(c) for c in old}
    for condition in new:
        before = by_type.get(condition.type)
        same = before is not None and before.get("status") == condition.status
        by_type[condition.type] = {
            "type": condition.type,
            "status": condition.status,
            "reason": condition.reason,
            "message": condition.message[:MESSAGE_LENGTH],
            "observedGeneration": observed_generation,
            "lastTransitionTime": before["lastTransitionTime"] if same and before else now,
        }
    return list(by_type.values())


def find_condition(conditions: Iterable[Mapping[str, Any]] | None, kind: str) -> Mapping[str, Any] | None:
    """The condition of that type, or None."""
    return next((c for c in conditions or () if c.get("type") == kind), None)
