"""Values of command-line options, within bounds: for ``type`` of argparse, whose error then says what to write."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable

from concerto.api.quantities import parse_duration, whole


def duration(lowest: str, highest: str, example: str, *, whole_seconds: bool = False) -> Callable[[str], float]:
    """Reads a duration such as ``15s`` as seconds.

    Args:
        lowest: the shortest that is taken.
        highest: the longest that is taken.
        example: one to name where another is refused.
        whole_seconds: whether parts of a second are refused.
    """
    low, high = parse_duration(lowest), parse_duration(highest)

    def read(text: str) -> float:
        try:
            seconds = parse_duration(text)
        except ValueError:
            seconds = -1.0
        if not low <= seconds <= high:
            raise ArgumentTypeError(
                f"{text!r} is not a duration from {lowest} to {highest}: write for example {example}"
            )
        if whole_seconds and seconds != int(seconds):
            raise ArgumentTypeError(f"{text!r} is not a duration in whole seconds: write for example {example}")
        return seconds

    return read


def number(lowest: float, highest: float, example: str) -> Callable[[str], float]:
    """Reads a number within bounds; ``example`` is one to name where another is refused."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not lowest <= value <= highest:
            bounds = f"from {lowest:g} to {highest:g}"
            raise ArgumentTypeError(f"{text!r} is not a number {bounds}: write for example {example}")
        return value

    return read


def whole_number(lowest: int, highest: int, example: str) -> Callable[[str], int]:
    """Reads a whole number within bounds; ``example`` is one to name where another is refused."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = lowest - 1
        if not lowest <= value <= highest:
            bounds = f"from {lowest} to {highest}"
            raise ArgumentTypeError(f"{text!r} is not a whole number {bounds}: write for example {example}")
        return value

    return read


def memory(lowest: str, highest: str, example: str) -> Callable[[str], int]:
    """Reads an amount of memory within bounds, as bytes; ``example`` is one to name where another is refused."""

    def read(text: str) -> int:
        try:
            amount = whole(text)
        except ValueError:
            amount = -1
        if not whole(lowest) <= amount <= whole(highest):
            bounds = f"from {lowest} to {highest}"
            raise ArgumentTypeError(f"{text!r} is not an amount of memory {bounds}: write for example {example}")
        return amount

    return read
