import pytest

from concerto.scheduling.gangs.gang import MAX_PODS, Gang, NotReady, gang_of
from support.gang_builders import add, group, member, members
from support.scheduling_builders import cluster_state, node, pod

KEY = ("default", "g")


def gang(*things, of=None):
    """What the first pod is placed with, in a cluster of one node `n` that has seen these."""
    cluster = cluster_state([node("n")])
    add(cluster, *things)
    return gang_of(cluster, of or next(each for each in things if hasattr(each, "shape")))


def test_a_pod_without_a_group_or_of_a_basic_group_is_placed_by_itself():
    assert gang(pod("alone")) is None
    assert gang(group("g", None), member("a")) is None


def test_a_gang_is_all_pods_that_wait_once_enough_are_there():
    pods = members(3)
    assert gang(group("g", 2), *pods) == Gang(KEY, tuple(pods), 2, 2)
    assert gang(group("g", 2), *pods).spare == 1
    assert gang(group("g", 3), *pods).spare == 0


NOT_READY = {
    "no group": ([], members(2), "waiting for PodGroup g to appear", "WaitingForPodGroup"),
    "too few pods": (
        [group("g", 3)], members(2), "waiting for 3 pods of PodGroup g, of which 2 are there", "WaitingForPodGroup",
    ),
    "a pod with a scheduling gate is not there yet": (
        [group("g", 2)], [member("a"), member("b", schedulingGates=[{"name": "x"}])],
        "waiting for 2 pods of PodGroup g, of which 1 are there", "WaitingForPodGroup",
    ),
    "a pod that is deleted is not there any more": (
        [group("g", 2)], [member("a"), member("b", deleting=True)],
        "waiting for 2 pods of PodGroup g, of which 1 are there", "WaitingForPodGroup",
    ),
    "an absurd number of pods": (
        [group("g", 2**31 - 1)], members(2),
        f"PodGroup g needs {2**31 - 1} pods at once, and Concerto places at most {MAX_PODS} at once", "SchedulerError",
    ),
    "a field that is not evaluated": (
        [group("g", 2, schedulingConstraints={"topology": [{"key": "zone"}]})], members(2),
        "PodGroup g has schedulingConstraints, which Concerto does not evaluate", "SchedulerError",
    ),
    "the same of a basic group": (
        [group("g", None, parentCompositePodGroupName="p")], members(2),
        "PodGroup g has parentCompositePodGroupName, which Concerto does not evaluate", "SchedulerError",
    ),
    "two schedulers": (
        [group("g", 2)], [member("a"), member("b", schedulerName="other")],
        "all pods in a single pod group should have the same .spec.schedulerName set, got concerto and other",
        "SchedulerError",
    ),
    "another priority than the group's": (
        [group("g", 2, priority=5)], [member("a", priority=5), member("b", priority=7)],
        "all pods in a single pod group should have the same priority as the pod group's priority, got 7 and 5",
        "SchedulerError",
    ),
    "different priorities": (
        [group("g", 2)], [member("a", priority=5), member("b", priority=7)],
        "all pods in a single pod group should have the same priority, got 5 and 7", "SchedulerError",
    ),
    "another priority on a node": (
        [group("g", 2)], [member("a"), member("b", priority=7, nodeName="n")],
        "all pods in a single pod group should have the same priority, got 0 and 7", "SchedulerError",
    ),
    "different preemption policies": (
        [group("g", 2)], [member("a"), member("b", preemptionPolicy="Never")],
        "all pods in a single pod group should have the same preemption policy, got PreemptLowerPriority and Never",
        "SchedulerError",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("groups", "pods", "message", "reason"), NOT_READY.values(), ids=NOT_READY)
def test_a_group_that_is_not_ready_says_why(groups, pods, message, reason):
    found = gang(*pods, *groups)
    assert isinstance(found, NotReady)
    assert (found.key, found.message, found.reason) == (KEY, message, reason)
    assert {each.name for each in found.members} == {each.name for each in pods if each.waiting}


def test_pods_on_nodes_count_and_later_pods_are_placed_by_themselves():
    there = [member("x", nodeName="n"), member("y", nodeName="n")]
    late = member("late")
    assert gang(group("g", 2), *there, late, of=late) is None
    assert gang(group("g", 3), *there, late, of=late) == Gang(KEY, (late,), 1, 3)
    assert gang(group("g", 4), *there, late, of=late).message.endswith("4 pods of PodGroup g, of which 3 are there")


def test_a_pod_with_a_scheduling_gate_is_not_compared_with_the_others():
    pods = members(2)
    gated = member("gated", priority=7, schedulerName="other", schedulingGates=[{"name": "x"}])
    assert gang(group("g", 2), *pods, gated) == Gang(KEY, tuple(pods), 2, 2)


def test_large_pods_are_looked_at_first():
    pods = [member("small", requests={"cpu": "1"}), member("large", requests={"cpu": "3"}), member("none")]
    assert [each.name for each in gang(group("g", 3), *pods).members] == ["large", "small", "none"]


def test_no_more_pods_than_one_cycle_places_are_in_a_gang():
    found = gang(group("g", 2), *members(MAX_PODS + 5))
    assert (len(found.members), found.needed) == (MAX_PODS, 2)


def test_what_is_to_be_finished_is_a_gang_whatever_has_become_of_the_group():
    cluster = cluster_state([node("n")])
    bound, a, b, other = member("bound", nodeName="n"), member("a"), member("b"), member("other")
    add(cluster, bound, a, b, other)
    cluster.pod_groups.must_finish(KEY, a.uid, "n")
    cluster.pod_groups.must_finish(KEY, b.uid, "n")
    assert gang_of(cluster, other) == Gang(KEY, (a, b), 1, 2, begun=True, others=(other,))
