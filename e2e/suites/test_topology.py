"""NodeCPUTopology as the agent publishes it: on an API server with recorded machines, and on a real node."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import support.sysfs_trees as trees
from e2e.testbed.agent_helpers import Object, condition, pod_spec
from e2e.testbed.clusters import Cluster, ClusterError
from e2e.testbed.images import BUSYBOX_IMAGE, build_image
from e2e.testbed.nodes import RealNodes
from e2e.testbed.processes import NAMESPACE, Process, agent_process
from e2e.testbed.requirements import require_real_nodes
from e2e.testbed.system import agent_on
from e2e.testbed.waiting import eventually


def ncpu(cluster: Cluster, name: str) -> Object | None:
    found = cluster.get("ncpu", f"--field-selector=metadata.name={name}")["items"]
    return found[0] if found and "status" in found[0] else None


@pytest.fixture
def node(concerto_cluster: Cluster) -> Iterator[str]:
    name = f"cpus-{uuid.uuid4().hex[:8]}"
    concerto_cluster.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    yield name
    concerto_cluster.kubectl("delete", "node,ncap,sub,ncpu", name, "--ignore-not-found", "--wait=false")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """The seed's machine of two sockets, with kubelet's files in kubelet/."""
    (tmp_path / "kubelet").mkdir()
    return trees.build(tmp_path / "sys", trees.SEED)


@pytest.fixture
def agent(concerto_cluster: Cluster, node: str, machine: Path, tmp_path: Path) -> Iterator[Process]:
    state, config = tmp_path / "kubelet/cpu_manager_state", tmp_path / "kubelet/config.yaml"
    flags = ["--sys", str(machine), "--kubelet-state", str(state), "--kubelet-config", str(config)]
    process = agent_process(concerto_cluster, tmp_path, node, flags)
    yield process
    process.kill()


def published(cluster: Cluster, node: str, says: Callable[[Object], bool] = lambda _: True) -> Object:
    def look() -> Object | None:
        obj = ncpu(cluster, node)
        return obj if obj is not None and says(obj["status"]) else None

    return dict(eventually("the topology is published", look))


def test_the_agent_publishes_its_nodes_cpus_in_an_object_that_the_node_owns(
    concerto_cluster: Cluster, node: str, agent: Process
):
    agent.start()
    obj = published(concerto_cluster, node)
    assert obj["spec"] == {"nodeName": node}
    assert [owner["kind"] for owner in obj["metadata"]["ownerReferences"]] == ["Node"]
    status = obj["status"]
    assert status["counts"] == {"sockets": 2, "cores": 10, "cpus": 20, "numaNodes": 2}
    assert status["topology"]["sockets"]["1"]["cores"]["4"] == {"cpus": [9, 19]}
    assert status["topology"]["numaNodes"]["1"] == {"cpus": [*range(5, 10), *range(15, 20)]}
    assert status["pools"] == {"allocated": "", "shared": "0-19", "reserved": "", "kubeletExclusive": "", "kept": ""}
    assert status["cpusetWriter"] == "None", "it was started without --pinning"
    assert condition(obj, "Ready")["status"] == "True"
    columns = concerto_cluster.kubectl("get", "ncpu", node, "--no-headers").split()
    assert columns[1:8] == ["2", "10", "20", "2", "0-19", "True", "Read"], (
        "no CPU is allocated, so that column is empty"
    )


def test_it_is_published_again_when_a_socket_goes_offline_and_forgets_what_is_gone(
    concerto_cluster: Cluster, node: str, machine: Path, agent: Process
):
    agent.start()
    published(concerto_cluster, node)
    shutil.rmtree(machine)
    second = [*range(5, 10), *range(15, 20)]
    trees.build(machine, trees.smt(2, 5, 2, offline=second))
    after = published(concerto_cluster, node, lambda status: status["counts"]["cpus"] == 10)["status"]
    assert list(after["topology"]["sockets"]) == ["0"]
    assert list(after["topology"]["numaNodes"]) == ["0"]
    assert after["topology"]["offlineCPUs"] == "5-9,15-19"
    assert after["pools"]["shared"] == "0-4,10-14"


def test_what_kubelet_and_the_spec_keep_is_followed_live(
    concerto_cluster: Cluster, node: str, tmp_path: Path, agent: Process
):
    agent.start()
    published(concerto_cluster, node)
    (tmp_path / "kubelet/config.yaml").write_text("reservedSystemCPUs: 0,10\n")
    entries = {"uid": {"main": "1,11"}}
    (tmp_path / "kubelet/cpu_manager_state").write_text(json.dumps({"policyName": "static", "entries": entries}))
    pools = published(concerto_cluster, node, lambda status: bool(status["pools"]["kubeletExclusive"]))["status"][
        "pools"
    ]
    assert pools == {
        "allocated": "",
        "shared": "0,2-10,12-19",
        "reserved": "0,10",
        "kubeletExclusive": "1,11",
        "kept": "",
    }
    concerto_cluster.kubectl("patch", "ncpu", node, "--type=merge", "-p", '{"spec": {"reservedCPUs": "5"}}')
    after = published(concerto_cluster, node, lambda status: status["pools"]["reserved"] == "5")
    assert after["status"]["observedGeneration"] == after["metadata"]["generation"]


def test_cpus_that_the_node_has_not_allocatable_are_reserved(concerto_cluster: Cluster, node: str, agent: Process):
    amounts = {"capacity": {"cpu": "20"}, "allocatable": {"cpu": "17900m"}}
    concerto_cluster.kubectl(
        "patch", "node", node, "--subresource=status", "--type=merge", "-p", json.dumps({"status": amounts})
    )
    agent.start()
    pools = published(concerto_cluster, node, lambda status: bool(status["pools"]["reserved"]))["status"]["pools"]
    assert pools["reserved"] == "0-1,10"


def test_an_object_that_came_by_gitops_stays_as_it_was_applied_and_a_deleted_one_comes_back(
    concerto_cluster: Cluster, node: str, agent: Process
):
    applied = {
        "apiVersion": "concerto.dev/v1alpha1",
        "kind": "NodeCPUTopology",
        "metadata": {"name": node, "labels": {"team": "a"}},
        "spec": {"nodeName": node, "reservedCPUs": "0-1"},
    }
    concerto_cluster.apply(applied)
    agent.start()
    obj = published(concerto_cluster, node)
    assert "ownerReferences" not in obj["metadata"]
    assert (obj["metadata"]["labels"], obj["spec"]) == ({"team": "a"}, applied["spec"])
    assert obj["status"]["pools"]["reserved"] == "0-1"
    concerto_cluster.kubectl("delete", "ncpu", node)
    again = published(concerto_cluster, node)
    assert again["metadata"]["uid"] != obj["metadata"]["uid"]
    assert again["status"]["pools"]["reserved"] == "", "with the spec went what it reserved"


def test_an_agent_can_not_write_the_cpus_of_another_node(concerto_cluster: Cluster, node: str, agent: Process):
    agent.start()
    published(concerto_cluster, node)
    concerto_cluster.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"{node}-other"}})
    token = concerto_cluster.token_kubeconfig(NAMESPACE, "concerto-agent", bound_node=f"{node}-other")
    patch = '{"status": {"pools": {"shared": ""}}}'
    with pytest.raises(ClusterError, match=f"may write only the objects named {node}-other"):
        concerto_cluster.kubectl(
            f"--kubeconfig={token}", "patch", "ncpu", node, "--subresource=status", "--type=merge", "-p", patch
        )
    concerto_cluster.kubectl("delete", "node", f"{node}-other", "--wait=false")


REAL = "cpus-real"


@pytest.mark.realnode
def test_a_real_kubelets_reserved_and_exclusive_cpus_are_published(
    concerto_cluster: Cluster, namespace: str, tmp_path: Path
):
    kubelet = {"cpuManagerPolicy": "static", "reservedSystemCPUs": "0", "cpuManagerReconcilePeriod": "2s"}
    with RealNodes(require_real_nodes(concerto_cluster, cpus=2), [REAL], kubelet_config=kubelet) as nodes:
        nodes.wait_ready()
        node = nodes[REAL]
        node.import_image(build_image(concerto_cluster.work_dir / "busybox.tar", BUSYBOX_IMAGE))
        agent = agent_on(concerto_cluster, node, tmp_path).start()
        try:
            before = published(concerto_cluster, REAL)["status"]
            assert before["topology"]["cpus"] == sorted(node.cpus)
            assert condition({"status": before}, "Ready")["status"] == "True"
            assert (before["pools"]["reserved"], before["pools"]["kubeletExclusive"]) == ("0", "")
            spec = pod_spec("sleep 1000")
            amounts = {"cpu": "1", "memory": "32Mi"}
            spec["containers"][0]["resources"] = {"requests": amounts, "limits": amounts}
            metadata = {"name": "exclusive", "namespace": namespace}
            concerto_cluster.apply(
                {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"nodeName": REAL, **spec}}
            )
            held = published(concerto_cluster, REAL, lambda status: bool(status["pools"]["kubeletExclusive"]))["status"]
            exclusive = held["pools"]["kubeletExclusive"]
            concerto_cluster.wait("--for=condition=Ready", "pod/exclusive", "-n", namespace)
            given = node.exec("cat", "/sys/fs/cgroup/cpuset/kubepods/cpuset.cpus").strip()
            allowed = concerto_cluster.kubectl(
                "exec", "-n", namespace, "exclusive", "--", "grep", "Cpus_allowed_list", "/proc/self/status"
            ).split()[1]
            assert exclusive == allowed != given, "the container's own CPUs, as its program sees them"
            concerto_cluster.kubectl("delete", "pod", "-n", namespace, "exclusive", "--wait=false")
            after = published(concerto_cluster, REAL, lambda status: not status["pools"]["kubeletExclusive"])["status"]
            assert after["pools"]["shared"] == before["pools"]["shared"]
        finally:
            agent.kill()
