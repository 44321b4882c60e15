"""Replicas by the clock: windows between two cron expressions in a time zone.

A window is open while its last start is later than its last end. Daylight saving time is that of the time zone: a local
time that is skipped that day counts right after the gap, and one that comes twice counts the first time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from concerto.autoscaling.settings import Bounds
from concerto.autoscaling.time_zones import read_zone

_NEVER = float("-inf")
_NOTHING, _MINUTE = timedelta(0), timedelta(minutes=1)


@dataclass(frozen=True)
class Schedule:
    """One of ``spec.schedules``.

    Attributes:
        name: for messages.
        start: cron expression of five fields: when the window opens.
        end: when it closes.
        time_zone: IANA name of the zone that both are in.
        min_replicas: lowest number of replicas in the window; None where ``replicas`` is given.
        replicas: exact number of replicas in the window; None where ``min_replicas`` is given.
    """

    name: str
    start: str
    end: str
    time_zone: str = "UTC"
    min_replicas: int | None = None
    replicas: int | None = None

    def check(self) -> None:
        """Check both expressions and the time zone.

        Raises:
            ValueError: one of them is not valid; the message names the schedule, the field and the value.
        """
        zone = read_zone(self.time_zone, f"spec.schedules[{self.name}].timeZone")
        for field, expression in (("start", self.start), ("end", self.end)):
            try:
                CronSim(expression, datetime(2026, 1, 1, tzinfo=zone))
            except CronSimError as error:
                example = "write it like '0 8 * * 1-5'"
                raise ValueError(
                    f"spec.schedules[{self.name}].{field} {expression!r} is not a cron expression ({error}): {example}"
                ) from error

    def is_open(self, now: float, times: CronTimes) -> bool:
        """Whether the window is open at ``now``, seconds."""
        minute = int(now // 60)
        return times.last(self.start, self.time_zone, minute) > times.last(self.end, self.time_zone, minute)


class CronTimes:
    """When cron expressions were true last. What was found is remembered until they are true again.

    To find it takes up to 3 milliseconds for expressions that are true every 28 years (the fifth Sunday of February).

    Attributes:
        searches: how often something was looked for.
    """

    def __init__(self) -> None:
        """Nothing was looked for."""
        self.searches = 0
        self._known: dict[tuple[str, str], tuple[int, float, float]] = {}  # first minute, first one after, last time

    def last(self, expression: str, time_zone: str, minute: int) -> float:
        """When the expression was last true, up to the end of that minute since 1970; seconds."""
        first, end, found = self._known.get((expression, time_zone), (0, -math.inf, _NEVER))
        if not first <= minute < end:
            zone = ZoneInfo(time_zone)
            self.searches += 1
            found, end = _last(expression, zone, minute), _next(expression, zone, minute)
            self._known[expression, time_zone] = minute, end, found
        return found


def open_schedules(schedules: Sequence[Schedule], now: float, times: CronTimes) -> tuple[Schedule, ...]:
    """Those whose window is open."""
    return tuple(s for s in schedules if s.is_open(now, times))


def scheduled(bounds: Bounds, schedules: Sequence[Schedule]) -> Bounds:
    """The bounds while these schedules' windows are open.

    The highest ``minReplicas`` counts, and never lowers the object's own. An exact number (the highest of several) is
    both bounds, unless a minimum is higher. No schedule exceeds the object's maximum.
    """
    floors = [
        (s.min_replicas, f"the minReplicas of schedule {s.name}") for s in schedules if s.min_replicas is not None
    ]
    exact = [(s.replicas, f"the replicas of schedule {s.name}") for s in schedules if s.replicas is not None]
    low, low_source = max(floors, default=(0, ""))
    starts_from_zero = bounds.min_replicas == 0
    if exact:
        count, source = max([*exact, *floors])
        count = min(count, bounds.max_replicas)
        return replace(
            bounds,
            min_replicas=count,
            max_replicas=count,
            min_source=source,
            max_source=source,
            starts_from_zero=starts_from_zero,
        )
    if low <= bounds.min_replicas:
        return bounds
    return replace(
        bounds,
        min_replicas=min(low, bounds.max_replicas),
        min_source=low_source,
        starts_from_zero=starts_from_zero,
    )


def _last(expression: str, zone: ZoneInfo, minute: int) -> float:
    """When the expression was last true, up to the end of that minute since 1970; seconds."""
    now = datetime.fromtimestamp(60 * minute, UTC).astimezone(zone)
    wall = now.replace(tzinfo=None)
    if now.fold:  # all that the clock showed before it was set back is over
        wall += (now.replace(fold=0).utcoffset() or _NOTHING) - (now.utcoffset() or _NOTHING)
    # Without a time zone, which the iterator would follow in another way
    for at in CronSim(expression, wall.replace(fold=0) + _MINUTE, reverse=True):
        if (instant := _instant(at, zone)) <= 60 * minute:
            return instant
    return _NEVER


def _next(expression: str, zone: ZoneInfo, minute: int) -> float:
    """The first minute after that one in which the expression is true; infinity if it never is."""
    wall = datetime.fromtimestamp(60 * minute, UTC).astimezone(zone).replace(tzinfo=None, fold=0)
    for at in CronSim(expression, wall):
        if (instant := _instant(at, zone)) > 60 * minute:
            return instant / 60
    return math.inf


def _instant(wall: datetime, zone: ZoneInfo) -> float:
    """When the zone's clock first shows that time, or right after the gap if it skips it; seconds."""
    first, second = (wall.replace(tzinfo=zone, fold=fold).timestamp() for fold in (0, 1))
    if first <= second:
        return first
    # In a gap: these are before and after the clock is changed, which happens at a whole minute
    before, after = int(second // 60), int(first // 60)
    offset = datetime.fromtimestamp(second, zone).utcoffset()
    while after - before > 1:
        middle = (before + after) // 2
        if datetime.fromtimestamp(60 * middle, zone).utcoffset() == offset:
            before = middle
        else:
            after = middle
    return 60.0 * after
