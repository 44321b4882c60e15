"""The operator validates PodCPUBindings on a real API server: against topology, pod, and each other.

Nodes and pods are mere API objects here; no agent answers, and the statuses say so. With agents: test_pinning.py.
"""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from concerto.api.nodecputopology import NodeCPUTopology
from concerto.api.podcpubinding import PodCPUBinding
from concerto.pinning.validation import BoundPod, judge_node
from e2e.testbed.agent_helpers import condition
from e2e.testbed.clusters import Cluster
from e2e.testbed.processes import QUICK_LEASE, Process, operator_process
from e2e.testbed.waiting import eventually
from support.topologies import machine

Object = dict[str, Any]
FINALIZER = "cslab.ece.ntua.gr/pod-cpu-binding-finalizer"


@pytest.fixture(scope="module")
def operator(concerto_cluster: Cluster) -> Iterator[Process]:
    logs = concerto_cluster.work_dir
    process = operator_process(concerto_cluster, logs, "operator-bindings", QUICK_LEASE, restarts=True).start()
    process.wait_ready()
    yield process
    process.stop()


@pytest.fixture
def node(concerto_cluster: Cluster, operator: Process) -> Iterator[str]:
    """The seed's node-4: 2 sockets of 5 cores of 2 threads; CPU n and n+10 share a core."""
    name = f"node-4-{uuid.uuid4().hex[:6]}"
    concerto_cluster.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    set_topology(concerto_cluster, name)
    yield name
    concerto_cluster.kubectl("delete", "node,ncpu", name, "--ignore-not-found", "--wait=false")


def set_topology(cluster: Cluster, node: str, offline: frozenset[int] = frozenset(), **pools: str) -> None:
    whole = machine(2, 5, 2)
    topology = whole.only(whole.cpus - offline)
    obj = {
        "apiVersion": "concerto.dev/v1alpha1",
        "kind": "NodeCPUTopology",
        "metadata": {"name": node},
        "spec": {"nodeName": node},
    }
    cluster.apply(obj)
    status = {"counts": topology.counts(), "topology": topology.to_raw(), "pools": pools}
    cluster.kubectl(
        "patch", "ncpu", node, "--subresource=status", "--type=json",
        "-p", json.dumps([{"op": "add", "path": "/status", "value": status}]),
    )  # fmt: skip


def make_pod(cluster: Cluster, namespace: str, name: str, node: str = "") -> str:
    spec = {"containers": [{"name": "c", "image": "none.invalid/none"}], "schedulerName": "nobody"}
    spec |= {"terminationGracePeriodSeconds": 0} | ({"nodeName": node} if node else {})
    metadata = {"name": name, "namespace": namespace}
    cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    return str(cluster.get("pod", "-n", namespace, name)["metadata"]["uid"])


def bind(
    cluster: Cluster, namespace: str, name: str, pod: str, cpus: list[int], level: str = "Core", **meta: Any
) -> None:
    cluster.apply(
        {
            "apiVersion": "concerto.dev/v1alpha1",
            "kind": "PodCPUBinding",
            "metadata": {"name": name, "namespace": namespace, **meta},
            "spec": {"podName": pod, "cpuSet": [{"cpuID": cpu} for cpu in cpus], "exclusivenessLevel": level},
        }
    )


def until(cluster: Cluster, namespace: str, name: str, status: str, reason: str = "") -> Object:
    """The binding once its status is this, for its present generation."""

    def look() -> Object | None:
        obj = cluster.get("pcb", "-n", namespace, name)
        reported = obj.get("status") or {}
        current = reported.get("observedGeneration") == obj["metadata"]["generation"]
        fits = reported.get("resourceStatus") == status and reason in ("", condition(obj, "Validated")["reason"])
        return obj if current and fits else None

    return dict(eventually(f"{name} is {status} {reason}", look))


def events(cluster: Cluster, namespace: str, name: str, reason: str) -> list[Object]:
    selector = f"involvedObject.name={name},reason={reason}"
    return list(cluster.get("events", "-n", namespace, "--field-selector", selector)["items"])


def test_bindings_of_one_node_whose_statuses_are_refused_are_tried_a_few_times(concerto_cluster, namespace, node):
    cluster, name = concerto_cluster, f"refuse-{uuid.uuid4().hex[:8]}"
    group = "admissionregistration.k8s.io/v1"
    rule = {
        "apiGroups": ["concerto.dev"], "apiVersions": ["*"], "operations": ["UPDATE"],
        "resources": ["podcpubindings/status"],
    }  # fmt: skip
    only = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    refusal = {"expression": "false", "reason": "Forbidden", "message": "no status is taken"}
    policy = {"matchConstraints": {"resourceRules": [rule]}, "validations": [refusal]}
    binding = {"policyName": name, "validationActions": ["Deny"], "matchResources": only}
    kinds = (("ValidatingAdmissionPolicy", policy), ("ValidatingAdmissionPolicyBinding", binding))
    cluster.apply(
        *({"apiVersion": group, "kind": kind, "metadata": {"name": name}, "spec": spec} for kind, spec in kinds)
    )

    def refused() -> int:
        wanted = ('resource="podcpubindings"', 'subresource="status"', 'code="403"')
        lines = cluster.kubectl("get", "--raw", "/metrics").splitlines()
        counts = [line for line in lines if line.startswith("apiserver_request_total{")]
        return sum(int(float(line.rpartition(" ")[2])) for line in counts if all(each in line for each in wanted))

    try:
        before = refused()
        for number in range(2):
            make_pod(cluster, namespace, f"web-{number}", node)
            bind(cluster, namespace, f"web-{number}", f"web-{number}", [number])
        eventually("statuses are refused", lambda: refused() > before + 3)
        before = refused()
        time.sleep(5)
        assert refused() - before < 20, "1,200 a second when a refusal of one ended the wait of the other"
    finally:
        cluster.kubectl("delete", "validatingadmissionpolicy,validatingadmissionpolicybinding", name)
    for number in range(2):
        until(cluster, namespace, f"web-{number}", "Validated")


def test_a_role_with_all_rights_on_bindings_still_can_not_report_what_is_pinned(concerto_cluster, namespace, node):
    uid = make_pod(concerto_cluster, namespace, "web", node)
    bind(concerto_cluster, namespace, "web", "web", [0])
    until(concerto_cluster, namespace, "web", "Validated")
    everything = ("--verb=*", "--resource=podcpubindings.concerto.dev,podcpubindings.concerto.dev/status")
    concerto_cluster.kubectl("create", "role", "tenant", "-n", namespace, *everything)
    concerto_cluster.kubectl("create", "rolebinding", "tenant", "-n", namespace, "--role=tenant", "--user=tenant")
    tenant = ("--as=tenant", "-n", namespace)

    def patches(what: Object, *more: str) -> str:
        return concerto_cluster.kubectl(
            *tenant, "patch", "pcb", "web", "--type=merge", "-p", json.dumps(what), *more, check=False
        )

    eventually("the tenant's rights are known", lambda: "patched" in patches({"spec": {"exclusivenessLevel": "CPU"}}))
    said = patches({"status": {"podUID": "another-tenants", "cpus": "0-19"}}, "--subresource=status")
    assert "Only Concerto's operator and agents may write the status of a PodCPUBinding" in said
    assert until(concerto_cluster, namespace, "web", "Validated")["status"]["podUID"] == uid


def test_a_binding_that_can_be_had_is_validated_and_nobody_believes_it_applied(concerto_cluster, namespace, node):
    uid = make_pod(concerto_cluster, namespace, "streamcluster-4", node)
    bind(concerto_cluster, namespace, "streamcluster-4-pcb", "streamcluster-4", [0, 2, 4, 6])
    obj = until(concerto_cluster, namespace, "streamcluster-4-pcb", "Validated")
    status = obj["status"]
    assert (status["nodeName"], status["podUID"], status["cpus"], status["mems"]) == (node, uid, "0,2,4,6", "0-1")
    assert condition(obj, "Validated")["status"] == "True"
    assert condition(obj, "Ready")["status"] == "False"
    assert condition(obj, "Applied") == condition(None, "Applied"), "that is for an agent to say"
    assert not {"labels", "finalizers", "ownerReferences"} & obj["metadata"].keys()
    assert obj["metadata"]["generation"] == 1
    (event,) = eventually("the event", lambda: events(concerto_cluster, namespace, "streamcluster-4-pcb", "Validated"))
    assert event["message"] == "CPU binding is validated: CPUSet [0 2 4 6], MemSet [0 1]"
    assert event["reportingComponent"] == "podcpubinding-controller"
    columns = concerto_cluster.kubectl("get", "pcb", "-n", namespace, "streamcluster-4-pcb", "--no-headers").split()
    assert columns[1:6] == ["streamcluster-4", node, "0,2,4,6", "Core", "False"]
    selected = concerto_cluster.get("pcb", "-n", namespace, f"--field-selector=status.nodeName={node}")["items"]
    assert len(selected) == 1


def test_cpus_that_do_not_exist_are_named_until_an_edit_or_a_hotplug_mends_it(concerto_cluster, namespace, node):
    make_pod(concerto_cluster, namespace, "p", node)
    bind(concerto_cluster, namespace, "b", "p", [0, 2, 4, 26])
    until(concerto_cluster, namespace, "b", "InvalidCPUSet")
    (event,) = eventually("the event", lambda: events(concerto_cluster, namespace, "b", "InvalidCPUSet"))
    text = f"CPUs [26] are not in NodeCPUTopology {node}: bind the pod to CPUs that are."
    assert (event["type"], event["message"]) == ("Warning", text)
    bind(concerto_cluster, namespace, "b", "p", [0, 2, 4, 6])
    assert until(concerto_cluster, namespace, "b", "Validated")["status"]["cpus"] == "0,2,4,6"
    set_topology(concerto_cluster, node, offline=frozenset({6}))
    assert "cpus" not in until(concerto_cluster, namespace, "b", "InvalidCPUSet")["status"]
    set_topology(concerto_cluster, node)
    until(concerto_cluster, namespace, "b", "Validated")
    set_topology(concerto_cluster, node, reserved="0")
    until(concerto_cluster, namespace, "b", "InvalidCPUSet", "CPUsReserved")
    set_topology(concerto_cluster, node, kubeletExclusive="12")
    until(concerto_cluster, namespace, "b", "CPUSetAllocationFailed", "KubeletExclusive")
    concerto_cluster.kubectl("delete", "ncpu", node)
    until(concerto_cluster, namespace, "b", "NodeTopologyNotFound")


def test_the_older_of_two_wins_and_the_other_is_tried_again_when_it_goes(concerto_cluster, namespace, node):
    for name in ("first", "second"):
        make_pod(concerto_cluster, namespace, name, node)
    bind(concerto_cluster, namespace, "a-first", "first", [0], "Core")
    until(concerto_cluster, namespace, "a-first", "Validated")
    bind(concerto_cluster, namespace, "b-second", "second", [10], "None")
    lost = until(concerto_cluster, namespace, "b-second", "CPUSetAllocationFailed")
    assert lost["status"]["conflictsWith"] == {"namespace": namespace, "name": "a-first"}
    assert f"PodCPUBinding {namespace}/a-first" in condition(lost, "Ready")["message"]
    concerto_cluster.kubectl("delete", "pcb", "-n", namespace, "a-first")
    won = until(concerto_cluster, namespace, "b-second", "Validated")
    assert "conflictsWith" not in won["status"]
    bind(concerto_cluster, namespace, "c-third", "first", [10], "CPU")
    until(concerto_cluster, namespace, "c-third", "CPUSetAllocationFailed")
    bind(concerto_cluster, namespace, "b-second", "second", [11], "None")
    until(concerto_cluster, namespace, "c-third", "Validated")
    bind(concerto_cluster, namespace, "b-second", "second", [10], "None")
    until(concerto_cluster, namespace, "b-second", "Validated")
    until(concerto_cluster, namespace, "c-third", "CPUSetAllocationFailed")


def test_a_binding_follows_its_pod_from_before_it_is_there_to_after_it_is_gone(concerto_cluster, namespace, node):
    bind(concerto_cluster, namespace, "b", "p", [0])
    until(concerto_cluster, namespace, "b", "PodNotFound")
    waiting = make_pod(concerto_cluster, namespace, "p")
    assert until(concerto_cluster, namespace, "b", "Pending")["status"]["podUID"] == waiting
    concerto_cluster.kubectl("delete", "pod", "-n", namespace, "p")
    first = make_pod(concerto_cluster, namespace, "p", node)
    assert until(concerto_cluster, namespace, "b", "Validated")["status"]["podUID"] == first
    make_pod(concerto_cluster, namespace, "other", node)
    bind(concerto_cluster, namespace, "loser", "other", [0])
    until(concerto_cluster, namespace, "loser", "CPUSetAllocationFailed")
    concerto_cluster.kubectl("delete", "pod", "-n", namespace, "p", "--force", "--grace-period=0")
    gone = until(concerto_cluster, namespace, "b", "PodNotFound")["status"]
    assert not {"nodeName", "podUID", "cpus", "mems"} & gone.keys()
    until(concerto_cluster, namespace, "loser", "Validated")
    again = make_pod(concerto_cluster, namespace, "p", node)
    assert again != first
    assert until(concerto_cluster, namespace, "b", "Validated")["status"]["podUID"] == again, "it is the older one"
    until(concerto_cluster, namespace, "loser", "CPUSetAllocationFailed")
    concerto_cluster.kubectl(
        "patch", "pod", "-n", namespace, "p", "--subresource=status", "-p", '{"status": {"phase": "Succeeded"}}'
    )
    until(concerto_cluster, namespace, "b", "PodNotFound")
    until(concerto_cluster, namespace, "loser", "Validated")


def test_the_finalizer_of_the_seeds_manifests_keeps_nothing_and_others_stay(concerto_cluster, namespace, node):
    for name in ("p", "q"):
        make_pod(concerto_cluster, namespace, name, node)
    bind(concerto_cluster, namespace, "seeds", "p", [0], finalizers=[FINALIZER])
    until(concerto_cluster, namespace, "seeds", "Validated")
    concerto_cluster.kubectl("delete", "pcb", "-n", namespace, "seeds")
    bind(concerto_cluster, namespace, "kept", "p", [0], finalizers=[FINALIZER, "example.com/theirs"])
    until(concerto_cluster, namespace, "kept", "Validated")
    bind(concerto_cluster, namespace, "next", "q", [0])
    until(concerto_cluster, namespace, "next", "CPUSetAllocationFailed")
    concerto_cluster.kubectl("delete", "pcb", "-n", namespace, "kept", "--wait=false")
    until(concerto_cluster, namespace, "next", "Validated")

    def finalizers() -> list[str]:
        found: list[str] = concerto_cluster.get("pcb", "-n", namespace, "kept")["metadata"]["finalizers"]
        return found

    eventually("the finalizer of the seed's manifests is removed", lambda: finalizers() == ["example.com/theirs"])
    patch = json.dumps({"metadata": {"finalizers": None}})
    concerto_cluster.kubectl("patch", "pcb", "-n", namespace, "kept", "--type=merge", "-p", patch)


def test_whatever_happens_while_the_operator_is_killed_at_random_ends_as_the_objects_say(
    concerto_cluster: Cluster, namespace: str, node: str, operator: Process
):
    chance = random.Random(4)
    deaf = f"deaf-{uuid.uuid4().hex[:6]}"  # a node whose agent does not pin
    concerto_cluster.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": deaf}})
    set_topology(concerto_cluster, deaf)
    make_pod(concerto_cluster, "default", deaf, deaf)
    bind(concerto_cluster, "default", deaf, deaf, [0])
    for i in range(4):
        make_pod(concerto_cluster, namespace, f"p{i}", node)
    for step in range(50):
        name = f"b{chance.randrange(6)}"
        if chance.random() < 0.3:
            concerto_cluster.kubectl("delete", "pcb", "-n", namespace, name, "--ignore-not-found", "--wait=false")
        else:
            cpus = sorted(chance.sample(range(22), chance.randint(1, 3)))
            level = chance.choice(["None", "CPU", "Core", "Socket"])
            bind(concerto_cluster, namespace, name, f"p{chance.randrange(4)}", cpus, level)
        if step % 10 == 5:
            operator.kill()
            operator.start()
    operator.wait_ready()

    def settled() -> bool:
        objects = concerto_cluster.get("pcb", "-n", namespace)["items"]
        topology = NodeCPUTopology.from_raw(concerto_cluster.get("ncpu", node))
        views = [PodCPUBinding.from_raw(obj) for obj in objects]
        verdicts = judge_node(node, topology, [(view, BoundPod("", node)) for view in views])
        reported = {obj["metadata"]["name"]: obj.get("status") or {} for obj in objects}
        return all(
            reported[name].get("resourceStatus") == verdict.status and reported[name].get("cpus", "") == verdict.cpus
            for (_, name), verdict in verdicts.items()
        )

    eventually("every status is what the objects say", settled)
    eventually(
        "a binding that no agent answers says so",
        lambda: (
            condition(concerto_cluster.get("pcb", "-n", "default", deaf), "Stalled")["reason"] == "AgentNotSupported"
        ),
    )
    concerto_cluster.kubectl("delete", "node,ncpu", deaf, "--ignore-not-found", "--wait=false")
    concerto_cluster.kubectl("delete", "pod,pcb", "-n", "default", deaf, "--wait=false")
