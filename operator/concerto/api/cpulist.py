"""Sets of CPUs (or memory nodes) as the kernel writes them: ``0-3,8``."""

from __future__ import annotations

from collections.abc import Iterable

HIGHEST = 8191
"""No CPU has a greater number, here or in the CRDs: Linux has at most 8192 CPUs (``NR_CPUS``) and 1024 memory nodes. A
list must not fill its reader's memory, and the operator's sets of CPUs are as long as their highest number."""

_MAX_QUOTED = 256


def parse_cpu_list(text: str, highest: int = HIGHEST) -> frozenset[int]:
    """The numbers of a list such as ``0-3,8``, up to ``highest``; empty for an empty text.

    Raises:
        ValueError: it is no such list, or names more numbers than there are; the message quotes it.
    """
    numbers: set[int] = set()
    left = highest + 1
    named = repr(text.strip()[:_MAX_QUOTED])
    for part in filter(None, text.strip().split(",")):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"{named} is not a list of CPUs (example: 0-3,8)")
        if max(int(first), int(last or first)) > highest:
            raise ValueError(f"{named} names CPUs above {highest}")
        if int(last or first) < int(first):
            raise ValueError(f"{named} counts downwards (example: 0-3,8)")
        left -= int(last or first) + 1 - int(first)
        if left < 0:  # each time that all are named takes a millisecond, and a text may do so a thousand times
            raise ValueError(f"{named} names CPUs again and again")
        numbers.update(range(int(first), int(last or first) + 1))
    return frozenset(numbers)


def format_cpu_list(numbers: Iterable[int]) -> str:
    """The shortest list that names just these numbers; empty for none."""
    parts: list[str] = []
    ordered = sorted(set(numbers))
    start = 0
    for i, number in enumerate(ordered):
        if i + 1 == len(ordered) or ordered[i + 1] != number + 1:
            parts.append(str(number) if i == start else f"{ordered[start]}-{number}")
            start = i + 1
    return ",".join(parts)
