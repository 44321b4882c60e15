"""What nodes measured that have gone counts until others have measured enough, whatever any one node does."""

from __future__ import annotations

import pytest

from concerto.api.pod_kind import kind_of
from concerto.capacity.kinds.cluster_kinds import ClusterKinds
from concerto.capacity.kinds.cost import estimate
from concerto.capacity.kinds.sums import KindSums, PodMeasurement
from concerto.capacity.kinds.table import MAX_ENTRIES, NodeKinds

JOB = kind_of("shop", "Job", "pi", (("main", "pi:1"),))
CORES = 8.0


def table_of(*pods):
    node = NodeKinds()
    for pod in pods:
        if pod.ended:
            node.pod_ended(JOB, pod, 0.0)
    return node.table([(JOB, pod) for pod in pods if not pod.ended], 0.0)


def ended(work):
    return PodMeasurement(work, 4.0, 4.0, 1e8, True)


JUST_BEGUN = PodMeasurement(0.2, 1.0, 1.0, 5e7, False, recent=0.2)
OTHERS = {
    "runs its first pod": [JUST_BEGUN],
    "has seen one pod end": [ended(4.0)],
    "has seen four pods end": [ended(4.0)] * 4,
}


@pytest.mark.parametrize("restarts", [0, 1])
@pytest.mark.parametrize("pods", OTHERS.values(), ids=OTHERS)
def test_a_node_that_goes_takes_nothing_along_while_another(pods, restarts):
    cluster = ClusterKinds()
    cluster.set_node("old", table_of(*[ended(2.0)] * 60), CORES)
    cluster.set_node("new", table_of(*pods), CORES)
    before = estimate(cluster.table(), JOB)
    cluster.remove_node("old")
    for _ in range(restarts):
        published, cluster = cluster.table(), ClusterKinds()
        cluster.begin_with(published)
        cluster.set_node("new", table_of(*pods), CORES)
        cluster.all_read()
    after = estimate(cluster.table(), JOB)
    assert (after.basis, after.share) == ("Ended", pytest.approx(before.share, rel=0.1))
    assert after.pods == pytest.approx(before.pods, rel=0.1)


def test_what_has_gone_counts_no_more_once_the_other_node_has_measured_enough():
    cluster = ClusterKinds()
    cluster.set_node("old", table_of(*[ended(2.0)] * 60), CORES)
    cluster.set_node("new", table_of(ended(4.0)), CORES)
    cluster.remove_node("old")
    cluster.set_node("new", table_of(*[ended(4.0)] * 5), CORES)
    assert estimate(cluster.table(), JOB).share == pytest.approx(1.0)


def test_nodes_that_come_and_go_are_counted_for_no_more_pods_than_are_remembered_of_one():
    cluster = ClusterKinds()
    cluster.set_node("stays", table_of(JUST_BEGUN), CORES)
    for _ in range(100):
        cluster.set_node("flaps", table_of(*[ended(2.0)] * 3), CORES)
        cluster.remove_node("flaps")
    assert cluster.table()[JOB.key].ended <= 64.0 * (1 + 1e-9)


HUGE = KindSums(ended=1e6, work=1e30, held=1e30, life=1e30)


def made_up(number):
    return {f"evil/Job/{number}-{i}@x": HUGE for i in range(MAX_ENTRIES)}


def one_more(number):
    return {f"evil/Job/{number}@x": HUGE}


@pytest.mark.parametrize("made_up", [made_up, one_more], ids=["many at once", "one after the other"])
@pytest.mark.parametrize("goes", [False, True], ids=["it stays", "it goes each time"])
def test_a_node_that_knows_other_kinds_each_time_makes_nobody_forget_what_those_that_have_gone_measured(made_up, goes):
    cluster = ClusterKinds()
    for number in range(3):
        cluster.set_node(f"old{number}", table_of(*[ended(2.0)] * 20), CORES)
    cluster.table()
    for number in range(3):
        cluster.remove_node(f"old{number}")
    for number in range(3 if made_up(0).keys() - one_more(0).keys() else 3 * MAX_ENTRIES):
        cluster.set_node("liar", made_up(number), CORES)
        if goes:
            cluster.remove_node("liar")
        assert len(cluster.published(1)) <= MAX_ENTRIES
    assert estimate(cluster.table(), JOB).share == pytest.approx(0.5)
    assert len(cluster.table()) <= 3 * MAX_ENTRIES


def test_what_an_earlier_process_has_merged_is_not_forgotten_for_what_one_node_makes_up():
    cluster = ClusterKinds()
    cluster.begin_with(table_of(*[ended(2.0)] * 20))
    cluster.all_read()
    for number in range(5):
        cluster.set_node("liar", made_up(number), CORES)
        cluster.table()
    assert estimate(cluster.table(), JOB).share == pytest.approx(0.5)
