"""Days that do not follow the season, such as holidays."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from concerto.autoscaling.time_zones import read_zone

Span = tuple[float, float]
"""From the first second to the one after the last, in seconds since 1970."""


@lru_cache(maxsize=4096)
def exception_spans(days: tuple[str, ...], time_zone: str) -> tuple[tuple[Span, ...], str]:
    """The valid days, each from midnight to midnight in that time zone, and why the others are not valid.

    Args:
        days: such as ``2026-12-25``.
        time_zone: IANA name; without a valid one no day is valid.

    Returns:
        The days, and errors in words that name the field and the value; an empty text without errors.
    """
    try:
        zone = read_zone(time_zone, "spec.prediction.season.timeZone")
    except ValueError as error:
        return (), str(error)
    spans, errors = [], []
    for day in days:
        try:
            spans.append(_span(day, zone))
        except ValueError as error:
            errors.append(str(error))
    return tuple(spans), "; ".join(errors)


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
