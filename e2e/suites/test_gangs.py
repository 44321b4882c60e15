"""Gangs on a real API server: placed together or not at all, also where the operator dies in between.

Nodes are mere API objects with 4 CPUs each, and pods on them do not run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.testbed.clusters import Cluster
from e2e.testbed.failpoints import Failpoint
from e2e.testbed.processes import QUICK_LEASE, Process, operator_process, running_operator
from e2e.testbed.requirements import require_local_plane
from e2e.testbed.system import hollow_nodes
from e2e.testbed.waiting import PATIENCE_SECONDS, eventually

NODES = 2
TURNS = int(os.environ.get("CONCERTO_FAILPOINT_TURNS", "0"))
POINTS = ("after-store 1", "before-gang 1", "before-binding 3", "after-binding 2", "after-binding 30", "after-gang 1")
"""Where the operator dies, and at which time that it gets there."""
SAMPLE = ("after-binding 2",)
"""Where it dies without ``CONCERTO_FAILPOINT_TURNS``."""
STEPS = ("before-nomination", "after-nomination", "before-disruption-target", "before-eviction", "after-eviction")
"""Where the operator dies, at the second time that it gets there, while it makes room for a gang."""
LARGE_GANG = 60
"""More pods than are bound at a time: when the operator dies between two bindings, some have not been sent."""


@pytest.fixture(scope="module")
def operator(concerto_cluster: Cluster, failpoint: Failpoint) -> Iterator[Process]:
    plane = require_local_plane(concerto_cluster)
    if not plane.serves_pod_groups:
        pytest.skip("this release has no PodGroups: they came with Kubernetes 1.37 (scheduling.k8s.io/v1beta1)")
    plane.apply(
        {
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "test-vip"},
            "value": 1000, "preemptionPolicy": "Never",
        }
    )  # fmt: skip
    plane.apply(
        {
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "test-preempts"},
            "value": 1000,
        }
    )  # fmt: skip
    process = operator_process(plane, plane.work_dir, "operator-gangs", QUICK_LEASE, restarts=True)
    failpoint.add_to(process)
    nodes = hollow_nodes(plane, NODES, "--api-only", "--max-pods", "50", "--prefix", "gang")
    with nodes, running_operator(process):
        yield process


def pod_group(namespace: str, name: str, min_count: int, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"schedulingPolicy": {"gang": {"minCount": min_count}}} | spec,
    }  # fmt: skip


def pod(namespace: str, name: str, group: str = "", cpu: str = "1", **spec: Any) -> dict[str, Any]:
    body = {
        "schedulerName": "concerto",
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "c", "image": "none.invalid/none", "resources": {"requests": {"cpu": cpu}}}],
    }
    body |= {"schedulingGroup": {"podGroupName": group}} if group else {}
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": namespace, "name": name}, "spec": body | spec,
    }  # fmt: skip


def gang(namespace: str, name: str, count: int, **spec: Any) -> list[dict[str, Any]]:
    return [pod(namespace, f"{name}-{i}", name, **spec) for i in range(count)]


def nodes_of(cluster: Cluster, namespace: str, prefix: str = "") -> dict[str, str]:
    """Node by pod, of the pods that are bound."""
    items = cluster.get("pods", "-n", namespace)["items"]
    found = {item["metadata"]["name"]: item["spec"].get("nodeName", "") for item in items}
    return {name: node for name, node in found.items() if node and name.startswith(prefix)}


def pods_on_nodes(cluster: Cluster) -> list[str]:
    """Pods of all tests that are on the nodes."""
    items = cluster.get("pods", "-A")["items"]
    return [item["metadata"]["name"] for item in items if item["spec"].get("nodeName", "").startswith("gang")]


def no_unit_is_left(cluster: Cluster) -> None:
    """Return once no placement record is left, which would keep units of measured capacity for its pods."""

    def records() -> list[str]:
        found = cluster.get("podreservations", "-n", "concerto-system", "-l", "concerto.dev/in-flight")
        return [each["metadata"]["name"] for each in found["items"]]

    eventually(lambda: f"no placement record is left of {records()}", lambda: not records(), 3 * PATIENCE_SECONDS)


def bound(cluster: Cluster, namespace: str, prefix: str, count: int) -> dict[str, str]:
    def all_of_them() -> dict[str, str] | None:
        found = nodes_of(cluster, namespace, prefix)
        return found if len(found) == count else None

    return dict(eventually(f"{count} pods {prefix}… are bound", all_of_them, 3 * PATIENCE_SECONDS))


def condition(cluster: Cluster, namespace: str, name: str) -> tuple[str, str, str]:
    """Status, reason and message of PodGroupInitiallyScheduled, once it is there."""

    def found() -> dict[str, Any] | None:
        status = cluster.get("podgroup", name, "-n", namespace).get("status") or {}
        return next((c for c in status.get("conditions", ()) if c["type"] == "PodGroupInitiallyScheduled"), None)

    it = eventually("the PodGroup has its condition", found)
    return it["status"], it["reason"], it["message"]


def pod_condition(cluster: Cluster, namespace: str, name: str) -> dict[str, str]:
    def found() -> dict[str, str] | None:
        status = cluster.get("pod", name, "-n", namespace)["status"]
        return next((c for c in status.get("conditions", ()) if c["type"] == "PodScheduled"), None)

    return dict(eventually("the pod has its condition", found))


def test_a_gang_that_needs_both_nodes_waits_for_its_last_pod_and_is_bound_together(
    concerto_cluster, operator, namespace
):
    cluster = concerto_cluster
    pods = gang(namespace, "g", 6)
    cluster.apply(*pods[:1], pod(namespace, "alone"))
    bound(cluster, namespace, "alone", 1)
    text = "0/2 nodes are available: waiting for PodGroup g to appear."
    assert pod_condition(cluster, namespace, "g-0")["message"] == text
    cluster.apply(pod_group(namespace, "g", 6), *pods[1:5])
    status, reason, message = condition(cluster, namespace, "g")
    assert (status, reason) == ("False", "Unschedulable")
    assert "waiting for 6 pods of PodGroup g, of which " in message
    assert pod_condition(cluster, namespace, "g-4")["reason"] == "WaitingForPodGroup"
    assert nodes_of(cluster, namespace, "g-") == {}
    cluster.apply(pods[5])
    assert len(set(bound(cluster, namespace, "g-", 6).values())) == NODES
    eventually("the condition is True", lambda: condition(cluster, namespace, "g")[:2] == ("True", "Scheduled"))


def test_a_gang_that_does_not_fit_takes_nothing_and_small_pods_pass(concerto_cluster, operator, namespace):
    cluster = concerto_cluster
    cluster.apply(*(pod(namespace, f"service-{i}", cpu="2") for i in range(2)))
    bound(cluster, namespace, "service-", 2)
    cluster.apply(pod_group(namespace, "g", 6), *gang(namespace, "g", 6))
    # Pods of the test before may still be going; without them 4 CPUs are left
    text = "PodGroup g needs 6 more pods at once, and only 4 found nodes."
    eventually("all room that is left is named", lambda: condition(cluster, namespace, "g")[2].endswith(text))
    assert condition(cluster, namespace, "g")[:2] == ("False", "Unschedulable")
    cluster.apply(pod(namespace, "small"))
    bound(cluster, namespace, "small", 1)
    assert nodes_of(cluster, namespace, "g-") == {}
    cluster.kubectl("delete", "pod", "-n", namespace, "service-0", "small", "--grace-period=0", "--force")
    assert len(bound(cluster, namespace, "g-", 6)) == 6


def test_room_is_made_for_a_whole_gang_and_only_as_much_as_it_needs(concerto_cluster, operator, namespace):
    cluster = concerto_cluster
    eventually("the nodes are empty", lambda: not pods_on_nodes(cluster))
    cluster.apply(*(pod(namespace, f"low-{i}") for i in range(8)))
    bound(cluster, namespace, "low-", 8)
    vip = {"priorityClassName": "test-preempts"}
    cluster.apply(pod_group(namespace, "large", 9, **vip), *gang(namespace, "large", 9, **vip))
    text = "the eviction of pods of lower priority would not let the PodGroup fit."
    eventually("nobody would help", lambda: text in pod_condition(cluster, namespace, "large-0")["message"])
    cluster.apply(pod_group(namespace, "g", 5, **vip), *gang(namespace, "g", 5, **vip))
    assert len(set(bound(cluster, namespace, "g-", 5).values())) == NODES
    assert len(nodes_of(cluster, namespace, "low-")) == 3


@pytest.mark.skipif(not TURNS, reason="by hand: make chaos")
def test_nobody_is_evicted_for_a_gang_if_a_policy_protects_one_of_the_victims(concerto_cluster, operator, namespace):
    cluster = concerto_cluster
    eventually("the nodes are empty", lambda: not pods_on_nodes(cluster))
    cluster.apply(*(pod(namespace, f"low-{i}", cpu="4") for i in range(NODES)))
    bound(cluster, namespace, "low-", NODES)
    protects = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": ["pods"],
             "resourceNames": ["low-0"]}
        ]},
        "validations": [{"expression": "false", "message": "low-0 stays"}],
    }  # fmt: skip
    group, name = {"apiVersion": "admissionregistration.k8s.io/v1"}, {"metadata": {"name": "test-low-0-stays"}}
    binding = {"policyName": "test-low-0-stays", "validationActions": ["Deny"]}
    cluster.apply(
        group | name | {"kind": "ValidatingAdmissionPolicy", "spec": protects},
        group | name | {"kind": "ValidatingAdmissionPolicyBinding", "spec": binding},
    )
    try:
        delete = ("delete", "pod", "low-0", "-n", namespace, "--dry-run=server")
        eventually("low-0 is protected", lambda: "deleted" not in cluster.kubectl(*delete, check=False))
        vip = {"priorityClassName": "test-preempts"}
        cluster.apply(pod_group(namespace, "g", NODES, **vip), *gang(namespace, "g", NODES, cpu="3", **vip))
        text = "preemption: the API server refused to make room by evictions."
        eventually("that is reported", lambda: text in pod_condition(cluster, namespace, "g-0")["message"])
        assert len(nodes_of(cluster, namespace, "low-")) == NODES
    finally:
        for kind in ("validatingadmissionpolicybinding", "validatingadmissionpolicy"):
            cluster.kubectl("delete", kind, "test-low-0-stays")
    assert len(bound(cluster, namespace, "g-", NODES)) == NODES


def test_groups_that_nobody_can_place_cost_only_themselves(concerto_cluster, operator, namespace):
    cluster = concerto_cluster
    many = [pod_group(namespace, f"few-{i}", 3) for i in range(20)]
    many += [pod(namespace, f"few-{i}-0", f"few-{i}") for i in range(20)]
    cluster.apply(
        *many, pod_group(namespace, "absurd", 2**31 - 1), pod(namespace, "absurd-0", "absurd"),
        pod_group(namespace, "mixed", 2), pod(namespace, "mixed-0", "mixed"),
        pod(namespace, "mixed-1", "mixed", priorityClassName="test-vip"), pod(namespace, "small"),
    )  # fmt: skip
    bound(cluster, namespace, "small", 1)
    assert condition(cluster, namespace, "absurd")[:2] == ("False", "SchedulerError")
    assert "Concerto places at most 500 at once" in condition(cluster, namespace, "absurd")[2]
    assert "should have the same priority" in condition(cluster, namespace, "mixed")[2]
    assert nodes_of(cluster, namespace).keys() == {"small"}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("point", POINTS if TURNS else SAMPLE)
def test_no_gang_is_left_half_bound_where_the_operator_dies(
    concerto_cluster, operator, failpoint, namespace, point, say
):
    cluster, wanted = concerto_cluster, TURNS or 1
    name, times = point.split()
    reached = turn = 0
    while reached < wanted:
        turn += 1
        assert turn <= 3 * wanted, f"{point} was reached in {reached} of {turn - 1} turns"
        # Beside pods of another test, the gang takes uneven parts of the nodes, and its rivals find less room
        eventually("the nodes are empty", lambda: not pods_on_nodes(cluster))
        of = f"g{turn}"
        operator.wait_ready()
        failpoint.set(name, times=int(times))
        rivals = [pod(namespace, f"vip{turn}-{i}", priorityClassName="test-vip") for i in range(8)]
        cluster.apply(pod_group(namespace, of, LARGE_GANG), *gang(namespace, of, LARGE_GANG, cpu="100m"))
        # A binding whose answer did not come in time does not count, so on a busy machine the gang may come through
        eventually(
            f"{point} is reached, or all are bound",
            lambda of=of: failpoint.is_reached() or len(nodes_of(cluster, namespace, f"{of}-")) == LARGE_GANG,
        )
        reached += failpoint.is_reached()
        failpoint.clear()
        # The successor finds pods of a higher priority that would take all the room
        cluster.apply(*rivals)

        def counts() -> tuple[int, int]:
            found = nodes_of(cluster, namespace)
            return sum(name.startswith("g") for name in found), sum(name.startswith("vip") for name in found)

        def settled() -> tuple[int, int] | None:
            return found if (found := counts()) in ((0, 8), (LARGE_GANG, 2)) else None

        got, _ = eventually(
            lambda: f"all of the gang has room, or all of the others have; bound are {counts()}",
            settled,
            3 * PATIENCE_SECONDS,
        )
        say(f"{point}, turn {turn}: {got} of {LARGE_GANG} pods are bound after the recovery, before there is more room")
        cluster.kubectl("delete", "pod", "-n", namespace, *(each["metadata"]["name"] for each in rivals), "--force")
        bound(cluster, namespace, f"{of}-", LARGE_GANG)
        cluster.kubectl("delete", "pod", "-n", namespace, "--all", "--grace-period=0", "--force")
    if TURNS:
        no_unit_is_left(cluster)


@pytest.mark.timeout(1800)
@pytest.mark.skipif(not TURNS, reason="by hand: make chaos")
@pytest.mark.parametrize("step", STEPS)
def test_room_for_a_gang_is_made_where_it_was_begun_and_no_more_than_it_needs(
    concerto_cluster, operator, failpoint, namespace, step
):
    cluster, vip = concerto_cluster, {"priorityClassName": "test-preempts"}
    for turn in range(TURNS):
        eventually("the nodes are empty", lambda: not pods_on_nodes(cluster))
        operator.wait_ready()
        low, of = f"low{turn}", f"g{turn}"
        cluster.apply(*(pod(namespace, f"{low}-{i}") for i in range(8)))
        bound(cluster, namespace, f"{low}-", 8)
        failpoint.set(step, times=2)
        cluster.apply(pod_group(namespace, of, 5, **vip), *gang(namespace, of, 5, **vip))
        eventually(f"{step} is reached", failpoint.is_reached)
        bound(cluster, namespace, f"{of}-", 5)
        assert len(nodes_of(cluster, namespace, f"{low}-")) == 3
        cluster.kubectl("delete", "pod", "-n", namespace, "--all", "--grace-period=0", "--force")
    no_unit_is_left(cluster)
