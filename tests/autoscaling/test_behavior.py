from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concerto.autoscaling.behavior import (
    Memory,
    Recommendation,
    ScaleEvent,
    longest_period,
    longest_window,
    normalise,
    scale_down_limit,
    scale_up_limit,
)
from concerto.autoscaling.settings import (
    DEFAULT_SCALE_DOWN,
    DEFAULT_SCALE_UP,
    Behavior,
    Bounds,
    Policy,
    Release,
    ScalingRules,
)

NOW = 1000.0


def recommended(*pairs):
    return Memory(tuple(Recommendation(NOW - ago, replicas) for ago, replicas in pairs))


PLAIN = {
    "a recommendation within bounds passes": ((), 5, 7, (7, "ReadyForNewScale", False, "DesiredWithinRange")),
    "the highest recommendation of five minutes holds": (
        ((299, 9), (10, 6)),
        8,
        3,
        (9, "ScaleDownStabilized", False, "DesiredWithinRange"),
    ),
    "one exactly at the edge of the window still counts": (
        ((300, 9),),
        9,
        3,
        (9, "ScaleDownStabilized", False, "DesiredWithinRange"),
    ),
    "an older one does not": (((301, 9),), 9, 3, (3, "ReadyForNewScale", False, "DesiredWithinRange")),
    "no more than twice the replicas": ((), 6, 50, (12, "ReadyForNewScale", True, "ScaleUpLimit")),
    "but four in any case": ((), 1, 50, (4, "ReadyForNewScale", True, "ScaleUpLimit")),
    "no more than the maximum": ((), 15, 50, (20, "ReadyForNewScale", True, "TooManyReplicas")),
    "no fewer than the minimum": ((), 5, 0, (2, "ReadyForNewScale", True, "TooFewReplicas")),
}


@pytest.mark.parametrize(("recent", "current", "desired", "want"), PLAIN.values(), ids=PLAIN)
def test_without_behavior(recent, current, desired, want):
    got = normalise(Bounds(20, 2), recommended(*recent), current=current, desired=desired, now=NOW)
    assert (got.replicas, got.able_reason, got.limited, got.limited_reason) == want


RELEASES = {
    "old recommendations hold no higher than the release": (((200, 12),), 12, 3, Release(6, 2.0, 45.0), 6),
    "a fall that is not worth a rescale waits for the window": (((200, 12),), 12, 11, Release(6, 2.0, 45.0), 12),
    "recent recommendations hold in any case": (((200, 12), (40, 7)), 12, 3, Release(6, 2.0, 45.0), 7),
    "a fall that goes on by more than a rescale is worth waits for its end": (
        ((200, 12), (40, 9)),
        12,
        3,
        Release(6, 2.0, 45.0),
        12,
    ),
    "a release above the old recommendations changes nothing": (((200, 8),), 8, 3, Release(20, 1.0, 45.0), 8),
    "what was released does not come back": (((200, 12),), 6, 5, Release(6, 2.0, 45.0), 6),
    "a release never raises": ((), 5, 4, Release(9, 1.0, 45.0), 4),
}
OWN_WINDOW = Behavior(scale_down=replace(DEFAULT_SCALE_DOWN, stabilization_seconds=300.0))
BEHAVIORS = {
    "without a behavior": (None, True),
    "with a behavior that gives no down window": (Behavior(), True),
    "a behavior's own down window wins": (
        Behavior(scale_down=replace(DEFAULT_SCALE_DOWN, stabilization_seconds=300.0)),
        False,
    ),
}


@pytest.mark.parametrize(("behavior", "applies"), BEHAVIORS.values(), ids=BEHAVIORS)
@pytest.mark.parametrize(("recent", "current", "desired", "release", "want"), RELEASES.values(), ids=RELEASES)
def test_a_forecast_releases_replicas_before_the_window_is_over(
    behavior, applies, recent, current, desired, release, want
):
    bounds = Bounds(20, 2, behavior)
    kept = normalise(bounds, recommended(*recent), current=current, desired=desired, now=NOW)
    got = normalise(replace(bounds, release=release), recommended(*recent), current=current, desired=desired, now=NOW)
    assert got.replicas == (want if applies else kept.replicas)


def test_a_recent_recommendation_that_rates_have_limited_still_raises():
    bounds = Bounds(20, 2, release=Release(6, 2.0, 45.0))
    assert normalise(bounds, recommended((30, 12)), current=6, desired=5, now=NOW).replicas == 12


WINDOWS = {
    "growth waits for the lowest of the up window": (60, 0, ((30, 6),), 5, 9, 6, "ScaleUpStabilized"),
    "a recommendation as old as the up window no longer counts": (60, 0, ((60, 6),), 5, 9, 9, "ReadyForNewScale"),
    "shrinking waits for the highest of the down window": (0, 60, ((30, 7),), 9, 3, 7, "ScaleDownStabilized"),
    "between the two windows the replicas stay": (60, 60, ((30, 4), (20, 12)), 8, 9, 8, "ScaleUpStabilized"),
    "the window of one direction does not hold the other": (0, 300, ((30, 2),), 4, 8, 8, "ReadyForNewScale"),
}


@pytest.mark.parametrize(
    ("up", "down", "recent", "current", "desired", "want", "reason"), WINDOWS.values(), ids=WINDOWS
)
def test_stabilisation_windows_of_a_behavior(up, down, recent, current, desired, want, reason):
    behavior = Behavior(
        ScalingRules((Policy("Percent", 1000, 15),), "Max", up),
        ScalingRules((Policy("Percent", 100, 15),), "Max", down),
    )
    got = normalise(Bounds(100, 1, behavior), recommended(*recent), current=current, desired=desired, now=NOW)
    assert (got.replicas, got.able_reason) == (want, reason)


def test_a_behavior_without_a_down_window_takes_the_controllers():
    got = normalise(Bounds(100, 1, Behavior()), recommended((250, 9)), current=9, desired=3, now=NOW)
    assert (got.replicas, got.able_reason) == (9, "ScaleDownStabilized")
    assert longest_window(Bounds(100, 1, Behavior())) == 300


def rules(select, *policies):
    return ScalingRules(tuple(Policy(*p) for p in policies), select, 0.0)


UP = {
    "pods: start of the period plus the value": (rules("Max", ("Pods", 4, 60)), (), 10, 14),
    "percent is rounded up": (rules("Max", ("Percent", 10, 60)), (), 1, 2),
    "a share of zero replicas is one, or they would stay at zero": (rules("Max", ("Percent", 100, 60)), (), 0, 1),
    "... also where the least change counts": (rules("Min", ("Pods", 4, 60), ("Percent", 100, 60)), (), 0, 1),
    "... and only once in the period": (rules("Max", ("Percent", 100, 60)), ((10, 1),), 1, 1),
    "what was added in the period is spent": (rules("Max", ("Pods", 4, 60)), ((10, 3),), 10, 11),
    "what was removed in the period may come back": (rules("Max", ("Pods", 4, 60)), ((10, -3),), 10, 17),
    "a change as old as the period no longer counts": (rules("Max", ("Pods", 4, 60)), ((60, 3),), 10, 14),
    "Max takes the largest change": (rules("Max", ("Pods", 4, 60), ("Percent", 100, 60)), (), 10, 20),
    "Min takes the smallest change": (rules("Min", ("Pods", 4, 60), ("Percent", 100, 60)), (), 10, 14),
    "Disabled allows none": (rules("Disabled", ("Pods", 4, 60)), (), 10, 10),
    "the defaults allow four pods or doubling in 15 s": (DEFAULT_SCALE_UP, (), 3, 7),
}
DOWN = {
    "pods: start of the period minus the value": (rules("Max", ("Pods", 4, 60)), (), 10, 6),
    "percent is truncated": (rules("Max", ("Percent", 25, 60)), (), 10, 7),
    "what was removed in the period is spent": (rules("Max", ("Pods", 4, 60)), ((10, -3),), 10, 9),
    "what was added in the period may go": (rules("Max", ("Pods", 4, 60)), ((10, 3),), 10, 3),
    "Max takes the largest change": (rules("Max", ("Pods", 4, 60), ("Percent", 10, 60)), (), 10, 6),
    "Min takes the smallest change": (rules("Min", ("Pods", 4, 60), ("Percent", 10, 60)), (), 10, 9),
    "Disabled allows none": (rules("Disabled", ("Pods", 4, 60)), (), 10, 10),
    "the default allows all at once": (DEFAULT_SCALE_DOWN, (), 10, 0),
}


def changes(*pairs):
    return tuple(ScaleEvent(NOW - ago, change) for ago, change in pairs)


@pytest.mark.parametrize(("rule", "past", "current", "want"), UP.values(), ids=UP)
def test_rate_up(rule, past, current, want):
    assert scale_up_limit(rule, changes(*past), current, NOW) == want


@pytest.mark.parametrize(("rule", "past", "current", "want"), DOWN.values(), ids=DOWN)
def test_rate_down(rule, past, current, want):
    assert scale_down_limit(rule, changes(*past), current, NOW) == want


LIMITS = {
    "too fast up": (10, 50, (), 14, "ScaleUpLimit"),
    "above the maximum": (99, 200, (), 100, "TooManyReplicas"),
    "too fast down": (10, 1, (), 6, "ScaleDownLimit"),
    "below the minimum": (4, 0, (), 2, "TooFewReplicas"),
    "an overspent budget upwards never shrinks": (10, 50, ((5, 9),), 10, "ScaleUpLimit"),
    "an overspent budget downwards never grows": (10, 1, ((5, -9),), 10, "ScaleDownLimit"),
}


@pytest.mark.parametrize(("current", "desired", "past", "want", "reason"), LIMITS.values(), ids=LIMITS)
def test_limits_of_a_behavior_and_their_reasons(current, desired, past, want, reason):
    both = rules("Max", ("Pods", 4, 60))
    memory = Memory(events=changes(*past))
    got = normalise(Bounds(100, 2, Behavior(both, both)), memory, current=current, desired=desired, now=NOW)
    assert (got.replicas, got.limited, got.limited_reason) == (want, True, reason)


def test_the_first_recommendation_is_the_present_replicas_and_stays_alone():
    memory = Memory().seeded(NOW, 7)
    assert memory.recommendations == (Recommendation(NOW, 7),)
    assert memory.seeded(NOW + 1, 9) == memory


@given(st.lists(st.tuples(st.floats(0, 1e5), st.integers(0, 100)), max_size=50))
def test_memory_is_bounded_by_its_windows(steps):
    memory, now = Memory(), 0.0
    for gap, replicas in steps:
        now += gap
        memory = memory.recommended(now, replicas, 300).scaled(now, 1, 60)
        assert all(r.at >= now - 300 for r in memory.recommendations)
        assert all(e.at >= now - 60 for e in memory.events)


def test_the_longest_period_is_over_both_directions():
    behavior = Behavior(rules("Max", ("Pods", 1, 30)), rules("Max", ("Pods", 1, 1800), ("Percent", 5, 60)))
    assert longest_period(Bounds(10, 1, behavior)) == 1800


policy_lists = st.lists(
    st.tuples(st.sampled_from(["Pods", "Percent"]), st.integers(1, 200), st.integers(1, 1800)), min_size=1, max_size=3
)


@given(
    st.sampled_from(["Max", "Min", "Disabled"]),
    policy_lists,
    st.integers(1, 50),
    st.integers(0, 100),
    st.lists(st.tuples(st.floats(0, 2000), st.integers(-5, 5)), max_size=10),
)
def test_limits_never_turn_a_direction_and_stay_within_bounds(select, policies, current, desired, past):
    both = rules(select, *policies)
    bounds = Bounds(50, 1, Behavior(both, both))
    got = normalise(bounds, Memory(events=changes(*past)), current=current, desired=desired, now=NOW).replicas
    assert 1 <= got <= 50
    assert min(current, max(desired, 1)) <= got <= max(current, desired)


def test_after_a_clock_was_set_back_what_it_called_later_holds_no_longer_than_anything_else():
    memory = Memory((Recommendation(100.0, 3), Recommendation(5000.0, 9)), (ScaleEvent(90.0, 1), ScaleEvent(4000.0, 6)))
    assert memory.until(5000.0) is memory
    assert memory.until(120.0) == Memory(
        (Recommendation(100.0, 3), Recommendation(120.0, 9)), (ScaleEvent(90.0, 1), ScaleEvent(120.0, 6))
    )
