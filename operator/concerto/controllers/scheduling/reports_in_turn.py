"""Which of the reports that are due are made next, where only so many can be made at a time. Pure."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeVar

_T = TypeVar("_T")


def next_reports(
    due: Iterable[_T], limit: int, *, is_first: Callable[[_T], bool], namespace: Callable[[_T], str]
) -> list[_T]:
    """First reports come before others, and namespaces take turns: nobody's many reports keep others from theirs.

    Args:
        due: reports, in the order that each namespace's are made in.
        limit: reports at most.
        is_first: whether nothing was reported before.
        namespace: of the report.
    """
    turns: Counter[tuple[bool, str]] = Counter()

    def place(report: _T) -> tuple[bool, int]:
        turn = not is_first(report), namespace(report)
        turns[turn] += 1
        return turn[0], turns[turn]

    return heapq.nsmallest(limit, due, key=place)
