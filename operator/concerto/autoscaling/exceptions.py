"""Days that do not follow the season, such as holidays."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

Span = tuple[float, float]
"""From the first second to the one after the last, in seconds since 1970."""


@lru_cache(maxsize=4096)
def exception_spans(days: tuple[str, ...], time_zone: str) -> tuple[Span, ...]:
    """The days, each from midnight to midnight in that time zone.

    Args:
        days: such as ``2026-12-25``.
        time_zone: IANA name.

    Raises:
        ValueError: one of them is not valid; the message names the field and the value.
    """
    try:
        zone = ZoneInfo(time_zone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(
            f"spec.prediction.season.timeZone {time_zone!r} is not a time zone: write it like Europe/Berlin"
        ) from error
    return tuple(_span(day, zone) for day in days)


def _span(text: str, zone: ZoneInfo) -> Span:
    try:
        day = date.fromisoformat(text)
        return _midnight(day, zone), _midnight(day + timedelta(days=1), zone)
    except (ValueError, OverflowError) as error:
        raise ValueError(
            f"spec.prediction.season.exceptions: {text!r} is not a day: write it like 2026-12-25"
        ) from error


def _midnight(day: date, zone: ZoneInfo) -> float:
    return datetime.combine(day, time(), zone).timestamp()
