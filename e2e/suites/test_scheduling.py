"""The operator places pods on a real API server: what is bound, what is not, and what events say.

Nodes are mere API objects here, each of which says once that it is idle and can take ten pods.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from e2e.testbed.clusters import Cluster
from e2e.testbed.processes import Process, operator_process, running_operator
from e2e.testbed.system import hollow_nodes
from e2e.testbed.waiting import eventually

NODES = 3
NODE_PODS = 10


@pytest.fixture(scope="module")
def operator(concerto_cluster: Cluster) -> Iterator[Process]:
    """Three nodes that are API objects, and an operator."""
    process = operator_process(concerto_cluster, concerto_cluster.work_dir, "operator-scheduling", restarts=True)
    nodes = hollow_nodes(concerto_cluster, NODES, "--api-only", "--max-pods", str(NODE_PODS), "--prefix", "sched")
    with nodes, running_operator(process):
        yield process


def pod(namespace: str, name: str, **spec: Any) -> dict[str, Any]:
    labels = spec.pop("labels", {})
    body = {
        "schedulerName": "concerto",
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "c", "image": "none.invalid/none"}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "labels": labels},
        "spec": body | spec,
    }


def node_of(cluster: Cluster, namespace: str, name: str) -> str:
    return str(cluster.get("pod", "-n", namespace, name)["spec"].get("nodeName", ""))


def events(cluster: Cluster, namespace: str, name: str, reason: str) -> list[str]:
    found = cluster.get("events", "-n", namespace, "--field-selector", f"involvedObject.name={name},reason={reason}")
    return [e["message"] for e in found["items"]]


def none_of_all(cluster: Cluster) -> str:
    """How a FailedScheduling message begins; other tests' nodes may still be about, none of them ready."""
    return f"0/{len(cluster.get('nodes')['items'])} nodes are available: "


def condition(obj: dict[str, Any], kind: str) -> dict[str, Any] | None:
    return next((c for c in (obj.get("status") or {}).get("conditions") or () if c["type"] == kind), None)


def test_a_pod_is_bound_and_its_event_says_what_the_decision_was_based_on(concerto_cluster, operator, namespace):
    concerto_cluster.apply(pod(namespace, "plain"))
    node = eventually("bound", lambda: node_of(concerto_cluster, namespace, "plain"))
    said = eventually("the event", lambda: events(concerto_cluster, namespace, "plain", "Scheduled"))
    assert said == [f"Successfully assigned {namespace}/plain to {node}, which could take "
                    f"{said[0].split('could take ')[1].split(' ')[0]} more pods by its measured capacity"]  # fmt: skip


ADDRESSES, KEYS, TERMS = 600, 400, 300
"""Nearly as many as a pod may have in the 64 KiB of what Concerto evaluates."""


def hostile_pods(namespace: str) -> Iterator[dict[str, Any]]:
    """What costs most to compare: addresses of one port, labels that one node has, and terms about all namespaces."""
    for number in range(4):
        addresses = (f"10.{number}.{i // 250}.{i % 250}" for i in range(ADDRESSES))
        ports = [{"containerPort": 80, "hostPort": 80, "hostIP": address} for address in addresses]
        container = {"name": "c", "image": "none.invalid/none", "ports": ports}
        yield pod(namespace, f"ports-{number}", containers=[container])
    apart = {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"a": "b"}}}
    yield pod(namespace, "spread", topologySpreadConstraints=[apart | {"topologyKey": f"k{i}"} for i in range(KEYS)])
    yield pod(namespace, "selects", nodeSelector={f"k{i}": "v" for i in range(KEYS)})
    for number in range(2):
        absent = ({"key": f"k{number}-{i}", "operator": "DoesNotExist"} for i in range(TERMS))
        terms = [
            {"topologyKey": "t", "namespaceSelector": {}, "labelSelector": {"matchExpressions": [e]}} for e in absent
        ]
        refuses = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
        yield pod(namespace, f"terms-{number}", affinity=refuses)


def test_what_a_user_asks_for_by_the_hundred_keeps_no_other_waiting(concerto_cluster, operator, namespace):
    """That no callback holds the operator's event loop is asserted when the operator ends."""
    cluster, keys = concerto_cluster, [f"k{i}" for i in range(KEYS)]
    cluster.kubectl("create", "rolebinding", "user", "-n", namespace, "--clusterrole=edit", "--user=user")
    cluster.kubectl("label", "node", "sched-0000", *(f"{key}=v" for key in keys))
    items = list(hostile_pods(namespace))
    pods = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    create = ("create", "--as=user", "-f", "-")
    eventually("the user may create pods", lambda: "created" in cluster.kubectl(*create, stdin=pods, check=False))
    quiet = f"quiet-{uuid.uuid4().hex[:8]}"
    cluster.make_namespace(quiet)
    cluster.apply(pod(quiet, "plain"))
    eventually("another user's pod is bound", lambda: node_of(cluster, quiet, "plain"))
    names = [item["metadata"]["name"] for item in items]
    eventually("so are the others", lambda: all(node_of(cluster, namespace, name) for name in names))
    cluster.kubectl("label", "node", "sched-0000", *(f"{key}-" for key in keys))
    cluster.remove_namespace(quiet)


def test_a_pod_of_another_scheduler_is_left_alone(concerto_cluster, operator, namespace):
    concerto_cluster.apply(pod(namespace, "other", schedulerName="somebody-else"), pod(namespace, "ours"))
    eventually("ours is bound", lambda: node_of(concerto_cluster, namespace, "ours"))
    assert node_of(concerto_cluster, namespace, "other") == ""


HARD = {
    "resource": {"resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}]},
}  # fmt: skip


def test_a_hard_constraint_that_is_not_evaluated_is_named_and_the_pod_never_bound(
    concerto_cluster, operator, namespace
):
    concerto_cluster.apply(*(pod(namespace, f"hard-{i}", **spec) for i, spec in enumerate(HARD.values())))
    for i, kind in enumerate(HARD):
        said = eventually(
            f"{kind}: an event", lambda i=i: events(concerto_cluster, namespace, f"hard-{i}", "FailedScheduling")
        )
        assert said[0].startswith(none_of_all(concerto_cluster))
        assert any(word in said[0].lower() for word in kind.split()), f"{kind} is not named in: {said[0]}"

        def reported(i: int = i) -> dict[str, Any] | None:
            return condition(concerto_cluster.get("pod", "-n", namespace, f"hard-{i}"), "PodScheduled")

        found = eventually(f"{kind}: a condition", reported)
        assert (found["status"], found["reason"]) == ("False", "SchedulerError"), "no node would help"
        assert found["message"] == said[0]
        assert node_of(concerto_cluster, namespace, f"hard-{i}") == ""


def test_reasons_are_counted_by_node_in_one_event(concerto_cluster, operator, namespace):
    names = [n["metadata"]["name"] for n in concerto_cluster.get("nodes")["items"]]
    names = [name for name in names if name.startswith("sched-")]
    concerto_cluster.kubectl("cordon", names[0])
    try:
        concerto_cluster.apply(pod(namespace, "choosy", nodeSelector={"no-such": "label"}))

        def reported() -> str:
            # before the operator has seen the cordon it says so without
            said = events(concerto_cluster, namespace, "choosy", "FailedScheduling")
            return next((text for text in said if "1 node(s) were unschedulable" in text), "")

        said = eventually("all reasons are named", reported)
        assert said.startswith(none_of_all(concerto_cluster))
        match = re.search(r"(\d+) node\(s\) didn't match Pod's node affinity/selector", said)
        assert match and int(match[1]) >= NODES - 1
    finally:
        concerto_cluster.kubectl("uncordon", names[0])


def test_a_pod_with_a_scheduling_gate_waits_without_a_word_and_is_placed_once_it_is_gone(
    concerto_cluster, operator, namespace
):
    concerto_cluster.apply(pod(namespace, "gated", schedulingGates=[{"name": "example.com/wait"}]))
    concerto_cluster.apply(pod(namespace, "after"))
    eventually("a later pod is bound", lambda: node_of(concerto_cluster, namespace, "after"))
    assert node_of(concerto_cluster, namespace, "gated") == ""
    patch = json.dumps([{"op": "remove", "path": "/spec/schedulingGates/0"}])
    concerto_cluster.kubectl("patch", "pod", "-n", namespace, "gated", "--type=json", "-p", patch)
    eventually("bound after the gate is gone", lambda: node_of(concerto_cluster, namespace, "gated"))


def test_nothing_is_placed_beyond_measured_capacity_and_room_that_comes_free_is_used(
    concerto_cluster, operator, namespace
):
    pods = [pod(namespace, f"many-{i:02d}") for i in range(NODES * NODE_PODS + 5)]
    concerto_cluster.apply(*pods)

    def wait_for_room() -> list[str]:
        items = concerto_cluster.get("pods", "-n", namespace)["items"]
        return [p["metadata"]["name"] for p in items if not p["spec"].get("nodeName")]

    # Pods of the tests before may still be going: the room that they leave is for one of those that wait
    waiting = eventually("these pods have all room", lambda: len(names := wait_for_room()) == 5 and names)
    reported = eventually(
        "why the rest waits", lambda: events(concerto_cluster, namespace, waiting[0], "FailedScheduling")
    )
    assert reported[0].startswith(none_of_all(concerto_cluster))
    nodes = Counter(p["spec"].get("nodeName", "") for p in concerto_cluster.get("pods", "-A")["items"])
    assert all(count <= NODE_PODS for node, count in nodes.items() if node.startswith("sched-"))
    concerto_cluster.kubectl("delete", "pod", "-n", namespace, "--wait=false", *[f"many-{i:02d}" for i in range(5)])
    eventually("the rest is placed", lambda: node_of(concerto_cluster, namespace, waiting[-1]))


@pytest.mark.skipif(not os.environ.get("CONCERTO_FAILPOINT_TURNS"), reason="takes 10 seconds: make chaos")
def test_pods_that_never_start_give_their_units_back_and_take_them_again_when_they_start(
    concerto_cluster, operator, namespace
):
    for node in (f"sched-{i:04d}" for i in range(NODES)):
        # A pod that does not start keeps its requests, and its place among the node's pods is one
        more = json.dumps({"status": {"allocatable": {"pods": str(2 * NODE_PODS)}}})
        concerto_cluster.kubectl("patch", "node", node, "--subresource=status", "--type=merge", "-p", more)
    names = [f"bad-{i:02d}" for i in range(NODES * NODE_PODS)]
    concerto_cluster.apply(*(pod(namespace, name) for name in names), pod(namespace, "good", labels={"app": "good"}))

    def bound() -> dict[str, str]:
        items = concerto_cluster.get("pods", "-n", namespace)["items"]
        return {p["metadata"]["name"]: p["spec"]["nodeName"] for p in items if p["spec"].get("nodeName")}

    def report(name: str, **status: Any) -> None:
        patch = json.dumps({"status": {"startTime": "2026-01-01T00:00:00Z", **status}})
        concerto_cluster.kubectl(
            "patch", "pod", "-n", namespace, name, "--subresource=status", "--type=merge", "-p", patch
        )

    def container(state: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"name": "c", "image": "i", "imageID": "", "ready": False, "restartCount": 0, "state": state}]

    placed = eventually("the nodes are full", lambda: len(found := bound()) == NODES * NODE_PODS and found)
    (waiting,) = {*names, "good"} - placed.keys()
    eventually("why one waits", lambda: events(concerto_cluster, namespace, waiting, "FailedScheduling"))
    failing = next(name for name in names if name in placed)
    report(failing, containerStatuses=container({"waiting": {"reason": "ImagePullBackOff"}}))
    concerto_cluster.apply(profile("impatient", "impatient", failedStartWait="1s"))
    try:
        assert eventually("it gets the room", lambda: bound().get(waiting)) == placed[failing]
    finally:
        concerto_cluster.kubectl("delete", "sprof", "impatient")
    started = container({"running": {"startedAt": "2026-01-01T01:00:00Z"}})
    report(failing, phase="Running", containerStatuses=started)
    concerto_cluster.apply(pod(namespace, "later"))
    eventually("why it waits", lambda: events(concerto_cluster, namespace, "later", "FailedScheduling"))
    concerto_cluster.kubectl("delete", "pod", "-n", namespace, failing, waiting, "--wait=false")
    eventually("the node was one over", lambda: "later" in bound())


def test_a_standing_reservation_keeps_room_for_its_pods_and_is_used_up_by_them(concerto_cluster, operator, namespace):
    reservation = {
        "apiVersion": "concerto.dev/v1alpha1",
        "kind": "PodReservation",
        "metadata": {"namespace": namespace, "name": "room"},
        "spec": {"podSelector": {"matchLabels": {"for": "room"}}, "count": 2},
    }
    concerto_cluster.apply(reservation)

    def status() -> dict[str, Any]:
        found = concerto_cluster.get("pres", "-n", namespace, "room")
        return found.get("status") or {}

    eventually("the room is held", lambda: status().get("phase") == "Active")
    assert sum(p["units"] for p in status()["placements"]) == 2
    held = {p["node"] for p in status()["placements"]}
    concerto_cluster.apply(*(pod(namespace, f"guest-{i}", labels={"for": "room"}) for i in range(2)))
    for i in range(2):
        assert eventually("a guest is bound", lambda i=i: node_of(concerto_cluster, namespace, f"guest-{i}")) in held
    eventually("it is used up", lambda: status().get("phase") == "Consumed")
    assert {c["name"] for c in status()["consumedBy"]} == {"guest-0", "guest-1"}


def test_a_standing_reservation_on_a_node_that_is_not_there_says_so(concerto_cluster, operator, namespace):
    reservation = {
        "apiVersion": "concerto.dev/v1alpha1",
        "kind": "PodReservation",
        "metadata": {"name": "astray", "namespace": namespace},
        "spec": {"podSelector": {"matchLabels": {"app": "x"}}, "count": 1, "nodeName": "no-such-node"},
    }
    concerto_cluster.apply(reservation)
    assert eventually("an event", lambda: events(concerto_cluster, namespace, "astray", "NodeNotFound"))
    ready = condition(concerto_cluster.get("pres", "-n", namespace, "astray"), "Ready")
    assert "there is no node no-such-node" in ready["message"]


def test_a_standing_reservation_whose_time_is_over_says_so_and_stays(concerto_cluster, operator, namespace):
    concerto_cluster.apply({
        "apiVersion": "concerto.dev/v1alpha1",
        "kind": "PodReservation",
        "metadata": {"namespace": namespace, "name": "brief"},
        "spec": {"podSelector": {"matchLabels": {"for": "brief"}}, "count": 1, "ttlSeconds": 3},
    })  # fmt: skip
    found = eventually(
        "it has expired",
        lambda: (
            (p := concerto_cluster.get("pres", "-n", namespace, "brief"))
            and (p.get("status") or {}).get("phase") == "Expired"
            and p
        ),
    )
    assert condition(found, "Expired")["status"] == "True"
    assert not found["status"]["placements"]
    assert eventually("an event", lambda: events(concerto_cluster, namespace, "brief", "Expired"))


def profile(name: str, scheduler_name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "concerto.dev/v1alpha1",
        "kind": "SchedulingProfile",
        "metadata": {"name": name},
        "spec": {"schedulerName": scheduler_name} | spec,
    }


def is_so(cluster: Cluster, name: str, status: str, reason: str) -> dict[str, Any] | None:
    """A profile's condition Ready, if it says this."""
    found = condition(cluster.get("sprof", name), "Ready")
    return found if found and (found["status"], found["reason"]) == (status, reason) else None


def test_profiles_come_change_and_go_without_a_restart(concerto_cluster, operator, namespace):
    name = f"e2e-{uuid.uuid4().hex[:6]}"
    concerto_cluster.apply(pod(namespace, "early", schedulerName=name), pod(namespace, "after"))
    eventually("a later pod is bound", lambda: node_of(concerto_cluster, namespace, "after"))
    assert node_of(concerto_cluster, namespace, "early") == ""
    concerto_cluster.apply(profile(name, name))
    try:
        eventually("placed once its profile is there", lambda: node_of(concerto_cluster, namespace, "early"))
        eventually("it is in use", lambda: is_so(concerto_cluster, name, "True", "InUse"))
        # No node is let in that is not measured, and this one profile looks at none that is called like ours
        concerto_cluster.apply(profile(name, name, metricsPolicy="Avoid", staleAfter="1s", heartbeatsMissed=1))
        eventually(
            "the edit is in use", lambda: concerto_cluster.get("sprof", name)["status"]["observedGeneration"] == 2
        )
        concerto_cluster.apply(pod(namespace, "late", schedulerName=name))
        eventually("no room by the new rule", lambda: events(concerto_cluster, namespace, "late", "FailedScheduling"))
        concerto_cluster.apply(profile(f"{name}-2", name))
        loser = eventually(
            "the second one is not", lambda: is_so(concerto_cluster, f"{name}-2", "False", "DuplicateSchedulerName")
        )
        assert name in loser["message"]
        assert eventually(
            "an event", lambda: events(concerto_cluster, "default", f"{name}-2", "DuplicateSchedulerName")
        )
        # With the older one gone the younger one is in its place, and its rule lets the pod in
        concerto_cluster.kubectl("delete", "sprof", name)
        eventually("placed by the other profile", lambda: node_of(concerto_cluster, namespace, "late"))
    finally:
        concerto_cluster.kubectl("delete", "sprof", name, f"{name}-2", "--ignore-not-found")


def test_what_was_applied_is_as_it_was(concerto_cluster, operator):
    from e2e.testbed.system import OVERLAY

    assert concerto_cluster.kubectl("diff", "-k", str(OVERLAY), check=False) == ""


ENORMOUS = "9223372036854775807"


def test_pods_that_ask_for_all_there_is_do_not_keep_others_waiting(concerto_cluster, operator, namespace):
    """The API server takes them, from anyone who may create a pod, and bound to any node, be it there or not."""
    huge = [{"name": "c", "image": "none.invalid/none", "resources": {"requests": {"cpu": ENORMOUS, "memory": "9E"}}}]
    node = concerto_cluster.get("nodes")["items"][0]["metadata"]["name"]
    for name, over in (
        ("bound", {"nodeName": node}),
        ("ghost", {"nodeName": "no-such-node"}),
        ("waits", {}),
        ("by-pod", {"resources": {"requests": {"cpu": ENORMOUS}}, "nodeName": node}),
    ):
        concerto_cluster.apply(pod(namespace, f"huge-{name}", **({"containers": huge} | over)))
    concerto_cluster.apply(pod(namespace, "tiny", containers=[huge[0] | {"resources": {"requests": {"cpu": "1e-9"}}}]))
    eventually("bound", lambda: node_of(concerto_cluster, namespace, "tiny"))
    said = eventually("the event", lambda: events(concerto_cluster, namespace, "huge-waits", "FailedScheduling"))
    assert "Insufficient cpu" in said[0]
    assert operator.is_running()
    concerto_cluster.kubectl("delete", "pods", "--all", "-n", namespace, "--force", "--grace-period=0", check=False)


def test_a_model_that_no_agent_of_ours_would_publish_ends_nobody(concerto_cluster, operator, namespace):
    began = datetime.now(UTC)
    for name, status in (
        ("odd-empty", {"resources": [], "sigma": [], "directions": []}),
        ("odd-rankless", {"resources": ["cpu", "memory"], "sigma": [], "directions": []}),
        ("odd-not", {"resources": ["cpu", "memory"], "sigma": [1.0], "directions": [[1.0, 0.0]]}),
    ):
        body = {"apiVersion": "concerto.dev/v1alpha1", "kind": "SubspaceSnapshot", "metadata": {"name": name}}
        concerto_cluster.apply(body | {"spec": {}})
        full = {"status": {"observedAt": began.strftime("%Y-%m-%dT%H:%M:%SZ"), "batches": 1} | status}
        concerto_cluster.kubectl("patch", "sub", name, "--subresource=status", "--type=merge", "-p", json.dumps(full))

    def merged() -> bool:
        status = concerto_cluster.get("sub", "cluster").get("status") or {}
        return "observedAt" in status and datetime.fromisoformat(status["observedAt"]) > began

    eventually("the cluster's model is made of the one that is good", merged)
    assert operator.is_running()
    concerto_cluster.apply(pod(namespace, "after"))
    eventually("bound", lambda: node_of(concerto_cluster, namespace, "after"))
    concerto_cluster.kubectl("delete", "sub", "odd-empty", "odd-rankless", "odd-not")
