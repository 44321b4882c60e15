"""Counters that keep no zeros, so that they hold nothing of what is gone. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import TypeVar

_K = TypeVar("_K", bound=Hashable)
_M = TypeVar("_M", bound=Hashable)


def add_count(counts: Counter[_K], key: _K, by: int) -> None:
    """Add so much for the key."""
    counts[key] += by
    if not counts[key]:
        del counts[key]


def add_count_of(table: dict[_K, Counter[_M]], key: _K, member: _M, by: int) -> None:
    """Add so much for the member in the counter of the key, which exists while it has members."""
    counts = table.setdefault(key, Counter())
    add_count(counts, member, by)
    if not counts:
        del table[key]
