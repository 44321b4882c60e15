"""What is raised where selectors of a pod cost more than they may, ever or in one turn."""

from __future__ import annotations


class TooManyComparisons(ValueError):
    """A pod's selectors would be compared for too long with what is there; the message says so, and what to change."""


class StillCounting(Exception):
    """What is there is still being compared with selectors of a pod: ask again in the next turn."""
