from dataclasses import replace

import pytest

from concerto.api.poddisruptionbudget import DisruptionBudget
from concerto.api.podreservation import Assignment
from concerto.api.schedulingprofile import PreemptionSettings
from concerto.api.selectors import LabelSelector, Requirement
from concerto.scheduling.preemption.preemption import PATIENCE_SECONDS, Preemption
from concerto.scheduling.preemption.search import NO_REMAINDER
from support.scheduling_builders import NOW, capacity, cluster_state, node, pod, profile

LOW, MID, HIGH, PLACEHOLDER = 0, 100, 1000, -1000
CREATED = 1772366400.0  # of the builders' pods
SOON = CREATED + 1.0
ROOM = 50.0


def on(name, where, priority=LOW, cpu="", **over):
    status = {"startTime": "2026-03-01T12:00:00Z", **over.pop("status", {})}
    return pod(name, nodeName=where, priority=priority, requests={"cpu": cpu} if cpu else None, status=status, **over)


def asking(priority=HIGH, cpu="", **over):
    return pod("asks", priority=priority, requests={"cpu": cpu} if cpu else None, **over)


def cluster_of(*pods, nodes="ab", room=ROOM, **over):
    made = cluster_state(
        [node(name, **over) for name in nodes],
        pods,
        [capacity(name, room[name] if isinstance(room, dict) else room, at=SOON) for name in nodes],
    )
    for name in nodes:
        made.ledger.nodes.get(name).last_status_at = SOON
        made.measured.update(made.row_of[name])
    return made


def preempt(cluster, asks, *, at=SOON, **settings):
    search = Preemption(cluster, profile(**settings), asks, at)
    outcome = search.begin(asks)
    if outcome is None:
        while search.look_at_next(asks):
            pass
        outcome = search.take(asks)
    return outcome


def chosen(outcome):
    """Node, and names of the victims."""
    assert outcome.candidate is not None, outcome.message
    return outcome.candidate.node, [victim.name for victim in outcome.candidate.victims.pods]


FOUND = {
    "a pod with requests on a full node": (
        cluster_of(on("v", "a", LOW, "4"), on("o", "b", HIGH, "4")),
        asking(HIGH, "1"),
        ("a", ["v"]),
    ),
    "the node whose most important victim is the least important": (
        cluster_of(on("v", "a", MID, "4"), on("w", "b", LOW, "4")),
        asking(HIGH, "1"),
        ("b", ["w"]),
    ),
    "no more than has to go": (
        cluster_of(on("v", "a", LOW, "2"), on("w", "a", MID, "2"), nodes="a"),
        asking(HIGH, "2"),
        ("a", ["v"]),
    ),
    "the owner of a host port": (
        cluster_of(on("v", "a", containers=[{"name": "c", "ports": [{"hostPort": 80}]}]), on("o", "a"), nodes="a"),
        asking(HIGH, containers=[{"name": "c", "ports": [{"hostPort": 80}]}]),
        ("a", ["v"]),
    ),
    "a pod for a unit of measured capacity": (
        cluster_of(on("v", "a"), on("o", "b", HIGH), room=1.0),
        asking(),
        ("a", ["v"]),
    ),
    "as many as make up for a node that is over its capacity": (
        cluster_of(on("v1", "a"), on("v2", "a"), on("v3", "a", MID), on("o", "a", HIGH), nodes="a", room=2.0),
        asking(),
        ("a", ["v3", "v1", "v2"]),
    ),
    "a placeholder without requests": (
        cluster_of(on("v", "a", PLACEHOLDER), on("o", "a", LOW), nodes="a", room=2.0),
        asking(LOW),
        ("a", ["v"]),
    ),
    "a placeholder with requests": (
        cluster_of(on("v", "a", PLACEHOLDER, "2"), on("o", "a", LOW, "2"), nodes="a"),
        asking(LOW, "2"),
        ("a", ["v"]),
    ),
    "one whose deletion has begun already": (
        cluster_of(on("v", "a", LOW, "4", deleting=True), nodes="a"),
        asking(HIGH, "1"),
        ("a", ["v"]),
    ),
}


@pytest.mark.parametrize(("cluster", "asks", "expected"), FOUND.values(), ids=FOUND)
def test_pods_that_make_room(cluster, asks, expected):
    outcome = preempt(cluster, asks)
    assert chosen(outcome) == expected
    node_, victims = expected
    assert outcome.message == (
        f"preemption: found a potential placement for pod on node {node_}, preempting {len(victims)} victims"
    )
    assert not outcome.withdraws


NOT_FOUND = {
    "nobody of lower priority": (
        cluster_of(on("v", "a", HIGH, "4"), on("w", "b", MID, "4")),
        asking(MID, "1"),
        "0/2 nodes are available: 2 No preemption victims found for incoming pod.",
    ),
    "too little even without all of lower priority": (
        cluster_of(on("v", "a", LOW, "1"), on("o", "a", HIGH, "3"), nodes="a"),
        asking(HIGH, "2"),
        "0/1 nodes are available: 1 Insufficient cpu.",
    ),
    "nodes that refuse the pod whatever runs there": (
        cluster_of(on("v", "a", LOW, "4"), on("w", "b", LOW, "4"), unschedulable=True),
        asking(HIGH, "1"),
        "0/2 nodes are available: 2 Preemption is not helpful for scheduling.",
    ),
    "a pod that no node takes, refused for its requests first": (
        cluster_of(on("v", "a", LOW, "4"), on("w", "b", LOW, "4")),
        asking(HIGH, "1", workloadRef={"name": "w", "podGroup": "g"}),
        "0/2 nodes are available: 2 pod has workload reference, which Concerto does not evaluate.",
    ),
    "a node without room that lacks what no eviction gives it": (
        cluster_of(on("v", "a", LOW, "4"), on("w", "b", LOW, "4"), on("o", "c", HIGH, "4"), nodes="abc"),
        asking(HIGH, "1", hostNetwork=True, hostUsers=False),
        "0/3 nodes are available: 1 No preemption victims found for incoming pod, "
        "2 node(s) didn't match Pod's required features.",
    ),
    "a node that has too little room even so, before what no eviction gives it": (
        cluster_of(on("v", "a", LOW, "1"), on("o", "a", HIGH, "3"), nodes="a"),
        asking(HIGH, "2", hostNetwork=True, hostUsers=False),
        "0/1 nodes are available: 1 Insufficient cpu.",
    ),
    "measured capacity, of equal priority": (
        cluster_of(on("v", "a"), on("w", "b"), room=1.0),
        asking(LOW),
        "0/2 nodes are available: 2 No preemption victims found for incoming pod.",
    ),
}


@pytest.mark.parametrize(("cluster", "asks", "message"), NOT_FOUND.values(), ids=NOT_FOUND)
def test_where_preemption_does_not_help(cluster, asks, message):
    outcome = preempt(cluster, asks)
    assert (outcome.message, outcome.candidate, outcome.withdraws) == (f"preemption: {message}", None, True)


def test_a_profile_can_keep_pods_from_being_evicted_for_measured_capacity_alone():
    cluster = cluster_of(on("v", "a"), on("w", "b", LOW, "4"), room={"a": 1.0, "b": ROOM})
    never = {"preemption": PreemptionSettings("Never")}
    outcome = preempt(cluster_of(on("v", "a"), nodes="a", room=1.0), asking(), **never)
    assert outcome.message == "preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."
    assert chosen(preempt(cluster, asking(HIGH, "1"), **never)) == ("b", ["w"])


def test_a_pod_with_policy_never_evicts_nobody_and_keeps_its_nomination():
    cluster = cluster_of(on("v", "a", LOW, "4"), nodes="a")
    outcome = preempt(cluster, asking(HIGH, "1", preemptionPolicy="Never"))
    assert outcome.message == "preemption: not eligible due to preemptionPolicy=Never."
    assert (outcome.candidate, outcome.withdraws) == (None, False)


def terminating(name, where, priority=LOW, cpu="4", reason="PreemptionByScheduler"):
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason}
    return on(name, where, priority, cpu, deleting=True, status={"conditions": [condition]})


def test_while_its_victims_end_a_pod_evicts_nobody_else():
    cluster = cluster_of(terminating("v", "a"), on("w", "b", LOW, "4"))
    asks = asking(HIGH, "1", status={"nominatedNodeName": "a"})
    cluster.set_pod(asks, SOON)
    outcome = preempt(cluster, asks)
    assert outcome.message == "preemption: not eligible due to a terminating pod on the nominated node."
    assert not outcome.withdraws


@pytest.mark.parametrize(
    "other",
    [terminating("v", "a", HIGH), terminating("v", "a", reason="EvictionByEvictionAPI")],
    ids=["of its own priority", "evicted by somebody else"],
)
def test_it_does_not_wait_for_the_end_of_a_pod(other):
    cluster = cluster_of(other, on("w", "b", LOW, "4"))
    asks = asking(HIGH, "1", status={"nominatedNodeName": "a"})
    cluster.set_pod(asks, SOON)
    assert preempt(cluster, asks).candidate is not None


def test_if_its_nominated_node_has_become_hopeless_it_evicts_pods_elsewhere():
    cluster = cluster_of(terminating("v", "a"), on("w", "b", LOW, "4"))
    asks = asking(HIGH, "1", status={"nominatedNodeName": "a"})
    cluster.set_pod(asks, SOON)
    cluster.set_node(node("a", unschedulable=True))
    assert chosen(preempt(cluster, asks)) == ("b", ["w"])


def test_an_interrupted_preemption_goes_on_where_it_was_begun():
    cluster = cluster_of(on("v", "a", MID, "4"), on("w", "b", LOW, "4"))
    asks = asking(HIGH, "1", status={"nominatedNodeName": "a"})
    cluster.set_pod(asks, SOON)
    assert chosen(preempt(cluster, asks)) == ("a", ["v"])


def test_room_that_was_made_for_others_is_not_counted_on():
    cluster = cluster_of(on("v", "a", LOW, "2"), on("w", "a", MID, "2"), nodes="a")
    cluster.set_pod(pod("first", priority=HIGH, requests={"cpu": "2"}, status={"nominatedNodeName": "a"}), SOON)
    assert chosen(preempt(cluster, asking(HIGH, "1"))) == ("a", ["w", "v"])
    cluster = cluster_of(on("v", "a", LOW, "2"), on("w", "a", MID, "2"), nodes="a")
    cluster.set_pod(pod("first", priority=MID, requests={"cpu": "2"}, status={"nominatedNodeName": "a"}), SOON)
    assert chosen(preempt(cluster, asking(HIGH, "1"))) == ("a", ["v"])


def test_a_budget_is_respected_if_another_node_has_victims_without_one():
    cluster = cluster_of(on("v", "a", LOW, "4", labels={"app": "v"}), on("w", "b", MID, "4", labels={"app": "w"}))
    selector = LabelSelector((Requirement("app", "In", ("v",)),))
    cluster.budgets.set(DisruptionBudget("default", "b", selector, 0))
    assert chosen(preempt(cluster, asking(HIGH, "1"))) == ("b", ["w"])
    cluster.budgets.remove("default", "b")
    assert chosen(preempt(cluster, asking(HIGH, "1"))) == ("a", ["v"])


def test_it_does_not_evict_for_a_node_that_only_starts_pods_one_by_one():
    cluster = cluster_state([node("a")], [on("v", "a")], [capacity("a", 1.0, room=5.0)])
    cluster.assume(pod("placed"), Assignment("default", "placed", "uid-placed", "a", "Capacity", "1", 1.0), NOW)
    cluster.confirm("uid-placed")
    cluster.ledger.nodes.get("a").last_status_at = SOON
    cluster.measured.update(0)
    outcome = preempt(cluster, asking())
    assert outcome.message == (
        "preemption: not needed: 1 node(s) can take the pod once those that were just placed there have started, "
        "or their agent has reported."
    )
    assert (outcome.candidate, outcome.withdraws) == (None, False)
    assert preempt(cluster, asking(), at=CREATED + PATIENCE_SECONDS).candidate is not None


def test_a_search_goes_on_where_the_one_before_it_ended():
    names = [f"n{number:03}" for number in range(300)]
    cluster = cluster_of(*(on(f"v-{name}", name, LOW, "4") for name in names), nodes=names)
    remainder, found = NO_REMAINDER, []
    for turn in range(4):
        asks = pod(f"p{turn}", priority=HIGH, requests={"cpu": "3"})
        search = Preemption(cluster, profile(), asks, SOON, 290, replace(remainder, candidates=()))
        while search.look_at_next(asks):
            pass
        remainder = search.remainder
        found.append({each.node for each in remainder.candidates})
    assert [remainder.next_node, *map(len, found)] == ["n090", 100, 100, 100, 100]
    assert found[0] == {*names[290:], *names[:90]}
    assert not found[0] & found[1] and not found[1] & found[2]
    assert found[3] == found[0]
    cluster.remove_pod("uid-v-n090")  # so there is nobody to evict on the node
    search = Preemption(cluster, profile(), asks, SOON, 0, replace(remainder, candidates=()))
    search.look_at_next(asks)
    assert search.remainder.next_node == "n092"


def test_alike_pods_are_given_different_victims():
    cluster = cluster_of(on("v", "a", LOW, "4"), on("w", "b", LOW, "4"))
    pods = [pod(f"p{i}", priority=HIGH, requests={"cpu": "3"}) for i in range(3)]
    search = Preemption(cluster, profile(), pods[0], SOON)
    while search.look_at_next(pods[0]):
        pass
    nodes = []
    for each in pods[:2]:
        candidate = search.take(each).candidate
        nodes.append(candidate.node)
        cluster.nominations.nominate(each, candidate.node)
    assert sorted(nodes) == ["a", "b"]
    assert search.take(pods[2]).candidate is None


def test_it_does_not_evict_on_a_node_whose_agent_is_about_to_report():
    rationed = [on(f"v{i}", "a") for i in range(5)]
    cluster = cluster_state([node("a"), node("b")], [*rationed, on("o", "b", HIGH)], [capacity("b", 0.0, at=SOON)])
    cluster.ledger.nodes.get("b").last_status_at = SOON
    cluster.measured.update(cluster.row_of["b"])
    assert preempt(cluster, asking()).message.startswith("preemption: not needed: 1 node(s)")
    assert chosen(preempt(cluster, asking(), at=CREATED + PATIENCE_SECONDS))[0] == "a"


def test_a_mirror_pod_is_not_evicted_as_its_kubelet_would_run_it_on():
    mirror = {"kubernetes.io/config.mirror": "x"}
    cluster = cluster_of(on("static", "a", LOW, "4", annotations=mirror), on("w", "b", MID, "4"))
    assert chosen(preempt(cluster, asking(HIGH, "1"))) == ("b", ["w"])


def test_of_two_that_are_nominated_for_the_same_room_the_earlier_one_counts_on_it():
    cluster = cluster_of(on("o", "a", HIGH, "2"), on("v", "b", LOW, "4"))
    one, two = (pod(f"p{i}", priority=HIGH, requests={"cpu": "2"}, status={"nominatedNodeName": "a"}) for i in range(2))
    for each in (one, two):
        cluster.set_pod(each, SOON)
    assert not cluster.nominations.beside(one, "a")
    assert [each.name for each in cluster.nominations.beside(two, "a")] == ["p0"]
    assert chosen(preempt(cluster, two)) == ("b", ["v"])


def test_a_nominated_node_that_takes_the_pod_now_is_not_hopeless():
    cluster = cluster_of(on("w", "b", LOW, "4"))
    asks = asking(HIGH, "1", status={"nominatedNodeName": "a"})
    cluster.set_pod(asks, SOON)
    assert not Preemption(cluster, profile(), asks, SOON).is_hopeless_where_nominated(asks)
    cluster.set_node(node("a", unschedulable=True))
    assert Preemption(cluster, profile(), asks, SOON).is_hopeless_where_nominated(asks)


def test_a_pod_whose_binding_may_still_fail_is_not_evicted():
    cluster = cluster_of(on("o", "b", HIGH, "4"))
    cluster.assume(
        pod("v", requests={"cpu": "4"}), Assignment("default", "v", "uid-v", "a", "Capacity", "1", 1.0), SOON
    )
    assert preempt(cluster, asking(HIGH, "1")).candidate is None
    cluster.confirm("uid-v")
    assert chosen(preempt(cluster, asking(HIGH, "1"))) == ("a", ["v"])


def test_it_waits_for_the_room_that_was_made_for_it_if_its_node_only_starts_pods_one_by_one():
    cluster = cluster_state([node("a"), node("b")], [on("v", "a"), on("w", "b")], [capacity("a", 1.0, room=5.0)])
    cluster.set_capacity(capacity("b", 1.0, at=SOON), SOON)
    cluster.assume(pod("placed"), Assignment("default", "placed", "uid-placed", "a", "Capacity", "1", 1.0), NOW)
    cluster.confirm("uid-placed")
    for name in "ab":
        cluster.ledger.nodes.get(name).last_status_at = SOON
        cluster.measured.update(cluster.row_of[name])
    asks = asking(HIGH, status={"nominatedNodeName": "a"})
    cluster.set_pod(asks, SOON)
    late = CREATED + PATIENCE_SECONDS
    assert preempt(cluster, asks, at=late).message.startswith("preemption: not needed: 1 node(s)")
    assert preempt(cluster, pod("other", priority=HIGH), at=late).candidate is not None
