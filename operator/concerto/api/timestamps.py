"""RFC 3339 times as Kubernetes writes them, to and from seconds since the Unix epoch."""

from __future__ import annotations

from datetime import UTC, datetime


def parse_timestamp(text: str) -> float:
    """Seconds since the epoch of ``2026-03-01T12:00:00Z`` or ``2026-03-01T12:00:00.123456Z``.

    Raises:
        ValueError: it is not an RFC 3339 time with a zone; the message quotes it.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a time (example: 2026-03-01T12:00:00Z)") from error
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone (example: 2026-03-01T12:00:00Z)")
    return moment.timestamp()


def format_timestamp(seconds: float) -> str:
    """Seconds since the epoch as a ``metav1.Time``: whole seconds, UTC, rounded down."""
    return datetime.fromtimestamp(seconds // 1, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def format_micro_timestamp(seconds: float) -> str:
    """Seconds since the epoch as a ``metav1.MicroTime``, for what is measured more than once a second."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
