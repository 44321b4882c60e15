"""Pods that run without end cost what they were measured to use, whatever others of their images did."""

from __future__ import annotations

import pytest

from concerto.api.pod_kind import kind_of
from concerto.capacity.kinds.cluster_kinds import ClusterKinds
from concerto.capacity.kinds.cost import estimate
from concerto.capacity.kinds.sums import PodMeasurement
from concerto.capacity.kinds.table import NodeKinds

SERVICE = kind_of("shop", "Deployment", "api", (("main", "python:3"),))
OTHERS = {
    "another namespace": kind_of("batch", "Job", "train", (("run", "python:3"),)),
    "the same one": kind_of("shop", "Job", "train", (("run", "python:3"),)),
}


def table(other, share, others_share, pods, seconds):
    node = NodeKinds()
    for _ in range(60):
        node.pod_ended(other, PodMeasurement(others_share * 100.0, 100.0, 100.0, 4e9, True), 0.0)
    running = PodMeasurement(share * seconds, seconds, seconds, 1e8, False, share)
    return node.table([(SERVICE, running)] * pods, 0.0)


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize(("share", "others_share"), [(0.02, 4.0), (1.0, 0.001)])
def test_pods_that_have_run_for_an_hour_are_not_taken_for_others_of_their_images(other, share, others_share):
    cost = estimate(table(other, share, others_share, 10, 3600.0), SERVICE)
    assert cost.share == pytest.approx(share, rel=0.01, abs=0.02)
    assert cost.memory == pytest.approx(1e8, rel=0.3)
    assert (cost.work, cost.known) == (None, True)


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_pods_that_have_just_begun_say_little_beside_what_their_images_cost_before(other):
    assert estimate(table(other, 0.02, 4.0, 10, 10.0), SERVICE).share == pytest.approx(4.0)


def test_a_release_that_runs_without_end_goes_by_its_own_pods_after_a_minute():
    release = kind_of("shop", "Deployment", "api", (("main", "python:4"),))
    node = NodeKinds()
    for _ in range(20):
        node.pod_ended(SERVICE, PodMeasurement(50.0, 100.0, 100.0, 1e8, True), 0.0)
    for seconds, share in ((10.0, 0.5), (3600.0, 2.0)):
        running = PodMeasurement(2.0 * seconds, seconds, seconds, 1e8, False, 2.0)
        cost = estimate(node.table([(release, running)] * 10, 0.0), release)
        assert cost.share == pytest.approx(share, rel=0.1)


def running(seconds, share, memory=1e8):
    return PodMeasurement(share * seconds, seconds, seconds, memory, False, share)


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize(("share", "others_share"), [(0.02, 4.0), (1.0, 0.001)])
def test_pods_that_have_run_for_long_count_while_many_more_of_them_start(other, share, others_share):
    node = NodeKinds()
    for _ in range(60):
        node.pod_ended(other, PodMeasurement(others_share * 100.0, 100.0, 100.0, 4e9, True), 0.0)
    pods = [running(300.0, share)] * 10 + [running(6.0, share)] * 60
    cost = estimate(node.table([(SERVICE, pod) for pod in pods], 0.0), SERVICE)
    assert cost.share == pytest.approx(share, rel=0.1, abs=0.1)
    assert cost.memory <= 4e8


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_pods_that_have_run_for_long_count_while_more_of_them_start_on_many_other_nodes(other):
    cluster, batch = ClusterKinds(), NodeKinds()
    for _ in range(60):
        batch.pod_ended(other, PodMeasurement(400.0, 100.0, 100.0, 4e9, True), 0.0)
    cluster.set_node("batch", batch.table([], 0.0), 8.0)
    for number in range(12):
        pods = [(SERVICE, running(3600.0 if number < 2 else 6.0, 0.02))] * 5
        cluster.set_node(f"n{number}", NodeKinds().table(pods, 0.0), 8.0)
    assert estimate(cluster.table(), SERVICE).share < 0.5


def test_the_next_pod_of_a_service_has_room_for_as_much_memory_as_its_largest_one_also_after_another_has_ended():
    node = NodeKinds()
    pods = [(SERVICE, running(3600.0, 0.02, memory)) for memory in [1e8] * 9 + [5e8]]
    assert estimate(node.table(pods, 0.0), SERVICE).memory == pytest.approx(5e8)
    node.pod_ended(SERVICE, PodMeasurement(72.0, 3600.0, 3600.0, 1e8, True), 0.0)
    assert estimate(node.table(pods, 0.0), SERVICE).memory == pytest.approx(5e8, rel=0.1)
