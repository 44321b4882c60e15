"""Room is made for a gang as a whole, with the fewest victims, and for none of it alone."""

import contextlib

import numpy as np

from concerto.api.nodecputopology import CPUPools, NodeCPUTopology
from concerto.api.schedulingprofile import PreemptionSettings, WorkloadAwareSettings
from concerto.scheduling.gangs.gang import gang_of
from concerto.scheduling.gangs.preemption import GangPreemption, OutOfTime
from support.cluster_contents import state_of
from support.gang_builders import add, group, member, members
from support.scheduling_builders import NOW, capacity, cluster_state, node, pod, profile
from support.step_counts import steps_of
from support.topologies import machine

HIGH = {"priority": 100}
ONE_CPU = {"cpu": "1"}
ZONES = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "x"}}}
APART = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [ZONES]}}


def room(cluster, of="g", is_out_of_time=lambda: False, limit=100, **over):
    first = next(iter(cluster.pod_groups.members(("default", of)).values()))
    gang = gang_of(cluster, first)
    return GangPreemption(cluster, gang, profile(**over), NOW, np.random.default_rng(0)).find(limit, is_out_of_time)


def victims(found):
    return [each.name for each in found.victims.pods]


def full(*names, count=4, **over):
    """Nodes of 4 CPUs, each full of pods of one CPU and priority 0."""
    cluster = cluster_state([node(name) for name in names])
    for name in names:
        add(cluster, *(pod(f"{name}-{i}", nodeName=name, requests=ONE_CPU, **over) for i in range(count)))
    return cluster


def test_only_so_many_are_evicted_as_the_whole_gang_needs():
    cluster = full("a", "b")
    add(cluster, group("g", 6), *members(6, requests=ONE_CPU, **HIGH))
    found = room(cluster)
    assert len(found.victims.pods) == 6
    assert set(found.nodes) == {f"uid-g-{i}" for i in range(6)}
    assert set(found.nodes.values()) == {"a", "b"}


def test_free_room_is_taken_first():
    cluster = full("a", "b", count=3)
    add(cluster, group("g", 3), *members(3, requests=ONE_CPU, **HIGH))
    assert len(room(cluster).victims.pods) == 1


def test_pods_that_refuse_some_of_its_pods_by_their_labels_are_evicted_too():
    cluster = cluster_state([node("a")])
    add(cluster, pod("apart", nodeName="a", labels={"app": "x"}, affinity=APART))
    add(cluster, *(pod(f"full-{i}", nodeName="a", requests=ONE_CPU) for i in range(4)))
    others = [member(f"g-{i}", labels={"app": app}, **HIGH) for i, app in enumerate("yyx")]
    add(cluster, group("g", 3), *others)
    assert victims(room(cluster)) == ["apart"]


def test_no_pod_is_evicted_for_a_pod_that_another_of_the_gang_does_not_refuse():
    """The two of 2 CPUs differ only in the label by which the third refuses one of them."""
    cluster = cluster_state([node("a"), node("b")])
    add(cluster, *(pod(f"p{i}", nodeName="a", labels={"app": "z"}) for i in range(2)))
    add(cluster, pod("equal", nodeName="a", labels={"app": "z"}, **HIGH))
    two_cpus = [member(f"g-{i}", labels={"app": app}, requests={"cpu": "2"}, **HIGH) for i, app in ((1, "x"), (2, "z"))]
    add(cluster, group("g", 1), member("g-0", labels={"app": "x"}, affinity=APART, **HIGH), *two_cpus)
    assert room(cluster) is None


def test_nobody_is_evicted_if_the_whole_gang_would_not_fit():
    cluster = full("a", "b")
    add(cluster, group("g", 9), *members(9, requests=ONE_CPU, **HIGH))
    assert room(cluster) is None


def test_nobody_is_evicted_if_the_gang_fits_already():
    cluster = full("a", count=2)
    add(cluster, group("g", 2), *members(2, requests=ONE_CPU, **HIGH))
    assert room(cluster) is None


def test_pods_of_the_same_priority_stay():
    cluster = full("a", **HIGH)
    add(cluster, group("g", 2), *members(2, requests=ONE_CPU, **HIGH))
    assert room(cluster) is None


def test_the_least_important_go():
    cluster = cluster_state([node("a")])
    add(cluster, *(pod(f"p{i}", nodeName="a", requests=ONE_CPU, priority=i) for i in range(4)))
    add(cluster, group("g", 2), *members(2, requests=ONE_CPU, **HIGH))
    assert victims(room(cluster)) == ["p1", "p0"]


def test_a_node_that_no_eviction_would_mend_is_left_alone():
    cluster = full("a")
    cluster.set_node(node("b", unschedulable=True))
    add(cluster, *(pod(f"b-{i}", nodeName="b", requests=ONE_CPU, priority=-5) for i in range(4)))
    add(cluster, group("g", 2), *members(2, requests=ONE_CPU, **HIGH))
    assert {each.node_name for each in room(cluster).victims.pods} == {"a"}


def test_pods_that_keep_apart_from_the_gang_go_wherever_they_are():
    cluster = cluster_state([node("a"), node("b")])
    add(cluster, *(pod(f"x-{name}", nodeName=name, labels={"app": "x"}, affinity=APART) for name in "ab"))
    add(cluster, pod("other", nodeName="a"))
    add(cluster, group("g", 2), *members(2, labels={"app": "x"}, affinity=APART, **HIGH))
    found = room(cluster)
    assert sorted(victims(found)) == ["x-a", "x-b"]
    assert sorted(found.nodes.values()) == ["a", "b"]


def test_room_that_others_make_for_themselves_is_left_to_them():
    cluster = full("a", "b")
    nominated = pod("nominated", priority=200, requests={"cpu": "4"})
    add(cluster, nominated, group("g", 2), *members(2, requests=ONE_CPU, **HIGH))
    cluster.nominations.nominate(nominated, "a")
    assert set(room(cluster).nodes.values()) == {"b"}


def test_pods_beyond_min_count_go_along_where_there_is_room():
    cluster = full("a")
    add(cluster, group("g", 2), *members(6, requests=ONE_CPU, **HIGH))
    assert len(room(cluster).nodes) == 4


def test_a_search_that_takes_too_long_ends_and_leaves_all_as_it_was():
    for turns in range(40):
        cluster = full("a", "b")
        add(cluster, group("g", 6), *members(6, requests=ONE_CPU, **HIGH))
        before = state_of(cluster)
        left = iter([False] * turns)
        with contextlib.suppress(OutOfTime):
            assert room(cluster, is_out_of_time=lambda left=left: next(left, True)) is not None
        assert state_of(cluster) == before


def test_a_search_that_ends_by_an_error_leaves_all_as_it_was():
    cluster = full("a", "b")
    add(cluster, group("g", 6), *members(6, requests=ONE_CPU, **HIGH))
    before = state_of(cluster)
    for calls in range(1, 40):
        with contextlib.suppress(StopIteration):
            room(cluster, is_out_of_time=iter([False] * calls).__next__)
        assert state_of(cluster) == before, calls
        assert not any(cluster.is_placed(f"uid-g-{i}") for i in range(6))


def test_so_many_pods_are_taken_off_and_those_that_matter_least_first():
    cluster = full("a", priority=5)
    add(cluster, *(pod(f"b-{i}", nodeName="b", requests=ONE_CPU) for i in range(4)))
    cluster.set_node(node("b"))
    add(cluster, group("g", 5), *members(5, requests=ONE_CPU, **HIGH))
    assert room(cluster, limit=4) is None
    assert [each.node_name for each in room(cluster, limit=5).victims.pods] == ["a", "b", "b", "b", "b"]


def test_pods_that_are_not_taken_off_are_not_looked_at():
    def steps(count):
        cluster = full(*(f"n{n}" for n in range(10)), count=count)
        add(cluster, group("g", 4), *members(4, requests=ONE_CPU, **HIGH))
        return steps_of(lambda: room(cluster, limit=3))

    assert steps(80) < 1.5 * steps(8), "a cluster has 150,000 of them"


def test_nobody_is_evicted_from_a_measured_node_where_the_profile_forbids_to_for_measured_capacity():
    cluster = full("a", "b")
    cluster.set_capacity(capacity("a", 4.0), NOW)
    add(cluster, group("g", 2), *members(2, requests=ONE_CPU, **HIGH))
    found = room(cluster, preemption=PreemptionSettings(measured_capacity="Never"))
    assert {each.node_name for each in found.victims.pods} == {"b"}


def test_pods_that_get_cpus_of_their_own_are_counted_with_those_of_each_other():
    """One of three sockets stays shared, so a gang of two needs both others; with one, its victim would go in vain."""
    labels = {"concerto.dev/workload-type": "memory-bound"}
    cluster = cluster_state([node("a", allocatable={"cpu": 30_000})])
    cluster.set_topology(NodeCPUTopology("a", machine(3, 5, 2), CPUPools()))
    for i, cpu in enumerate(("0", "5")):
        add(cluster, pod(f"v{i}", nodeName="a", requests=ONE_CPU, labels=labels))
        cluster.set_cpu_binding(
            {
                "metadata": {"namespace": "default", "name": f"v{i}"},
                "spec": {"podName": f"v{i}", "exclusivenessLevel": "Socket"},
                "status": {"nodeName": "a", "cpus": cpu, "podUID": f"uid-v{i}", "resourceStatus": "Validated"},
            }
        )
    add(cluster, group("g", 2), *members(2, requests=ONE_CPU, labels=labels, **HIGH))
    before = state_of(cluster)
    sockets = WorkloadAwareSettings("Balanced", frozenset({"MemoryBoundExclusiveSockets"}))
    assert len(room(cluster, workload_aware=sockets).victims.pods) == 2
    assert state_of(cluster) == before
