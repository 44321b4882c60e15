"""Time zones by their IANA names, as people write them into objects."""

from __future__ import annotations

from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError


@lru_cache(maxsize=1024)
def find_zone(name: str) -> ZoneInfo | None:
    """The zone of that IANA name; None if no zone has that name."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None


def read_zone(name: str, field: str) -> ZoneInfo:
    """The zone that a field of an object names.

    Args:
        name: its IANA name.
        field: path of the field, for the error.

    Raises:
        ValueError: there is no such zone.
    """
    zone = find_zone(name)
    if zone is None:
        raise ValueError(f"{field} {name!r} is not a time zone: write it like Europe/Berlin")
    return zone
