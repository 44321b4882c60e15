import pytest

from concerto.autoscaling.behavior import Memory, Recommendation
from concerto.autoscaling.decision import Failure, Floor, carried_out, combine, decide, needs_metrics
from concerto.autoscaling.replicas import Proposal
from concerto.autoscaling.settings import Behavior, Bounds, Policy, Release, ScalingRules

NOW = 1000.0
BROKEN = Failure("FailedGetResourceMetric", "failed to get cpu resource metric value: gone")

COMBINED = {
    "the largest proposal wins": ([Proposal(3, "a"), Proposal(5, "b")], 4, (5, "b", "ValidMetricFound")),
    "one broken metric does not stop growth": ([BROKEN, Proposal(5, "b")], 4, (5, "b", "ValidMetricFound")),
    "one broken metric lets the replicas stay": ([BROKEN, Proposal(4, "b")], 4, (4, "b", "ValidMetricFound")),
    "one broken metric stops scaling down": ([Proposal(3, "b"), BROKEN], 4, (None, "", "FailedGetResourceMetric")),
    "all broken: the first one's reason": (
        [Failure("FailedGetPodsMetric", "x"), BROKEN],
        4,
        (None, "", "FailedGetPodsMetric"),
    ),
}


@pytest.mark.parametrize(("outcomes", "current", "want"), COMBINED.values(), ids=COMBINED)
def test_metrics_together(outcomes, current, want):
    got = combine(outcomes, current)
    assert (got.replicas, got.metric, got.active.reason) == want


def test_a_broken_metric_is_reported_even_where_the_others_decided():
    got = combine([BROKEN, Proposal(5, "b")], 4)
    assert got.error == (
        "invalid metrics (1 invalid out of 2), first error is: failed to get cpu resource metric value: gone"
    )


BYPASS = {
    "a target at zero is left alone": (0, 0, False, "", "ScalingDisabled"),
    "above the maximum comes down at once": (12, 10, True, "Current number of replicas above Spec.MaxReplicas", None),
    "below the minimum comes up at once": (1, 2, True, "Current number of replicas below Spec.MinReplicas", None),
}


@pytest.mark.parametrize(("current", "want", "rescale", "reason", "active"), BYPASS.values(), ids=BYPASS)
def test_bounds_come_before_metrics_and_behavior(current, want, rescale, reason, active):
    bounds = Bounds(10, 2, Behavior())
    assert not needs_metrics(bounds, current)
    got = decide(bounds, Memory(), current=current, metrics=None, floor=None, now=NOW)
    assert (got.replicas, got.rescale, got.reason) == (want, rescale, reason)
    assert [c.reason for c in got.conditions if c.type == "ScalingActive"] == ([active] if active else [])


def test_a_minimum_of_zero_asks_the_metrics_also_at_zero():
    assert needs_metrics(Bounds(10, 0), 0)


def answer(replicas):
    return combine([Proposal(replicas, "cpu resource")], 5)


def test_a_fresh_start_scales_nothing_down_at_once():
    got = decide(Bounds(10), Memory(), current=5, metrics=answer(2), floor=None, now=NOW)
    assert (got.replicas, got.rescale) == (5, False)
    assert [(c.type, c.reason) for c in got.conditions] == [
        ("AbleToScale", "ScaleDownStabilized"),
        ("ScalingLimited", "DesiredWithinRange"),
        ("ScalingActive", "ValidMetricFound"),
    ]


OLD = Memory((Recommendation(0.0, 1),))
FORECAST = {
    "a forecast above the metrics raises their answer": (
        3,
        Floor(7, "Holt"),
        7,
        "forecast (Holt) of cpu resource above target",
    ),
    "a forecast below them lowers nothing": (7, Floor(3, "Holt"), 7, "cpu resource above target"),
    "a forecast that replaces may lower": (
        7,
        Floor(6, "Holt", replaces=True),
        6,
        "forecast (Holt) of cpu resource above target",
    ),
    "a forecast that replaces is also said to be what scales down": (
        6,
        Floor(3, "Holt", replaces=True),
        3,
        "forecast (Holt) of cpu resource below target",
    ),
    "a forecast's raise goes by the same limits": (
        3,
        Floor(90, "Holt"),
        10,
        "forecast (Holt) of cpu resource above target",
    ),
    "scaling down waits for both": (2, Floor(5, "Holt"), 5, ""),
}


@pytest.mark.parametrize(("asked", "floor", "want", "reason"), FORECAST.values(), ids=FORECAST)
def test_a_forecast_is_one_more_voice(asked, floor, want, reason):
    got = decide(Bounds(100), OLD, current=5, metrics=answer(asked), floor=floor, now=NOW)
    assert (got.replicas, got.reason) == (want, reason)
    assert got.metrics_replicas == asked


def test_while_a_metric_is_broken_a_forecast_that_replaces_the_others_lowers_nothing():
    metrics = combine([BROKEN, Proposal(5, "queue")], 5)
    got = decide(Bounds(100), OLD, current=5, metrics=metrics, floor=Floor(3, "Holt", replaces=True), now=NOW)
    assert got.replicas == 5
    got = decide(Bounds(100), OLD, current=5, metrics=metrics, floor=Floor(7, "Holt", replaces=True), now=NOW)
    assert got.replicas == 7


def test_a_target_that_may_have_no_replicas_needs_no_answer_of_the_metrics():
    bounds = Bounds(0, 0, max_source="the replicas of schedule night")
    got = decide(bounds, Memory(), current=0, metrics=combine([BROKEN], 0), floor=None, now=NOW, fallback=6)
    (active,) = (c for c in got.conditions if c.type == "ScalingActive")
    assert (got.replicas, got.rescale, got.error) == (0, False, None)
    assert (active.reason, active.message) == (
        "ScalingDisabled",
        "scaling is disabled while the replicas of schedule night are zero",
    )


FALLBACK = {
    "no metric can be read": ([BROKEN, BROKEN], 5, 8),
    "one can be read, and asks for less": ([BROKEN, Proposal(4, "queue")], 5, 5),
    "one can be read, and asks for as much": ([BROKEN, Proposal(5, "queue")], 5, 5),
    "one can be read, and asks for more": ([BROKEN, Proposal(6, "queue")], 5, 6),
}


@pytest.mark.parametrize(("outcomes", "current", "want"), FALLBACK.values(), ids=FALLBACK)
def test_the_fallback_is_for_times_in_which_no_metric_can_be_read(outcomes, current, want):
    """A load that fell, by the one metric that could be read, had raised the target to the fallback."""
    got = decide(Bounds(100), OLD, current=current, metrics=combine(outcomes, current), floor=None, now=NOW, fallback=8)
    assert got.replicas == want


def test_the_first_reading_after_an_outage_does_not_take_the_fallback_back_at_once():
    bounds = Bounds(100)
    got = decide(bounds, OLD, current=5, metrics=combine([BROKEN], 5), floor=None, now=NOW, fallback=8)
    assert (got.replicas, got.cause) == (8, "Fallback")
    for later, want in ((15, 8), (299, 8), (316, 2)):
        after = decide(bounds, got.memory, current=8, metrics=answer(2), floor=None, now=NOW + later)
        assert after.replicas == want


@pytest.mark.parametrize("window", [0.0, 60.0, 300.0])
def test_a_fallback_is_reached_whatever_the_window_of_rises(window):
    """It is no recommendation that others have to confirm: one below it, made on the way, had kept it off for good."""
    rises = ScalingRules((Policy("Pods", 1, 30),), "Max", window)
    bounds, memory, current, now = Bounds(100, 1, Behavior(scale_up=rises)), OLD, 5, NOW
    found = []
    for _ in range(8):
        got = decide(bounds, memory, current=current, metrics=combine([BROKEN], 5), floor=None, now=now, fallback=8)
        memory = carried_out(got.memory, bounds, before=current, after=got.replicas, now=now)
        current, now = got.replicas, now + 15.0
        found.append(current)
    assert found == [6, 6, 7, 7, 8, 8, 8, 8]
    after = decide(bounds, memory, current=8, metrics=answer(2), floor=None, now=now)
    assert after.replicas == 8


def test_what_metrics_asked_for_before_an_outage_is_not_carried_out_for_the_fallback():
    """With a rise under way that rates had limited, a lower fallback raised the target on."""
    memory = Memory((Recommendation(NOW - 200, 50),))
    got = decide(Bounds(100), memory, current=10, metrics=combine([BROKEN], 10), floor=None, now=NOW, fallback=8)
    assert (got.replicas, got.rescale, got.cause) == (10, False, "")


def test_without_an_answer_of_the_metrics_a_forecast_decides_nothing():
    got = decide(Bounds(100), OLD, current=5, metrics=combine([BROKEN], 5), floor=Floor(9, "Holt"), now=NOW)
    assert (got.replicas, got.rescale, got.memory) == (5, False, OLD)
    assert got.error is not None
    assert [c.reason for c in got.conditions] == ["SucceededGetScale", "FailedGetResourceMetric"]


def test_only_behaviors_remember_changes():
    assert carried_out(Memory(), Bounds(10), before=2, after=4, now=NOW).events == ()
    remembered = carried_out(Memory(), Bounds(10, 1, Behavior()), before=4, after=1, now=NOW)
    assert [e.change for e in remembered.events] == [-3]


def test_what_a_forecast_released_does_not_come_back_once_it_has_no_influence():
    before = Memory((Recommendation(NOW - 200, 12),))
    bounds = Bounds(20, 2, release=Release(6, 2.0, 45.0))
    released = decide(bounds, before, current=12, metrics=answer(3), floor=None, now=NOW)
    later = decide(Bounds(20, 2), released.memory, current=6, metrics=answer(3), floor=None, now=NOW + 15)
    assert (released.replicas, later.replicas) == (6, 6)
