"""Counts of a PodGroup's pods: as if all pods were counted anew, at a cost that does not grow with them."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from concerto.api.podreservation import Assignment
from concerto.scheduling.gangs.gang import Gang, NotReady, gang_of
from concerto.scheduling.state.cluster import ClusterState
from concerto.scheduling.state.group_members import place_of
from support.gang_builders import add, group, member
from support.scheduling_builders import NOW, cluster_state, node
from support.step_counts import steps_of

KEY = ("default", "g")
PODS = 6


def assume(cluster: ClusterState, name: str) -> None:
    cluster.assume(member(name), Assignment("default", name, f"uid-{name}", "n", "Capacity", "1", 1.0), NOW)


ACTIONS = (
    lambda cluster, name, over: cluster.set_pod(member(name, **over), NOW),
    lambda cluster, name, over: cluster.set_pod(member(name, nodeName="n", **over), NOW),
    lambda cluster, name, over: cluster.set_pod(member(name, schedulingGates=[{"name": "x"}], **over), NOW),
    lambda cluster, name, over: cluster.set_pod(member(name, deleting=True, **over), NOW),
    lambda cluster, name, over: cluster.set_pod(member(name, nodeName="n", phase="Succeeded", **over), NOW),
    lambda cluster, name, over: cluster.set_pod(member(name, nodeName="m", deleting=True, **over), NOW),
    lambda cluster, name, over: cluster.set_pod(member(name, phase="Failed", **over), NOW),
    lambda cluster, name, over: cluster.remove_node("n"),
    lambda cluster, name, over: cluster.set_node(node("n")),
    lambda cluster, name, over: cluster.pod_groups.must_finish(KEY, f"uid-{name}", "m"),
    lambda cluster, name, over: cluster.remove_pod(f"uid-{name}"),
    lambda cluster, name, over: assume(cluster, name),
    lambda cluster, name, over: cluster.confirm(f"uid-{name}"),
    lambda cluster, name, over: cluster.forget(f"uid-{name}"),
)
DIFFERENT = ({}, {"requests": {"cpu": "1"}}, {"priority": 7}, {"schedulerName": "other"}, {"preemptionPolicy": "Never"})


@pytest.mark.parametrize("seed", range(30))
def test_counts_are_those_of_all_pods_whatever_has_happened(seed):
    chance, cluster = random.Random(seed), cluster_state([node("n")])
    for _ in range(200):
        chance.choice(ACTIONS)(cluster, f"p{chance.randrange(PODS)}", chance.choice(DIFFERENT))
        found, pods = cluster.pod_groups.of(KEY), cluster.pod_groups.members(KEY)
        placed = [pod for uid, pod in pods.items() if cluster.is_placed(uid)]
        waiting = [pod for uid, pod in pods.items() if pod.waiting and not cluster.is_placed(uid)]
        there = [*placed, *waiting]
        assert list(found.waiting()) == sorted(waiting, key=place_of)
        assert (found.placed, found.number_waiting) == (len(placed), len(waiting))
        assert found.bound == sum(cluster.is_bound(uid) or cluster.ledger.has_ended(uid) for uid in pods)
        assert found.schedulers == Counter(pod.scheduler_name for pod in pods.values())
        assert found.schedulers_there == Counter(pod.scheduler_name for pod in there)
        assert found.priorities_there == Counter(pod.priority for pod in there)
        assert found.preempting_there == Counter(pod.preempts for pod in there)


STATES = {"no PodGroup": ([], NotReady), "too few pods": ([group("g", 5000)], NotReady), "ready": ([group("g")], Gang)}


@pytest.mark.parametrize(("groups", "kind"), STATES.values(), ids=STATES)
def test_to_find_out_whether_a_gang_is_ready_costs_the_same_however_many_pods_it_has(groups, kind):
    def steps(count: int) -> int:
        cluster = cluster_state([node("n")])
        add(cluster, *groups, *(member(f"p{i}", requests={"cpu": f"{i + 1}m"}) for i in range(count)))
        found: list[object] = []
        spent = steps_of(lambda: found.append(gang_of(cluster, cluster.pod_groups.members(KEY)["uid-p0"])))
        assert isinstance(found[0], kind)
        return spent

    assert steps(3000) < 1.2 * steps(600)


def test_a_pod_of_a_large_gang_that_comes_or_is_assumed_costs_the_same_as_one_of_a_small_gang():
    def steps(count: int) -> int:
        cluster = cluster_state([node("n")])
        add(cluster, group("g"), *(member(f"p{i}", requests={"cpu": f"{i + 1}m"}) for i in range(count)))

        def change() -> None:
            add(cluster, member("new", requests={"cpu": "50m"}))
            assume(cluster, "p0")
            cluster.forget("uid-p0")

        return steps_of(change)

    assert steps(3000) < 1.3 * steps(300)
