from dataclasses import replace

import numpy as np
import pytest

from concerto.api.pod import PodView
from concerto.api.podreservation import Assignment
from concerto.api.selectors import NodeSelector, Requirement
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.cluster import ClusterState
from concerto.scheduling.state.measured_capacity import AVOIDED, BY_REQUESTS, MEASURED
from concerto.scheduling.state.resources import PODS
from support.cluster_contents import state_of
from support.scheduling_builders import NOW, capacity, cluster_state, node, pod, raw_pod


def assignment(name, to="n"):
    return Assignment("default", name, f"uid-{name}", to, "Capacity", "1", 1.0)


def at(cluster, name):
    row = cluster.row_of[name]
    rows = np.array([row])
    return {
        "exists": bool(cluster.nodes.exists[row]),
        "cpu": (int(cluster.resources.used("cpu", rows)[0]), int(cluster.resources.allocatable("cpu", rows)[0])),
        "pods": int(cluster.resources.used(PODS, rows)[0]),
        "available": float(cluster.measured.available[row]),
    }


def test_kinds_may_come_in_any_order():
    cluster = ClusterState()
    cluster.set_pod(pod("p", nodeName="n", requests={"cpu": "1"}), NOW)
    cluster.set_capacity(capacity("n", 5.0), NOW)
    assert at(cluster, "n") == {"exists": False, "cpu": (1000, 0), "pods": 1, "available": 4.0}
    cluster.set_node(node("n"))
    assert at(cluster, "n") == {"exists": True, "cpu": (1000, 4000), "pods": 1, "available": 4.0}


def test_a_node_that_goes_and_comes_back_finds_its_pods():
    cluster = cluster_state([node("n")], [pod("p", nodeName="n", requests={"cpu": "1"})], [capacity("n", 5.0)])
    cluster.remove_node("n")
    assert at(cluster, "n") == {"exists": False, "cpu": (1000, 0), "pods": 1, "available": 4.0}
    cluster.set_node(node("n"))
    assert at(cluster, "n")["cpu"] == (1000, 4000)


def test_rows_of_what_is_gone_are_used_again():
    cluster = cluster_state([node("a"), node("b")], [pod("p", nodeName="a")], [capacity("a", 5.0)])
    cluster.remove_node("a")
    cluster.remove_capacity("a")
    assert "a" in cluster.row_of
    cluster.remove_pod("uid-p")
    assert "a" not in cluster.row_of
    cluster.set_node(node("c", labels={"zone": "c"}))
    assert cluster.size == 2
    assert at(cluster, "c") == {
        "exists": True,
        "cpu": (0, 4000),
        "pods": 0,
        "available": pytest.approx(np.nan, nan_ok=True),
    }
    assert cluster.rows.name_ranks()[[cluster.row_of["b"], cluster.row_of["c"]]].tolist() == [0, 1]


def test_columns_grow_and_keep_what_they_hold():
    cluster = ClusterState()
    for i in range(300):
        cluster.set_node(node(f"n{i}", allocatable={"cpu": i, f"example.com/r{i % 3}": i, "pods": 300}))
        cluster.set_capacity(capacity(f"n{i}", float(i)), NOW)
        cluster.set_pod(pod(f"p{i}", nodeName=f"n{i}", requests={"cpu": "1m", "example.com/r0": "1"}), NOW)
    rows = slice(0, 300)
    assert cluster.resources.allocatable("cpu", rows).tolist() == list(range(300))
    assert cluster.measured.available[:300].tolist() == [i - 1.0 for i in range(300)]
    assert cluster.resources.allocatable("example.com/r2", rows).tolist() == [
        i if i % 3 == 2 else 0 for i in range(300)
    ]
    assert cluster.resources.used("example.com/r0", rows).tolist() == [1] * 300
    assert cluster.resources.allocatable("example.com/none", rows).tolist() == [0] * 300


def test_basis_is_a_function_of_now():
    cluster = cluster_state(
        [node("n"), node("silent"), node("unknown")], (), [capacity("n", 5.0), capacity("silent", 5.0)]
    )
    cluster.set_capacity(capacity("n", 5.0, version=2, at=NOW + 500), NOW + 500)

    def basis(now, policy):
        return cluster.measured.basis(now, stale_after_seconds=600.0, policy=policy).tolist()

    assert basis(NOW + 600, "Avoid") == [MEASURED, MEASURED, AVOIDED]
    assert basis(NOW + 601, "Avoid") == [MEASURED, AVOIDED, AVOIDED]
    assert basis(NOW + 601, "FallbackToRequests") == [MEASURED, BY_REQUESTS, BY_REQUESTS]
    assert basis(NOW + 1101, "Avoid") == [AVOIDED, AVOIDED, AVOIDED]


class TestAssume:
    def test_a_decision_counts_until_it_is_forgotten(self):
        cluster = cluster_state([node("n")], (), [capacity("n", 5.0)])
        p = pod("p", requests={"cpu": "1"})
        assert cluster.assume(p, assignment("p"), NOW)
        assert not cluster.assume(p, assignment("p"), NOW)
        assert at(cluster, "n") == {"exists": True, "cpu": (1000, 4000), "pods": 1, "available": 4.0}
        cluster.set_pod(p, NOW)
        assert at(cluster, "n")["pods"] == 1
        assert cluster.forget(p.uid) == Change.ENDED | Change.CAPACITY
        assert at(cluster, "n") == {"exists": True, "cpu": (0, 4000), "pods": 0, "available": 5.0}
        assert cluster.forget(p.uid) == Change.NOTHING

    @pytest.mark.parametrize("owner", [None, "DaemonSet"])
    def test_what_is_bound_or_confirmed_is_not_forgotten(self, owner):
        over = {"owner": owner} if owner else {}
        cluster = cluster_state([node("n")])
        for name in ("seen", "confirmed"):
            cluster.assume(pod(name, **over), assignment(name), NOW)
        cluster.set_pod(pod("seen", nodeName="n", **over), NOW)
        cluster.confirm("uid-confirmed")
        for name in ("seen", "confirmed"):
            assert cluster.forget(f"uid-{name}") == Change.NOTHING
        assert at(cluster, "n")["pods"] == 2

    def test_bound_elsewhere_by_somebody_else(self):
        cluster = cluster_state([node("n"), node("m")], (), [capacity("n", 5.0), capacity("m", 5.0)])
        cluster.assume(pod("p"), assignment("p"), NOW)
        cluster.set_pod(pod("p", nodeName="m"), NOW)
        assert (at(cluster, "n")["pods"], at(cluster, "n")["available"]) == (0, 5.0)
        assert (at(cluster, "m")["pods"], at(cluster, "m")["available"]) == (1, 4.0)

    def test_an_ended_pod_is_not_placed_again(self):
        cluster = cluster_state([node("n")])
        cluster.set_pod(pod("p", phase="Failed"), NOW)
        assert cluster.is_placed("uid-p")
        assert not cluster.assume(pod("p"), assignment("p"), NOW)


CHANGES = {
    "a new node": (lambda c: c.set_node(node("m")), Change.NODE),
    "a node that says the same again": (lambda c: c.set_node(node("n")), Change.NOTHING),
    "a node that changes": (lambda c: c.set_node(node("n", unschedulable=True)), Change.NODE),
    "a node that goes": (lambda c: c.remove_node("n"), Change.PLACED),
    "a node that was never there": (lambda c: c.remove_node("m"), Change.NOTHING),
    "more capacity": (lambda c: c.set_capacity(capacity("n", 6.0, version=2), NOW), Change.CAPACITY),
    "less capacity": (lambda c: c.set_capacity(capacity("n", 4.0, version=2), NOW), Change.NOTHING),
    "more capacity, and still none": (
        lambda c: c.set_capacity(capacity("full", 0.0, version=2), NOW),
        Change.NOTHING,
    ),
    "the first status of a node": (lambda c: c.set_capacity(capacity("m", 1.0), NOW), Change.CAPACITY),
    "telemetry that is gone": (lambda c: c.remove_capacity("n"), Change.CAPACITY),
    "a pod that waits": (lambda c: c.set_pod(pod("q"), NOW), Change.NOTHING),
    "a pod that is bound": (lambda c: c.set_pod(pod("q", nodeName="n"), NOW), Change.NOTHING),
    "a pod that ends": (lambda c: c.remove_pod("uid-p"), Change.ENDED | Change.CAPACITY),
    "a pod of a DaemonSet that ends": (lambda c: c.remove_pod("uid-d"), Change.ENDED),
}


@pytest.mark.parametrize(("act", "change"), CHANGES.values(), ids=CHANGES)
def test_what_may_help_waiting_pods_is_reported(act, change):
    there = [pod("p", nodeName="n"), pod("d", nodeName="n", owner="DaemonSet"), pod("f", nodeName="full")]
    cluster = cluster_state([node("n"), node("full")], there, [capacity("n", 5.0), capacity("full", 0.5)])
    assert act(cluster) == change


def test_what_nodes_were_and_what_pods_ask_for_does_not_pile_up():
    cluster = ClusterState()
    for number in range(3000):
        cluster.set_node(
            node("n", labels={"a": str(number)}, taints=[("DeletionCandidate", str(number), "NoSchedule")])
        )
        cluster.set_node(node("m", labels={"a": "same"}, taints=[("stays", "", "NoExecute")]))
        wanted = NodeSelector((Requirement("a", "In", ("same",)), Requirement(f"l{number}", "DoesNotExist")))
        assert cluster.nodes.labels.selected(wanted, slice(0, cluster.size)).tolist() == [False, True]
        assert cluster.resources.free(("cpu", f"a.b/{number}"), slice(0, cluster.size)).tolist() == [
            [4000, 4000],
            [0, 0],
        ]
        assert cluster.nodes.taints.accepted(
            lambda taints: any(t.key == "stays" for t in taints), slice(0, 2)
        ).tolist() == [
            False,
            True,
        ]
    assert len(cluster.nodes.taints._code_of) < 600
    assert len(cluster.nodes.labels._columns) <= 256
    assert max(len(column.code_of) for column in cluster.nodes.labels._columns.values()) < 600
    assert len(cluster.resources._index) < 10


def relabelled(name, template_hash):
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-abc", "uid": "u", "controller": True}
    raw = raw_pod(name, nodeName="n", labels={"pod-template-hash": template_hash})
    raw["metadata"]["ownerReferences"] = [owner]
    return PodView.from_raw(raw)


def test_a_pod_whose_kind_changes_leaves_nothing_of_its_former_kind_behind():
    before, after = relabelled("p", "abc"), relabelled("p", "other")
    assert before.kind != after.kind
    cluster = cluster_state([node("n")], [before])
    assert cluster.kinds.loads.pods[0] == 1
    cluster.set_pod(after, NOW)
    assert cluster.kinds.loads.pods[0] == 1
    cluster.remove_pod("uid-p")
    assert cluster.kinds.loads.pods[0] == 0


def test_a_bound_pod_that_changes_to_what_can_not_be_counted_counts_as_before():
    known = pod("p", nodeName="n", requests={"cpu": "1"})
    cluster = cluster_state([node("n")], [known], [capacity("n", 5.0)])
    before = state_of(cluster)
    with pytest.raises(TypeError):
        cluster.set_pod(replace(known, labels={"app": []}, requests=known.requests | {"cpu": 2000}), NOW)
    assert state_of(cluster) == before
