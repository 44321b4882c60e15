"""Replicas by the clock: windows between two cron expressions in a time zone.

A window is open while its last start is later than its last end. Daylight saving time is that of the time zone: a local
time that is skipped that day counts right after the gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from concerto.autoscaling.settings import Bounds

_NEVER = float("-inf")


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
        zone = _zone(self.name, self.time_zone)
        for field, expression in (("start", self.start), ("end", self.end)):
            try:
                CronSim(expression, datetime(2026, 1, 1, tzinfo=zone))
            except CronSimError as error:
                example = "write it like '0 8 * * 1-5'"
                raise ValueError(
                    f"spec.schedules[{self.name}].{field} {expression!r} is not a cron expression ({error}): {example}"
                ) from error

    def is_open(self, now: float) -> bool:
        """Whether the window is open at ``now``, seconds."""
        minute = int(now // 60)
        return _last(self.start, self.time_zone, minute) > _last(self.end, self.time_zone, minute)


def open_schedules(schedules: Sequence[Schedule], now: float) -> tuple[Schedule, ...]:
    """Those whose window is open."""
    return tuple(s for s in schedules if s.is_open(now))


def scheduled(bounds: Bounds, schedules: Sequence[Schedule]) -> Bounds:
    """The bounds while these schedules' windows are open.

    The highest ``minReplicas`` counts, and never lowers the object's own. An exact number (the highest of several) is
    both bounds, unless a minimum is higher. No schedule exceeds the object's maximum.
    """
    floors = [(s.min_replicas, s.name) for s in schedules if s.min_replicas is not None]
    exact = [(s.replicas, s.name) for s in schedules if s.replicas is not None]
    low, low_name = max(floors, default=(0, ""))
    starts_from_zero = bounds.min_replicas == 0
    if exact:
        count, name = max([*exact, (low, low_name)] if floors else exact)
        count = min(count, bounds.max_replicas)
        source = f"the replicas of schedule {name}"
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
        min_source=f"the minReplicas of schedule {low_name}",
        starts_from_zero=starts_from_zero,
    )


def _zone(name: str, time_zone: str) -> ZoneInfo:
    try:
        return ZoneInfo(time_zone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(
            f"spec.schedules[{name}].timeZone {time_zone!r} is not a time zone: write it like Europe/Berlin"
        ) from error


@lru_cache(maxsize=4096)
def _last(expression: str, time_zone: str, minute: int) -> float:
    """When the expression was last true, up to the end of that minute since 1970; seconds."""
    until = datetime.fromtimestamp(60 * (minute + 1), UTC).astimezone(ZoneInfo(time_zone))
    last = next(CronSim(expression, until, reverse=True), None)
    return _NEVER if last is None else last.timestamp()
