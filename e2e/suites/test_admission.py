"""Who may write which of our objects: admission policies and rights, with real tokens of service accounts."""

from __future__ import annotations

import asyncio
import functools
import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from concerto.kube import ApiError, ClusterConfig, Session
from concerto.kube.request_bodies import STRATEGIC_PATCH, Patch
from e2e.testbed.clusters import Cluster
from e2e.testbed.concerto_objects import ASSIGNMENT, build_object
from e2e.testbed.waiting import eventually

pytestmark = pytest.mark.apiserver

SELECTOR = {"matchLabels": {"app": "x"}}


@pytest.fixture(scope="module")
def nodes(concerto_cluster: Cluster) -> Iterator[tuple[str, str]]:
    """Two Node objects without anything behind them."""
    names = tuple(f"policy-{uuid.uuid4().hex[:8]}" for _ in range(2))
    for name in names:
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {"unschedulable": True}}
        concerto_cluster.kubectl("create", "-f", "-", stdin=json.dumps(node))
        concerto_cluster.kubectl("create", "-f", "-", stdin=json.dumps(build_object("NodeCapacity", name, {})))
    yield names
    for name in names:
        concerto_cluster.kubectl("delete", "node", name, "--wait=false")
        concerto_cluster.kubectl("delete", "ncap,sub", name, "--ignore-not-found", "--wait=false")


class Account:
    """kubectl with a service account's token."""

    def __init__(self, cluster: Cluster, name: str, bound_node: str | None = None) -> None:
        self._cluster = cluster
        self._kubeconfig = cluster.token_kubeconfig("concerto-system", name, bound_node=bound_node)

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """What it prints, success or not."""
        return self._cluster.kubectl(f"--kubeconfig={self._kubeconfig}", *arguments, stdin=stdin, check=False)

    def create(self, obj: dict[str, Any]) -> str:
        """What ``kubectl create`` prints."""
        return self.kubectl("create", "-f", "-", stdin=json.dumps(obj))

    def patch_status(self, node: str) -> str:
        """What ``kubectl patch`` of a NodeCapacity's status prints."""
        return self.kubectl(
            "patch", "ncap", node, "--subresource=status", "--type=merge", "-p", '{"status":{"reject":true}}'
        )


@pytest.fixture(scope="module")
def agent(concerto_cluster: Cluster, nodes: tuple[str, str]) -> Account:
    """The first node's agent, once the policy is in force: the API server knows a new one within seconds."""
    account = Account(concerto_cluster, "concerto-agent", nodes[0])
    eventually("the policy is in force", lambda: "patched" not in account.patch_status(nodes[1]))
    return account


def test_an_agent_writes_the_objects_of_its_own_node(agent: Account, nodes: tuple[str, str]) -> None:
    own, _ = nodes
    assert "patched" in agent.patch_status(own)
    assert "created" in agent.create(build_object("SubspaceSnapshot", own, {}))


def test_an_agent_writes_nothing_of_another_node(agent: Account, nodes: tuple[str, str]) -> None:
    own, other = nodes
    sentence = f"The agent of node {own} may write only the objects named {own}, not {other}."
    assert sentence in agent.patch_status(other)
    assert sentence in agent.create(build_object("SubspaceSnapshot", other, {}))


def test_an_agent_may_not_change_a_spec_not_even_its_own(agent: Account, nodes: tuple[str, str]) -> None:
    refusal = agent.kubectl("patch", "ncap", nodes[0], "--type=merge", "-p", '{"spec":{"maxPods":1}}')
    assert "Forbidden" in refusal


def test_an_agent_may_not_write_the_clusters_model(agent: Account) -> None:
    assert "may write only the objects named" in agent.create(build_object("SubspaceSnapshot", "cluster", {}))


def test_a_token_that_names_no_node_writes_nothing(
    concerto_cluster: Cluster, agent: Account, nodes: tuple[str, str]
) -> None:
    unbound = Account(concerto_cluster, "concerto-agent")
    assert "The token of this agent names no node." in unbound.patch_status(nodes[0])


def batch(name: str, namespace: str = "concerto-system", **labels: str) -> dict[str, Any]:
    obj = build_object("PodReservation", name, {"count": 1, "assignments": [ASSIGNMENT]}, namespace)
    obj["metadata"]["labels"] = labels
    return obj


IN_FLIGHT = {"concerto.dev/in-flight": "true"}


def test_only_the_operator_records_placements_and_only_at_home(concerto_cluster: Cluster, agent: Account) -> None:
    name = f"cycle-{uuid.uuid4().hex[:8]}-1"
    operator = Account(concerto_cluster, "concerto-operator")
    by_admin = concerto_cluster.kubectl("create", "-f", "-", stdin=json.dumps(batch(name, **IN_FLIGHT)), check=False)
    assert "Only Concerto's operator may set spec.assignments." in by_admin
    assert "orbidden" in operator.create(batch(name, "default", **IN_FLIGHT))
    assert "must have both or neither" in operator.create(batch(name))
    assert "created" in operator.create(batch(name, **IN_FLIGHT))
    edit = '[{"op": "replace", "path": "/spec/assignments/0/node", "value": "elsewhere"}]'
    edited = concerto_cluster.kubectl(
        "patch", "pres", name, "-n", "concerto-system", "--type=json", "-p", edit, check=False
    )
    assert "spec.assignments records decisions that were made" in edited
    assert "deleted" in operator.kubectl("delete", "pres", name, "-n", "concerto-system")


def test_a_person_may_not_pass_a_reservation_off_as_the_operators(concerto_cluster: Cluster, agent: Account) -> None:
    obj = build_object("PodReservation", "fake", {"count": 1, "podSelector": SELECTOR})
    obj["metadata"]["labels"] = IN_FLIGHT
    refusal = concerto_cluster.kubectl("create", "-f", "-", stdin=json.dumps(obj), check=False)
    assert "must have both or neither" in refusal


@pytest.fixture
def transitions(concerto_cluster: Cluster, agent: Account) -> Iterator[int]:
    """The number of the leader, at least 2: of the operator's Lease, which is made unless there is one."""
    path = ("lease", "concerto-operator", "-n", "concerto-system")
    found = concerto_cluster.kubectl("get", *path, "-o", "json", "--ignore-not-found")
    lease = json.loads(found) if found else {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "concerto-operator", "namespace": "concerto-system"},
        "spec": {},
    }  # fmt: skip
    number = lease["spec"]["leaseTransitions"] = lease["spec"].get("leaseTransitions", 0) + 2
    concerto_cluster.kubectl("replace" if found else "create", "-f", "-", stdin=json.dumps(lease))
    yield number
    if not found:
        concerto_cluster.kubectl("delete", *path)


def test_what_an_earlier_leader_creates_is_refused_and_nobody_else_is(
    concerto_cluster: Cluster, namespace: str, nodes: tuple[str, str], transitions: int
) -> None:
    operator = Account(concerto_cluster, "concerto-operator")
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": namespace},
        "spec": {"schedulerName": "nobody", "containers": [{"name": "c", "image": "none.invalid/none"}]},
    }
    concerto_cluster.apply(pod)
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"name": nodes[0]}}
    pinned = build_object("PodCPUBinding", "p", {"podName": "p", "cpuSet": [{"cpuID": 0}]}, namespace)
    groups = "/apis/concerto.dev/v1alpha1/namespaces"
    writes = {
        f"/api/v1/namespaces/{namespace}/pods/p/binding": binding,
        f"{groups}/concerto-system/podreservations": batch("cycle-fenced-1", **IN_FLIGHT),
        f"{groups}/{namespace}/podcpubindings": pinned,
    }

    def refused(manager: str, kubectl: Callable[..., str] = operator.kubectl) -> set[str]:
        """Which of these writes are refused as an earlier leader's; none is kept."""
        answers = {}
        for path, body in writes.items():
            raw = f"{path}?dryRun=All&fieldManager={manager}"
            answers[path] = kubectl("create", "--raw", raw, "-f", "-", stdin=json.dumps(body))
        return {path for path, answer in answers.items() if "has a successor" in answer}

    eventually("the Lease's number holds", lambda: refused(f"concerto-leader-{transitions - 1}") == writes.keys())
    for manager in (
        f"concerto-leader-{transitions}",
        f"concerto-leader-{transitions + 1}",
        "concerto-leader-",
        "other",
    ):
        assert refused(manager) == set(), manager
    administrator = functools.partial(concerto_cluster.kubectl, check=False)
    assert refused(f"concerto-leader-{transitions - 1}", administrator) == set()


def test_a_pod_is_deleted_only_by_the_leader_that_has_marked_it_or_a_later_one(
    concerto_cluster: Cluster, namespace: str, agent: Account, transitions: int
) -> None:
    kubeconfig = concerto_cluster.token_kubeconfig("concerto-system", "concerto-operator")
    pod = f"/api/v1/namespaces/{namespace}/pods/victim"
    container = {"name": "c", "image": "none.invalid/none"}
    spec = {"schedulerName": "nobody", "terminationGracePeriodSeconds": 0, "containers": [container]}
    metadata = {"name": "victim", "namespace": namespace}

    async def answers() -> list[int]:
        """Statuses of the answers, in order; 0 for success."""
        async with await Session.open(ClusterConfig.from_kubeconfig(kubeconfig)) as operator:

            async def status(method: str, path: str, manager: str = "", body: Any = None) -> int:
                operator.field_manager = lambda: manager
                try:
                    await operator.request(method, path, body=body, attempts=1)
                except ApiError as error:
                    return error.status
                return 0

            def condition(kind: str, message: str) -> Patch:
                condition = {"type": kind, "status": "True", "reason": "Test", "message": message}
                return Patch(STRATEGIC_PATCH, {"status": {"conditions": [condition]}})

            async def mark(number: int, kind: str = "DisruptionTarget") -> int:
                return await status("PATCH", f"{pod}/status", f"concerto-leader-{number}", condition(kind, str(number)))

            return [
                await status("DELETE", pod),  # nobody has marked it
                await mark(transitions - 1),  # an earlier leader must not
                await mark(transitions, "PodScheduled"),
                await status("DELETE", pod),  # it is another condition that a leader has written
                await mark(transitions),
                await status("DELETE", pod),
            ]

    concerto_cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    assert asyncio.run(answers()) == [403, 403, 0, 403, 0, 0]
