from datetime import UTC, datetime

import pytest

from concerto.autoscaling.behavior import Memory
from concerto.autoscaling.decision import decide, needs_metrics
from concerto.autoscaling.schedules import CronTimes, Schedule, open_schedules, scheduled
from concerto.autoscaling.settings import Bounds
from support.step_counts import steps_of

OFFICE = Schedule("office", "0 8 * * 1-5", "0 18 * * 1-5", "Europe/Berlin", min_replicas=5)
NIGHT = Schedule("night", "0 22 * * *", "0 6 * * *", "America/New_York", min_replicas=2)
GAP = Schedule("gap", "30 2 * * *", "0 4 * * *", "Europe/Berlin", min_replicas=3)
HOUR = Schedule("hour", "0 2 * * *", "0 3 * * *", "Europe/Berlin", min_replicas=3)
EARLY = Schedule("early", "0 1 * * *", "30 2 * * *", "Europe/Berlin", min_replicas=3)
ISLAND = Schedule("island", "15 2 * * *", "0 4 * * *", "Australia/Lord_Howe", min_replicas=3)


def at(text: str) -> float:
    return datetime.fromisoformat(text).astimezone(UTC).timestamp()


OPEN = {
    "before it starts": (OFFICE, "2026-11-27T07:59:59+01:00", False),
    "at its start": (OFFICE, "2026-11-27T08:00:00+01:00", True),
    "before its end": (OFFICE, "2026-11-27T17:59:59+01:00", True),
    "at its end": (OFFICE, "2026-11-27T18:00:00+01:00", False),
    "on a day without it": (OFFICE, "2026-11-28T12:00:00+01:00", False),
    "in summer, by the zone's clock": (OFFICE, "2026-07-01T08:00:00+02:00", True),
    "not yet by the clock of winter": (OFFICE, "2026-07-01T07:30:00+02:00", False),
    "over midnight": (NIGHT, "2026-11-27T03:00:00-05:00", True),
    "after a night": (NIGHT, "2026-11-27T06:00:00-05:00", False),
    "before the start that the clock skips": (GAP, "2026-03-29T01:59:00+01:00", False),
    "after the gap that swallowed its start": (GAP, "2026-03-29T03:15:00+02:00", True),
    "in the hour that comes twice, the second time": (GAP, "2026-10-25T02:45:00+01:00", True),
    "after both": (GAP, "2026-10-25T04:00:00+01:00", False),
    "in the last minute before the hour comes again": (HOUR, "2026-10-25T02:59:00+02:00", True),
    "all through the hour that comes again": (HOUR, "2026-10-25T02:00:00+01:00", True),
    "until the end that comes only once": (HOUR, "2026-10-25T03:00:00+01:00", False),
    "an hour that the clock skips has no window": (HOUR, "2026-03-29T03:00:00+02:00", False),
    "before an end that comes twice": (EARLY, "2026-10-25T02:29:00+02:00", True),
    "from the first time of an end that comes twice": (EARLY, "2026-10-25T02:30:00+02:00", False),
    "... and it does not open again before the clock is set back": (EARLY, "2026-10-25T02:59:00+02:00", False),
    "... nor when its end comes again": (EARLY, "2026-10-25T02:15:00+01:00", False),
    "an end that the clock skips closes right after the gap": (EARLY, "2026-03-29T03:00:00+02:00", False),
    "half an hour that the clock skips": (ISLAND, "2026-10-04T02:30:00+11:00", True),
    "before it": (ISLAND, "2026-10-04T01:59:00+10:30", False),
}


@pytest.mark.parametrize(("schedule", "now", "want"), OPEN.values(), ids=OPEN)
def test_when_a_window_is_open(schedule, now, want):
    assert open_schedules([schedule], at(now), CronTimes()) == ((schedule,) if want else ())


DAYS = {
    "a day that lasts 25 hours": "2026-10-24T22:00:00+02:00",
    "a day that lasts 23 hours": "2026-03-28T22:00:00+01:00",
    "half an hour that the clock skips": "2026-10-03T12:00:00+00:00",
}
TIMES = ("0 2 * * *", "30 2 * * *", "15 2 * * *", "*/20 1-3 * * *", "0 3 25 10 *", "59 23 * * *", "0 0 29 2 */7")


@pytest.mark.parametrize("begin", DAYS.values(), ids=DAYS)
@pytest.mark.parametrize("zone", ["Europe/Berlin", "Australia/Lord_Howe", "UTC"])
def test_what_is_remembered_of_an_expression_is_what_would_be_found_again(zone, begin):
    for expression in TIMES:
        times, first = CronTimes(), int(at(begin) // 60)
        for minute in (*range(first, first + 600, 7), first + 300, first + 10_000, first):
            assert times.last(expression, zone, minute) == CronTimes().last(expression, zone, minute), (
                expression,
                minute,
            )


def test_expressions_that_are_hardly_ever_true_cost_time_once():
    schedules = [Schedule(str(i), f"{i} 0 29 2 */7", f"{i} 1 29 2 */7", replicas=1) for i in range(8)]
    times, now = CronTimes(), at("2026-11-27T12:00:00+00:00")
    steps = [steps_of(lambda now=now + 60 * i: open_schedules(schedules, now, times)) for i in range(3)]
    assert max(steps[1:]) < steps[0] / 50


def floor(name: str, replicas: int) -> Schedule:
    return Schedule(name, "* * * * *", "0 0 1 1 *", min_replicas=replicas)


def exactly(name: str, replicas: int) -> Schedule:
    return Schedule(name, "* * * * *", "0 0 1 1 *", replicas=replicas)


BOUNDS = {
    "a floor raises the minimum": ([floor("a", 5)], (5, 10)),
    "the highest of two that overlap counts": ([floor("a", 5), floor("b", 7)], (7, 10)),
    "a floor below the object's own changes nothing": ([floor("a", 1)], (2, 10)),
    "no floor exceeds the maximum": ([floor("a", 50)], (10, 10)),
    "an exact number is both": ([exactly("a", 4)], (4, 4)),
    "... and may be below the object's minimum": ([exactly("a", 0)], (0, 0)),
    "a higher floor wins over it": ([exactly("a", 4), floor("b", 6)], (6, 6)),
    "a lower one does not": ([exactly("a", 4), floor("b", 3)], (4, 4)),
    "none changes nothing": ([], (2, 10)),
}


@pytest.mark.parametrize(("schedules", "want"), BOUNDS.values(), ids=BOUNDS)
def test_what_schedules_make_of_the_bounds(schedules, want):
    bounds = scheduled(Bounds(10, 2), schedules)
    assert (bounds.min_replicas, bounds.max_replicas) == want


def test_a_schedule_raises_at_once_and_the_reason_names_it():
    bounds = scheduled(Bounds(10, 2), [floor("office", 5)])
    made = decide(bounds, Memory(), current=3, metrics=None, floor=None, now=0.0)
    assert (made.replicas, made.reason) == (5, "Current number of replicas below the minReplicas of schedule office")


def test_a_minimum_that_wins_over_an_exact_number_is_what_the_reason_names():
    bounds = scheduled(Bounds(10, 2), [exactly("night", 4), floor("office", 6)])
    made = decide(bounds, Memory(), current=9, metrics=None, floor=None, now=0.0)
    assert (made.replicas, made.reason) == (6, "Current number of replicas above the minReplicas of schedule office")


@pytest.mark.parametrize(("own_minimum", "replicas"), [(0, 5), (1, 0)])
def test_only_an_object_that_may_be_at_zero_is_raised_from_there(own_minimum, replicas):
    bounds = scheduled(Bounds(10, own_minimum), [floor("office", 5)])
    made = decide(bounds, Memory(), current=0, metrics=None, floor=None, now=0.0)
    assert (made.replicas, needs_metrics(bounds, 0)) == (replicas, False)


WRONG = {
    "a minute that there is not": (Schedule("x", "99 * * * *", "0 1 * * *"), r"spec.schedules\[x\].start '99"),
    "four fields": (Schedule("x", "0 8 * * *", "0 8 * *"), r"spec.schedules\[x\].end"),
    "a zone that there is not": (Schedule("x", "0 8 * * *", "0 9 * * *", "Mars/Base"), "timeZone 'Mars/Base'"),
    "a path for a zone": (Schedule("x", "0 8 * * *", "0 9 * * *", "../../etc/passwd"), "is not a time zone"),
}


@pytest.mark.parametrize(("schedule", "words"), WRONG.values(), ids=WRONG)
def test_what_is_not_valid_is_named(schedule, words):
    with pytest.raises(ValueError, match=words):
        schedule.check()
