"""What leaders of earlier numbers wrote to pods too late, by the field managers that the API server records."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

Event = tuple[int, str, str, dict[str, Any]]
"""Revision, kind (plural), change (ADDED, MODIFIED, DELETED, LISTED), object."""

_LEADER = re.compile(r"concerto-leader-(\d+)")
_EVICTED = 'k:{"type":"DisruptionTarget"}'


def late_pod_writes(events: Iterable[Event]) -> list[str]:
    """Nominations, conditions and evictions that came after the first placement record of a later leader.

    Args:
        events: of pods and placement records, sorted by revision.
    """
    events = list(events)
    first: dict[int, int] = {}  # of each leader, the revision of its first record
    for revision, kind, _, obj in events:
        if kind == "podreservations":
            for entry, number in _entries(obj):
                if "f:spec" in entry.get("fieldsV1", {}):
                    first.setdefault(number, revision)
    late: list[str] = []
    written_at: dict[tuple[str, int], str] = {}  # by UID of the pod and leader
    deleting: set[str] = set()

    def has_successor(number: int, revision: int) -> bool:
        return any(other > number and at < revision for other, at in first.items())

    for revision, kind, change, pod in events:
        if kind != "pods":
            continue
        uid, name = pod["metadata"]["uid"], f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        is_watched = change in ("ADDED", "MODIFIED")
        for entry, number in _entries(pod):
            # The time of an entry stays where another manager takes fields over
            before, now = written_at.get((uid, number)), str(entry.get("time"))
            written_at[uid, number] = now
            if is_watched and now != before and has_successor(number, revision):
                late.append(f"leader {number} wrote to the status of {name} after the first record of a later one")
        if "deletionTimestamp" in pod["metadata"] and uid not in deleting:
            deleting.add(uid)
            evictors = [number for entry, number in _entries(pod) if _EVICTED in _conditions(entry)]
            if is_watched and evictors and has_successor(max(evictors), revision):
                late.append(f"{name} was evicted for leader {max(evictors)} after the first record of a later one")
    return late


def _entries(obj: dict[str, Any]) -> list[tuple[dict[str, Any], int]]:
    found = [(entry, _LEADER.fullmatch(entry.get("manager", ""))) for entry in obj["metadata"].get("managedFields", ())]
    return [(entry, int(match[1])) for entry, match in found if match]


def _conditions(entry: dict[str, Any]) -> dict[str, Any]:
    conditions: dict[str, Any] = entry.get("fieldsV1", {}).get("f:status", {}).get("f:conditions", {})
    return conditions
