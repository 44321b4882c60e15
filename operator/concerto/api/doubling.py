"""Waits that double: the one rule by which what fails, or looks in vain, is tried less and less often. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

_MAX_DOUBLINGS = 32
"""More would make no wait longer, and 2.0**1024 is no number."""


def doubled_wait(first_seconds: float, max_seconds: float, waits_before: int) -> float:
    """One wait, in seconds.

    Args:
        first_seconds: the first wait; each further one takes twice as long.
        max_seconds: no wait is longer.
        waits_before: how many there were in a row before this one.
    """
    return min(first_seconds * 2.0 ** min(waits_before, _MAX_DOUBLINGS), max_seconds)


def doubling_waits(first_seconds: float, max_seconds: float) -> Iterator[float]:
    """The waits of one row after another, in seconds, without end."""
    return (doubled_wait(first_seconds, max_seconds, waits_before) for waits_before in count())
