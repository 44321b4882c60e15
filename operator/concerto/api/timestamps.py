"""RFC 3339 times as Kubernetes writes them, to and from seconds since the Unix epoch."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import TypeVar

_T = TypeVar("_T")

_MAX_LETTERS, _MAX_QUOTED = 64, 32
"""Of a time, nanoseconds and zone included. A CRD's ``date-time`` may have a million digits of a second, and times that
have been read are remembered."""


def parse_timestamp(text: str) -> float:
    """Seconds since the epoch of ``2026-03-01T12:00:00Z`` or ``2026-03-01T12:00:00.123456Z``.

    Raises:
        ValueError: it is not an RFC 3339 time with a zone; the message quotes it.
    """
    if isinstance(text, str) and len(text) > _MAX_LETTERS:
        raise ValueError(f"{text[:_MAX_QUOTED]!r}… is not a time (example: 2026-03-01T12:00:00Z)")
    return _read_timestamp(text)


@lru_cache(maxsize=4096)
def _read_timestamp(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a time (example: 2026-03-01T12:00:00Z)") from error
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone (example: 2026-03-01T12:00:00Z)")
    return moment.timestamp()


def read_timestamp(text: str | None, unreadable: _T) -> float | _T:
    """Seconds since the epoch; ``unreadable`` if the value is not a timestamp that Python can represent.

    Kubernetes accepts the year 10000, which Python can't represent. Conditions may be written by people.
    """
    try:
        return unreadable if text is None else parse_timestamp(text)
    except (TypeError, ValueError, OverflowError):
        return unreadable


def format_timestamp(seconds: float) -> str:
    """Seconds since the epoch as a ``metav1.Time``: whole seconds, UTC, rounded down."""
    return _format(seconds // 1, "seconds")


def format_micro_timestamp(seconds: float) -> str:
    """Seconds since the epoch as a ``metav1.MicroTime``, for what is measured more than once a second."""
    return _format(seconds, "microseconds")


def _format(seconds: float, spec: str) -> str:
    # strftime writes the first thousand years in fewer than four digits, and nobody reads that as RFC 3339
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat(timespec=spec) + "Z"
