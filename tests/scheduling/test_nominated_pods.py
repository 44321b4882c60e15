"""What a cycle leaves to pods that room is being made for, and what such pods take."""

import numpy as np
import pytest

from concerto.scheduling import evaluation, feasibility, reasons
from concerto.scheduling.cycle import schedule
from concerto.scheduling.state.changes import Change
from support.scheduling_builders import NOW, capacity, cluster_state, node, pod, profile
from support.volume_builders import claim, mounts, store, volume

HIGH, LOW = 100, 0


def decide(cluster, *heads):
    result = schedule(cluster, heads, {"concerto": profile()}, now=NOW, generator=np.random.default_rng(0))
    return {d.pod.name: d.assignment.node for d in result.decisions}, result.unschedulable


def nominated(name, where="a", priority=HIGH, **over):
    over.setdefault("requests", {"cpu": "3"})
    return pod(name, priority=priority, status={"nominatedNodeName": where}, **over)


def cluster_with(*waiting, nodes="a", room=10.0):
    return cluster_state([node(n) for n in nodes], waiting, [capacity(n, room) for n in nodes])


def asks(name="asks", priority=LOW, cpu="2", **over):
    return pod(name, priority=priority, requests={"cpu": cpu} if cpu else None, **over)


def test_room_that_is_made_for_a_pod_is_not_given_to_one_of_lower_or_the_same_priority():
    # whichever scheduler places the nominated pod: two schedulers would evict for each other without end
    for other in (nominated("n"), nominated("n", schedulerName="default-scheduler")):
        cluster = cluster_with(other)
        placed, (failure,) = decide(cluster, asks())
        assert placed == {}
        assert failure.diagnosis.message == "0/1 nodes are available: 1 Insufficient cpu."
        assert failure.diagnosis.resolvable.tolist() == [0]
        assert failure.diagnosis.requeue_on == Change.NODE | Change.ENDED | Change.CAPACITY, "no placement helps"
        assert decide(cluster, asks(priority=HIGH))[0] == {}
        assert decide(cluster, asks(cpu="1"))[0] == {"asks": "a"}


@pytest.mark.parametrize("first", ["refused", "taken"])
def test_a_nominated_pod_that_refuses_some_pods_distinguishes_them_from_others(first):
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "refused"}}}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    cluster = cluster_with(nominated("n", affinity=apart, requests={"cpu": "1"}))
    heads = [asks(app, cpu="500m", labels={"app": app}) for app in ("refused", "taken")]
    placed, _ = decide(cluster, *(heads if first == "refused" else heads[::-1]))
    assert placed == {"taken": "a"}
    for uid in ("uid-n", "uid-taken"):
        cluster.remove_pod(uid)
    assert cluster.signatures.of(heads[0]) == cluster.signatures.of(heads[1])


@pytest.mark.parametrize(("nodes", "placed"), [("a", {}), ("ab", {"asks": "b"})])
def test_a_nominated_pod_keeps_its_claim_for_one_pod_on_its_node(nodes, placed):
    cluster = cluster_with(nominated("n", requests=None, **mounts("data")), nodes=nodes)
    store(cluster, claim(accessModes=["ReadWriteOncePod"], volume="disk"), volume(claim="data"))
    found, failures = decide(cluster, asks(cpu="", **mounts("data")))
    assert found == placed
    assert all("ReadWriteOncePod access mode already in-use" in f.diagnosis.message for f in failures)


def test_a_pod_of_higher_priority_takes_the_room():
    assert decide(cluster_with(nominated("n", priority=LOW)), asks(priority=HIGH))[0] == {"asks": "a"}


def test_measured_room_is_kept_as_well():
    cluster = cluster_with(nominated("n", requests=None), room=1.0)
    placed, (failure,) = decide(cluster, asks(cpu=""))
    assert placed == {}
    assert failure.diagnosis.message == "0/1 nodes are available: 1 Insufficient measured capacity."


def test_other_nodes_are_taken_instead():
    assert decide(cluster_with(nominated("n"), nodes="ab"), asks(), asks("more"))[0] == {"asks": "b", "more": "b"}


def test_the_nominated_pod_takes_the_room_itself_whatever_node_is_better():
    waits = nominated("n")
    cluster = cluster_state([node("a"), node("b")], (), [capacity("a", 5.0), capacity("b", 50.0)])
    cluster.set_pod(waits, NOW)
    assert decide(cluster, waits)[0] == {"n": "a"}


def test_alike_nominated_pods_take_their_own_rooms():
    pods = [nominated(f"n{i}", where) for i, where in enumerate("abb")]
    cluster = cluster_with(*pods, nodes="ab")
    placed, failures = decide(cluster, *pods, asks("late", HIGH, "3"))
    # on b 4 cores are not enough for both: neither would get there if each left the room to the other
    assert placed == {"n0": "a", "n1": "b"}
    assert {f.pod.name for f in failures} == {"n2", "late"}


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_of_pods_of_one_second_the_one_that_was_nominated_first_gets_the_room(order):
    """The other one took it, and had no more pods evicted for itself; so the first one had none for 3 s."""
    waiting = {name: asks(name, HIGH, "3") for name in "ab"}
    cluster = cluster_with(*waiting.values(), nodes="x")
    for name in order:
        cluster.nominations.nominate(waiting[name], "x")
    assert decide(cluster, *waiting.values())[0] == {order[0]: "x"}
    cluster = cluster_with(*waiting.values(), nodes="xy")
    for name, where in [(order[0], "y"), (order[1], "x"), (order[0], "x")]:
        cluster.nominations.nominate(waiting[name], where)
    cluster.set_pod(pod("there", nodeName="y", requests={"cpu": "3"}), NOW)
    assert decide(cluster, *waiting.values())[0] == {order[1]: "x"}, "the other one came later"


def test_the_pods_of_two_schedulers_have_one_order_for_both():
    ours, theirs = (asks(name, HIGH, "3", schedulerName=name) for name in ("concerto", "other"))
    for order in ([ours, theirs], [theirs, ours]):
        cluster = cluster_with(*order, nodes="x")
        for each in order:
            cluster.nominations.nominate(each, "x")
        assert cluster.nominations.beside(ours, "x") == []
        assert cluster.nominations.beside(theirs, "x") == [ours]


def test_once_it_is_placed_it_is_counted_once():
    waits = nominated("n")
    cluster = cluster_with(waits)
    assert decide(cluster, waits, asks(cpu="1"), asks("more", cpu="1"))[0] == {"n": "a", "asks": "a"}


def test_without_room_on_its_node_it_goes_elsewhere():
    waits = nominated("n")
    cluster = cluster_with(waits, nodes="ab")
    cluster.set_pod(pod("there", nodeName="a", requests={"cpu": "3"}), NOW)
    assert decide(cluster, waits)[0] == {"n": "b"}
    cluster = cluster_with(nominated("m", "gone"), nodes="a")
    assert decide(cluster, nominated("m", "gone"))[0] == {"m": "a"}


AFFINITY = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
    {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "x"}}}]}}  # fmt: skip
ANTI = {"podAntiAffinity": AFFINITY["podAffinity"]}


@pytest.mark.parametrize(
    ("affinity", "nodes"), [(AFFINITY, {}), (ANTI, {"asks": "b"})], ids=["affinity to it", "anti-affinity to it"]
)
def test_nothing_may_depend_on_a_nominated_pod(affinity, nodes):
    cluster = cluster_with(nominated("n", labels={"app": "x"}, requests=None), nodes="ab")
    assert decide(cluster, asks(affinity=affinity))[0] == nodes


def test_after_a_cycle_the_cluster_is_as_before():
    cluster = cluster_with(nominated("n"), nodes="ab")
    version = cluster.signatures.version
    before = cluster.measured.available.tolist(), cluster.resources.used("cpu", slice(0, 2)).tolist()
    assert decide(cluster, asks(cpu="5"))[0] == {}
    after = cluster.measured.available.tolist(), cluster.resources.used("cpu", slice(0, 2)).tolist()
    assert (after, cluster.signatures.version) == (before, version)


def test_room_that_a_nominated_pod_leaves_is_given_away_in_the_same_cycle():
    waits = nominated("n", nodeSelector={"zone": "z"})
    cluster = cluster_state([node("a"), node("b", labels={"zone": "z"})], (), [capacity(n, 10.0) for n in "ab"])
    cluster.set_pod(waits, NOW)
    first, second = (asks(name, HIGH, "4", nodeSelector={"kubernetes.io/hostname": "a"}) for name in ("one", "two"))
    placed, (failure,) = decide(cluster, first, waits, second)
    assert placed == {"n": "b", "two": "a"}
    assert failure.pod.name == "one"


def test_alike_nominated_pods_are_evaluated_once(monkeypatch):
    made = []

    class Counted(feasibility.Feasibility):
        def __init__(self, *args):
            made.append(self)
            super().__init__(*args)

    monkeypatch.setattr(evaluation, "Feasibility", Counted)
    pods = [nominated(f"n{i}", where) for i, where in enumerate("abcd")]
    placed, _ = decide(cluster_with(*pods, nodes="abcd"), *pods)
    assert placed == {f"n{i}": where for i, where in enumerate("abcd")}
    assert len(made) == 1


def test_nothing_is_tried_on_nodes_that_lack_the_requests_beside_nominated_pods(monkeypatch):
    names = [f"n{i:03}" for i in range(150)]
    cluster = cluster_with(*(nominated(f"high-{name}", name) for name in names), nodes=names)
    tried = []
    for module in (feasibility, reasons):
        try_beside = module.refusal_beside
        monkeypatch.setattr(
            module, "refusal_beside", lambda *of, by=module, act=try_beside: (tried.append(by), act(*of))[1]
        )
    placed, (failure,) = decide(cluster, asks())
    assert placed == {}
    assert failure.diagnosis.message == "0/150 nodes are available: 150 Insufficient cpu."
    assert failure.diagnosis.resolvable.tolist() == [*range(150)]
    assert tried == [reasons] * 100, "of so many, all that they lack is found out"
    tried.clear()
    assert set(decide(cluster, asks("small", cpu="1"))[0]) == {"small"}
    assert tried == [feasibility] * 150


@pytest.mark.parametrize("lacks", [{"requests": {"example.com/gpu": "1"}}, {}])
def test_other_requests_and_places_for_pods_are_kept_for_nominated_pods_too(lacks):
    offers = {"pods": 1, "example.com/gpu": 1}
    made = nominated("n", requests={"example.com/gpu": "1"})
    cluster = cluster_state([node("a", allocatable=offers)], [made], [capacity("a", 10.0)])
    placed, (failure,) = decide(cluster, pod("asks", **lacks))
    assert placed == {}
    assert "Too many pods" in failure.diagnosis.message
    assert ("Insufficient example.com/gpu" in failure.diagnosis.message) == bool(lacks)
