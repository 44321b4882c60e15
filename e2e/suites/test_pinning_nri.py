"""Where the container runtime has NRI (containerd 2), containers are created with their CPUs and begin there."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator

import pytest

from e2e.testbed.clusters import Cluster, LocalControlPlane
from e2e.testbed.nodes import RealNode
from e2e.testbed.pinning_helpers import (
    FIRST_INSTRUCTION,
    FULL,
    STATIC_POLICY,
    Kernel,
    binding,
    ends,
    pinning_node,
    pod,
    start_bound,
    until_condition,
)
from e2e.testbed.processes import Process
from e2e.testbed.requirements import require_containerd, require_real_nodes
from e2e.testbed.waiting import eventually

pytestmark = pytest.mark.realnode

NODE = "pin-nri"

Nri = tuple[LocalControlPlane, RealNode, Process]


@pytest.fixture(scope="module")
def nri(concerto_cluster: Cluster, say: Callable[[str], None]) -> Iterator[Nri]:
    """A node with containerd 2, and its agent, which is a plugin of it."""
    plane = require_real_nodes(concerto_cluster, cpus=2)
    with pinning_node(plane, NODE, kubelet_config=STATIC_POLICY, containerd=require_containerd(say)) as (node, agent):
        until_written_by(plane, "NRI")
        yield plane, node, agent


def until_written_by(plane: LocalControlPlane, writer: str) -> None:
    """Wait until the node's NodeCPUTopology names this writer of cpusets."""

    def named() -> bool:
        found = plane.get("ncpu", f"--field-selector=metadata.name={NODE}")["items"]
        return any(item.get("status", {}).get("cpusetWriter") == writer for item in found)

    eventually(f"cpusetWriter is {writer}", named)


def created_with(node: RealNode, identity: str) -> str:
    """CPUs in a container's OCI spec."""
    info = json.loads(node.exec("ctr", "-n", "k8s.io", "containers", "info", identity))
    return str(info["Spec"]["linux"]["resources"]["cpu"].get("cpus", ""))


def container_of(plane: LocalControlPlane, namespace: str, name: str) -> str:
    """ID of a pod's only container, once the pod's status has it."""
    path = f"/api/v1/namespaces/{namespace}/pods/{name}"

    def look() -> str:
        statuses = plane.request("GET", path)["status"].get("containerStatuses", [{}])
        return str(statuses[0].get("containerID", "").rpartition("/")[2])

    return str(eventually(f"pod {name} has its container", look))


def test_programs_begin_on_the_cpus_that_their_containers_were_created_with(
    nri: Nri, namespace: str, say: Callable[[str], None]
):
    plane, node, _ = nri
    said: list[str] = []
    for number, size in enumerate([3] * 10 + [10] * 3 + [20] * 2 if FULL else [5]):
        names = [f"burst-{number}-{i}" for i in range(size)]
        made = [(pod(namespace, n, FIRST_INSTRUCTION), binding(namespace, n, [1], "None")) for n in names]
        start_bound(plane, NODE, made)
        said += [text for name, text in ends(plane, namespace, names).items() if name in names]
        assert {created_with(node, container_of(plane, namespace, name)) for name in names} == {"1"}
        plane.kubectl("delete", "pcb,pod", "-n", namespace, *names, "--wait=false")
    say(f"pinning: NRI, static policy, {said.count('1')} of {len(said)} began on their CPU")
    assert set(said) == {"1"}


def test_pods_without_a_binding_are_created_off_exclusive_cpus_and_kubelets_updates_keep_them_there(
    nri: Nri, namespace: str
):
    plane, node, _ = nri
    kernel = Kernel(node)
    own = pod(namespace, "own", "sleep 1000")
    own["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "10m"}}
    start_bound(plane, NODE, [(own, binding(namespace, "own", [1]))])
    bound = until_condition(plane, namespace, "own", "Applied")["status"]["podUID"]
    plane.apply(pod(namespace, "free", FIRST_INSTRUCTION, NODE))
    assert ends(plane, namespace, ["free"])["free"] == "0"
    assert created_with(node, container_of(plane, namespace, "free")) == "0"

    # kubelet sends the runtime an update, and its own set with it
    resized = {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "20m"}}}]}}
    plane.kubectl("patch", "pod", "-n", namespace, "own", "--subresource=resize", "-p", json.dumps(resized))
    path = f"/api/v1/namespaces/{namespace}/pods/own"

    def applied() -> bool:
        status = plane.request("GET", path)["status"]["containerStatuses"][0]
        return bool(status.get("resources", {}).get("requests", {}).get("cpu") == "20m")

    eventually("kubelet has resized it", applied)
    assert kernel.program(bound) == {"1"}
    plane.kubectl("delete", "pcb", "-n", namespace, "own")


def waits_for(plane: LocalControlPlane, namespace: str, name: str) -> str:
    """Why a pod's only container is not created."""
    status = plane.request("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")["status"]
    (container,) = status.get("containerStatuses", [{}])
    return str(container.get("state", {}).get("waiting", {}).get("message", ""))


def registrations(agent: Process) -> int:
    """Times that the runtime has taken the agent as a plugin."""
    return agent.log.read_text().count("registered with containerd")


def test_the_agent_registers_again_with_a_runtime_that_was_restarted_or_that_has_dropped_it(nri: Nri, namespace: str):
    plane, node, agent = nri
    before = registrations(agent)
    node.restart_containerd()
    eventually("it has registered again", lambda: registrations(agent) > before)
    until_written_by(plane, "NRI")
    start_bound(plane, NODE, [(pod(namespace, "own", "sleep 1000"), binding(namespace, "own", [1]))])
    until_condition(plane, namespace, "own", "Applied")
    assert created_with(node, container_of(plane, namespace, "own")) == "1"

    # An agent that does not answer is dropped after 2 s. It also shows that what these tests look at can be wrong
    before = registrations(agent)
    os.kill(agent.pid, signal.SIGSTOP)
    try:
        plane.apply(pod(namespace, "unanswered", FIRST_INSTRUCTION, NODE))
        assert ends(plane, namespace, ["unanswered"])["unanswered"] == "0-1"
        fenced = pod(namespace, "fenced", FIRST_INSTRUCTION, NODE)
        fenced["metadata"]["annotations"] = {"required-plugins.noderesource.dev": '["concerto"]'}
        plane.apply(fenced)
        eventually(
            "the runtime creates no container of it", lambda: "concerto" in waits_for(plane, namespace, "fenced")
        )
    finally:
        os.kill(agent.pid, signal.SIGCONT)
    eventually("it has registered again", lambda: registrations(agent) > before)
    plane.apply(pod(namespace, "answered", FIRST_INSTRUCTION, NODE))
    assert ends(plane, namespace, ["answered", "fenced"]) == {"unanswered": "0-1", "answered": "0", "fenced": "0"}
