import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concerto.api.pod_requests import ContainerResources
from concerto.autoscaling.pods import MetricError, Sample
from concerto.autoscaling.replicas import (
    PodReadings,
    average_value_replicas,
    kept_from_zero,
    per_pod_replicas,
    resource_utilization_replicas,
    utilization,
    value_replicas,
)
from concerto.autoscaling.settings import ControllerSettings, Tolerances
from support.pod_views import target_pod

TEN_PERCENT = Tolerances(0.1, 0.1)
REQUESTS = (ContainerResources("c", {"cpu": 1000, "memory": 1000}),)


def pods(count, phase="Running", first=0, **kw):
    return [target_pod(f"p{first + i}", phase, containers=REQUESTS, **kw) for i in range(count)]


def readings(*values, first=0):
    return {f"p{first + i}": Sample(v, timestamp=1e6) for i, v in enumerate(values)}


def by_utilization(current, all_pods, samples, target, tolerances=TEN_PERCENT, resource="cpu"):
    return resource_utilization_replicas(
        PodReadings(current, all_pods, samples, tolerances, ControllerSettings(), 1e6),
        resource=resource,
        container=None,
        target_percent=target,
    )


def by_average(current, all_pods, samples, target):
    return average_value_replicas(
        PodReadings(current, all_pods, samples, TEN_PERCENT, ControllerSettings(), 1e6),
        metric="qps",
        target=target,
    )


UTILIZATION = {
    "within tolerance the replicas stay": (3, pods(3), readings(300, 320, 340), 30, 3),
    "above it they follow the ratio, rounded up": (3, pods(3), readings(300, 500, 700), 30, 5),
    "below it they follow, too": (5, pods(5), readings(100, 300, 500, 250, 250), 50, 3),
    "the ratio is times the ready pods, not times spec.replicas: a surge does not ratchet": (
        3,
        [*pods(3), *pods(2, deleting=True, first=3)],
        readings(500, 500, 500, 900, 900),
        50,
        3,
    ),
    "a missing pod counts as using all of its request when the rest would shrink": (
        4,
        pods(4),
        readings(100, 100, 100),
        100,
        2,
    ),
    "... or its target, where that is above 100 %": (4, pods(4), readings(800, 800, 800), 200, 3),
    "a missing pod counts as idle when the rest would grow": (4, pods(4), readings(1000, 1000, 1000), 50, 6),
    "where the missing pods would turn the direction, the replicas stay": (3, pods(3), readings(450, 450), 50, 3),
    "an unready pod counts as idle when the rest would grow": (
        3,
        [*pods(2), *pods(1, "Pending", first=2)],
        readings(500, 700),
        30,
        4,
    ),
    "a pending pod does not block scaling down": (
        5,
        [*pods(3), *pods(2, "Pending", first=3)],
        readings(100, 100, 100),
        50,
        1,
    ),
    "unready pods may soften growth to none": (
        3,
        [*pods(1), *pods(2, "Pending", first=1)],
        readings(400),
        30,
        3,
    ),
    "a CPU burst of a pod that is starting does not count": (
        2,
        [*pods(1), *pods(1, first=1, ready="False", started=1e6 - 20, ready_since=1e6 - 20)],
        readings(300, 1000),
        30,
        2,
    ),
    "growth never asks for fewer than there are": (
        10,
        [*pods(2), *pods(3, "Pending", first=2)],
        readings(900, 900),
        30,
        10,
    ),
}


@pytest.mark.parametrize(("current", "all_pods", "samples", "target", "want"), UTILIZATION.values(), ids=UTILIZATION)
def test_utilization(current, all_pods, samples, target, want):
    assert by_utilization(current, all_pods, samples, target).replicas == want


def test_utilization_is_a_truncated_ratio_of_sums():
    ratio, percent, average = utilization(
        {"a": Sample(999), "b": Sample(1), "stranger": Sample(10**9)}, {"a": 1000, "b": 3000}, 50
    )
    assert (percent, average) == (25, 500)
    assert ratio == 0.5
    assert utilization({"a": Sample(999)}, {"a": 1000}, 99)[0] == 1.0


def test_a_per_direction_tolerance_holds_only_in_its_direction():
    eager_up = Tolerances(scale_up=0.0, scale_down=0.5)
    assert by_utilization(4, pods(4), readings(510, 510, 510, 510), 50, eager_up).replicas == 5
    assert by_utilization(4, pods(4), readings(260, 260, 260, 260), 50, eager_up).replicas == 4


BAD = {
    "no pods": ([], readings(1), "no pods returned by selector"),
    "only unready pods": (pods(2, "Pending"), readings(100, 100), "pods might be unready"),
    "no sample of any pod": (pods(2), {}, "did not receive metrics"),
    "a pod without a request": (
        [target_pod("p0", containers=(ContainerResources("c"),))],
        readings(1),
        "missing request",
    ),
    "samples of strangers only": (pods(1), readings(5, first=7), "no metrics returned matched known pods"),
    "less than nothing": (pods(1), readings(-5), "cannot be negative"),
}


@pytest.mark.parametrize(("all_pods", "samples", "message"), BAD.values(), ids=BAD)
def test_what_cannot_be_answered_is_an_error(all_pods, samples, message):
    with pytest.raises(MetricError, match=message):
        by_utilization(2, all_pods, samples, 50)


AVERAGE = {
    "the ratio of the average to the target": (3, pods(3), readings(20_000, 10_000, 30_000), 15_000, 4),
    "within tolerance": (3, pods(3), readings(10_500, 10_500, 10_500), 10_000, 3),
    "missing pods count as at the target when the rest would shrink": (
        4,
        pods(4),
        readings(2000, 2000, 2000),
        10_000,
        2,
    ),
    "missing pods count as idle when the rest would grow": (4, pods(4), readings(20_000, 20_000, 20_000), 10_000, 6),
    "pending pods count as idle when the rest would grow": (
        3,
        [*pods(1), *pods(2, "Pending", first=1)],
        readings(50_000),
        10_000,
        5,
    ),
}


@pytest.mark.parametrize(("current", "all_pods", "samples", "target", "want"), AVERAGE.values(), ids=AVERAGE)
def test_average_value(current, all_pods, samples, target, want):
    assert by_average(current, all_pods, samples, target).replicas == want


VALUE = {
    "the ratio times the pods that are ready": (4, [*pods(3), *pods(1, "Pending", first=3)], 20_000, 10_000, 6),
    "within tolerance nothing changes, even with no pod ready": (4, pods(4, "Pending"), 10_500, 10_000, 4),
    "from zero, the ratio itself, and without tolerance": (0, [], 10_500, 10_000, 2),
    "from zero, nothing asks for nothing": (0, [], 0, 10_000, 0),
    "to zero": (3, pods(3), 0, 10_000, 0),
    "while no pod is ready yet, none, as in autoscaling/v2": (3, pods(3, "Pending"), 25_000, 10_000, 0),
    "never more than an int32": (4, pods(4), 10**30, 1, 2**31 - 1),
}


@pytest.mark.parametrize(("current", "all_pods", "value", "target", "want"), VALUE.values(), ids=VALUE)
def test_object_and_external_value(current, all_pods, value, target, want):
    proposal = value_replicas(current, all_pods, value, metric="m", target=target, tolerances=TEN_PERCENT)
    assert proposal.replicas == want


FROM_ZERO = {
    "one while no pod is ready yet": (3, pods(3, "Pending"), 25_000, 1),
    "... but no load still asks for nothing": (3, pods(3, "Pending"), 0, 0),
    "... and it is no more than that": (4, pods(3), 20_000, 6),
}


@pytest.mark.parametrize(("current", "all_pods", "value", "want"), FROM_ZERO.values(), ids=FROM_ZERO)
def test_a_target_that_may_have_no_replicas_keeps_one_for_its_load(current, all_pods, value, want):
    proposal = value_replicas(current, all_pods, value, metric="m", target=10_000, tolerances=TEN_PERCENT)
    assert kept_from_zero(proposal).replicas == want


PER_POD = {
    "the total over the target, tolerance by the replicas that exist": (3, 40_000, 10_000, 4),
    "within tolerance": (3, 31_000, 10_000, 3),
    "with no replicas there is no tolerance": (0, 1, 10_000, 1),
    "no load, no replicas": (0, 0, 10_000, 0),
}


@pytest.mark.parametrize(("existing", "value", "target", "want"), PER_POD.values(), ids=PER_POD)
def test_object_and_external_average_value(existing, value, target, want):
    assert per_pod_replicas(existing, value, metric="m", target=target, tolerances=TEN_PERCENT).replicas == want


def test_a_negative_total_is_refused():
    with pytest.raises(MetricError, match="cannot be negative"):
        value_replicas(1, pods(1), -1, metric="m", target=1, tolerances=TEN_PERCENT)
    with pytest.raises(MetricError, match="cannot be negative"):
        per_pod_replicas(1, -1, metric="m", target=1, tolerances=TEN_PERCENT)


@given(
    st.lists(st.integers(0, 5000), min_size=1, max_size=30), st.integers(1, 200), st.integers(0, 5), st.integers(0, 5)
)
def test_missing_and_unready_pods_only_ever_soften(values, target, missing, pending):
    settled = pods(len(values))
    plain = by_utilization(len(values), settled, readings(*values), target).replicas
    disturbed = [*settled, *pods(missing, first=100), *pods(pending, "Pending", first=200)]
    current = len(disturbed)
    got = by_utilization(current, disturbed, readings(*values), target).replicas
    ratio = math.floor(100 * sum(values) / (1000 * len(values))) / target
    if ratio > 1:
        assert got >= current
    elif ratio < 1:
        assert got <= current
        assert got >= min(plain, current)


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=30), st.integers(1, 200))
def test_demand_is_the_load_in_replicas_whatever_their_number(values, target):
    got = by_utilization(len(values), pods(len(values)), readings(*values), target).demand
    assert got == pytest.approx(sum(values) / 1000 / (target / 100))


# Ten pods at their target, and pods without a reading; the load in replicas that this shows
WITHOUT = {
    "ready since after the readings, as after a rise or in a rolling update: they have taken none of it": (
        pods(5, first=100, ready_since=1e6 + 1),
        10,
    ),
    "ready in the middle of the readings": (pods(5, first=100, ready_since=1e6 - 30), 12.5),
    "ready long ago, and never measured: they take their share": (pods(5, first=100, ready_since=0.0), 15),
    "unready": (pods(5, first=100, ready="False"), 10),
}


@pytest.mark.parametrize(("without", "demand"), WITHOUT.values(), ids=WITHOUT)
def test_pods_without_a_reading_count_for_the_load_that_they_can_have_taken(without, demand):
    got = by_utilization(10, [*pods(10), *without], readings(*[500] * 10), 50)
    assert got.demand == pytest.approx(demand)


def test_a_total_without_any_ready_pod_gives_no_load_and_not_zero():
    starting = pods(3, "Pending", ready="False")
    assert value_replicas(3, starting, 9000, metric="m", target=1000, tolerances=TEN_PERCENT).demand is None
    assert value_replicas(0, [], 9000, metric="m", target=1000, tolerances=TEN_PERCENT).demand == 9
