"""Seasons by the clock of a time zone: after daylight saving time begins or ends, a day's pattern moves by an hour."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from concerto.autoscaling.time_zones import find_zone

Floats = NDArray[np.float64]

_DAY = 86400


def by_todays_clock(values: Floats, zones: Sequence[str], first_bucket: int, step: int) -> Floats:
    """The values as they would be if each row's time zone had always had its present offset from UTC.

    Args:
        values: rows x buckets, the newest bucket last; it holds the present time.
        zones: IANA name for each row; one that does not exist counts as UTC.
        first_bucket: number of the first bucket, which starts ``first_bucket * step`` seconds after 1970.
        step: seconds of a bucket.

    Returns:
        The array itself where no offset has changed. NaN where a bucket's time did not occur.
    """
    moved = values
    for zone in sorted(set(zones)):
        sources = _sources(zone, first_bucket, step, values.shape[1])
        if sources is None:
            continue
        moved = moved.copy() if moved is values else moved
        rows = np.array([each == zone for each in zones])
        moved[rows] = _at(values[rows], sources)
    return moved


@lru_cache(maxsize=256)
def _sources(zone: str, first_bucket: int, step: int, count: int) -> Floats | None:
    """For each bucket, where the same time of day is, counted in buckets; None where no offset has changed."""
    known = find_zone(zone)
    if known is None:
        return None
    last = first_bucket + count - 1
    a_day = max(_DAY // step, 1)
    now = _offset(known, last * step)
    if all(_offset(known, bucket * step) == now for bucket in range(first_bucket, last, a_day)):
        return None
    offsets = np.array([_offset(known, (first_bucket + i) * step) for i in range(count)])
    return np.asarray(np.arange(count) + (now - offsets) / step)


def _at(values: Floats, places: Floats) -> Floats:
    """The values of each row at these places, linear between two buckets; NaN outside."""
    low = np.floor(places).astype(int)
    share = places - low
    inside = (low >= 0) & (low + (share > 0) < values.shape[1])
    left, right = (values[:, np.where(inside, low + step, 0)] for step in (0, (share > 0).astype(int)))
    return np.where(inside, np.where(share > 0, left * (1 - share) + right * share, left), np.nan)


def _offset(zone: ZoneInfo, at: float) -> float:
    """Seconds that the zone's clock is ahead of UTC."""
    offset = datetime.fromtimestamp(at, zone).utcoffset()
    return 0.0 if offset is None else offset.total_seconds()
