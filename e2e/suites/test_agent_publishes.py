"""A real agent process against a real API server, with the rights of its service account and its node's token."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from e2e.testbed.agent_helpers import condition, make_daemon_pod, make_pod, ncap, status, wait_ready
from e2e.testbed.clusters import Cluster, LocalControlPlane
from e2e.testbed.clusters.cluster import write_private
from e2e.testbed.processes import NAMESPACE, Process, agent_process, concerto_command
from e2e.testbed.waiting import eventually

Object = dict[str, Any]
Agents = Callable[..., Process]


def make_node(cluster: Cluster, name: str) -> str:
    """Make a Node object with no kubelet behind it; its UID."""
    cluster.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    return str(cluster.get("node", name)["metadata"]["uid"])


def model(cluster: Cluster, name: str) -> Object | None:
    """The node's SubspaceSnapshot."""
    found = cluster.get("sub", f"--field-selector=metadata.name={name}")["items"]
    return found[0] if found else None


@pytest.fixture
def node(concerto_cluster: Cluster) -> Iterator[str]:
    name = f"agent-{uuid.uuid4().hex[:8]}"
    make_node(concerto_cluster, name)
    yield name
    concerto_cluster.kubectl("delete", "node,ncap,sub", name, "--ignore-not-found", "--wait=false")


@pytest.fixture
def start(concerto_cluster: Cluster, node: str, tmp_path: Path) -> Iterator[Agents]:
    """Starts agents of the node, each with its own log."""
    started: list[Process] = []

    def start_one(*extra: str, name: str = node) -> Process:
        logs = tmp_path / f"logs-{len(started)}"
        logs.mkdir()
        process = agent_process(concerto_cluster, logs, node, extra)
        if name != node:
            process.command = [name if argument == node else argument for argument in process.command]
        started.append(process.start())
        return process

    yield start_one
    for process in started:
        process.kill()


@pytest.fixture
def sys_tree(tmp_path: Path) -> Path:
    """A /sys with this machine's CPUs and a cgroup v2 tree that holds an empty kubepods."""
    sys = tmp_path / "sys"
    (sys / "devices/system/cpu").mkdir(parents=True)
    shutil.copyfile("/sys/devices/system/cpu/online", sys / "devices/system/cpu/online")
    cgroups = sys / "fs/cgroup"
    (cgroups / "kubepods.slice/kubepods-besteffort.slice").mkdir(parents=True)
    (cgroups / "cgroup.controllers").write_text("cpuset cpu memory\n")
    (cgroups / "kubepods.slice/cpu.stat").write_text("usage_usec 0\n")
    (cgroups / "kubepods.slice/memory.current").write_text("0\n")
    (cgroups / "kubepods.slice/memory.stat").write_text("inactive_file 0\n")
    return sys


def test_it_creates_its_objects_and_publishes_what_it_measures(concerto_cluster: Cluster, node: str, start: Agents):
    agent = start()
    obj = wait_ready(concerto_cluster, node)
    uid = concerto_cluster.get("node", node)["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}
    assert obj["metadata"]["ownerReferences"] == [owner]
    assert not {"annotations", "labels", "finalizers"} & obj["metadata"].keys()
    reported = obj["status"]
    assert [r["name"] for r in reported["resources"]] == ["cpu", "memory"]
    assert all(0 <= r["usage"] <= 1 for r in reported["resources"])
    # the machine may be full: other tests run on it
    assert reported["capacity"] == pytest.approx(reported["freePods"] - reported["excessPods"])
    assert (reported["podCount"], reported["observedPodUIDs"]) == (0, [])
    assert reported["agent"]["mode"] == "Machine"
    assert {w["window"] for w in reported["windows"]} == {"5m", "10m", "15m"}
    subspace = eventually("its model is there", lambda: (m := model(concerto_cluster, node)) and "status" in m and m)
    assert subspace["metadata"]["ownerReferences"] == [owner]
    assert subspace["status"]["resources"] == ["cpu", "memory"]
    agent.stop()
    assert agent.child.process.returncode == 0 if agent.child else False, "it ends in good order when asked to"


def test_an_object_that_came_by_gitops_stays_as_it_was_applied(concerto_cluster: Cluster, node: str, start: Agents):
    tuned = {
        "apiVersion": "concerto.dev/v1alpha1",
        "kind": "NodeCapacity",
        "metadata": {"name": node, "labels": {"team": "a"}, "annotations": {"note": "b"}},
        "spec": {"churnWindow": "750ms", "resources": ["memory", "cpu"]},
    }
    concerto_cluster.apply(tuned)
    before = ncap(concerto_cluster, node)
    assert before is not None
    start()
    after = wait_ready(concerto_cluster, node)
    assert "ownerReferences" not in after["metadata"]
    for part in ("labels", "annotations", "generation"):
        assert after["metadata"][part] == before["metadata"][part]
    assert after["spec"] == before["spec"]
    assert [r["name"] for r in after["status"]["resources"]] == ["memory", "cpu"]


def test_an_edit_of_the_spec_is_followed_live(concerto_cluster: Cluster, node: str, start: Agents):
    start()
    before = wait_ready(concerto_cluster, node)
    concerto_cluster.kubectl(
        "patch", "ncap", node, "--type=merge", "-p", '{"spec": {"resources": ["memory"], "heartbeat": "5s"}}'
    )
    generation = before["metadata"]["generation"] + 1

    def followed() -> Object | None:
        now = status(concerto_cluster, node)
        return now if now["observedGeneration"] == generation else None

    after = eventually("the new generation is observed", followed)
    assert [r["name"] for r in after["resources"]] == ["memory"]
    assert after["agent"]["instance"] == before["status"]["agent"]["instance"], "without a restart"


def test_a_resource_that_can_not_be_measured_is_left_out_and_reported(
    concerto_cluster: Cluster, node: str, start: Agents, tmp_path: Path
):
    gauge = {"name": "gpu", "path": str(tmp_path / "gpu")}
    concerto_cluster.apply(
        {
            "apiVersion": "concerto.dev/v1alpha1",
            "kind": "NodeCapacity",
            "metadata": {"name": node},
            "spec": {"resources": ["cpu", "gpu"], "gauges": [gauge]},
        }
    )
    start()
    obj = wait_ready(concerto_cluster, node)
    assert [r["name"] for r in obj["status"]["resources"]] == ["cpu"]
    reported = condition(obj, "TelemetryComplete")
    assert (reported["status"], reported["reason"]) == ("False", "InvalidGauge")
    assert gauge["path"] in reported["message"]
    (tmp_path / "gpu").write_text("0.25")

    def both() -> list[Object] | None:
        resources: list[Object] = status(concerto_cluster, node)["resources"]
        return resources if len(resources) == 2 else None

    gpu = eventually("the gauge is published", both)[1]
    assert (gpu["name"], gpu["usage"]) == ("gpu", 0.25)


def test_a_node_without_pressure_is_reported(concerto_cluster: Cluster, node: str, start: Agents, tmp_path: Path):
    proc = tmp_path / "proc"
    proc.mkdir()
    for name in ("stat", "meminfo"):
        (proc / name).symlink_to(f"/proc/{name}")
    start("--proc", str(proc))
    reported = condition(wait_ready(concerto_cluster, node), "TelemetryComplete")
    assert reported["status"] == "False"
    assert "pressure/cpu" in reported["message"]
    assert "utilisation only" in reported["message"]


def test_a_node_where_nothing_can_be_measured_publishes_no_number(
    concerto_cluster: Cluster, node: str, start: Agents, tmp_path: Path
):
    agent = start("--proc", str(tmp_path / "nothing"))
    obj = eventually("it says so", lambda: condition(f := ncap(concerto_cluster, node), "Stalled")["status"] and f)
    assert condition(obj, "Ready")["reason"] == "NotMeasured"
    assert set(obj["status"]) == {"conditions"}
    assert agent.is_running()


def test_an_agent_that_may_not_list_pods_says_so(concerto_cluster: Cluster, namespace: str, node: str, tmp_path: Path):
    rules = [
        {"apiGroups": ["concerto.dev"], "resources": ["*"], "verbs": ["*"]},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
    ]
    account = {"kind": "ServiceAccount", "name": "default", "namespace": namespace}
    name = {"metadata": {"name": namespace}}
    rbac = "rbac.authorization.k8s.io"
    role = {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", **name, "rules": rules}
    reference = {"apiGroup": rbac, "kind": "ClusterRole", "name": namespace}
    bound = {
        "apiVersion": f"{rbac}/v1",
        "kind": "ClusterRoleBinding",
        **name,
        "roleRef": reference,
        "subjects": [account],
    }
    concerto_cluster.apply(role, bound)
    kubeconfig = concerto_cluster.token_kubeconfig(namespace, "default")
    command = concerto_command("agent", "--kubeconfig", str(kubeconfig), "--node-name", node)
    agent = Process("agent", command, tmp_path / "agent.log").start()

    def stalled() -> Object | None:
        obj = ncap(concerto_cluster, node)
        return obj if condition(obj, "Stalled")["status"] else None

    try:
        obj = eventually("it says so", stalled)
        assert condition(obj, "Stalled")["reason"] == "PodsUnknown"
        assert set(obj["status"]) == {"conditions"}, "no number that would count pods wrongly"
        role["rules"] = [*rules, {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]
        concerto_cluster.apply(role)
        assert wait_ready(concerto_cluster, node)["status"]["podCount"] == 0
    finally:
        agent.kill()
        concerto_cluster.kubectl("delete", "clusterrole,clusterrolebinding", namespace)


def test_pods_are_observed_when_their_cgroups_come_and_go(
    concerto_cluster: Cluster, namespace: str, node: str, start: Agents, sys_tree: Path
):
    job, found = (make_pod(concerto_cluster, namespace, node, name) for name in ("job", "found"))
    daemon = make_daemon_pod(concerto_cluster, namespace, node)
    qos = sys_tree / "fs/cgroup/kubepods.slice/kubepods-besteffort.slice"

    def cgroup(uid: str) -> Path:
        return qos / f"kubepods-besteffort-pod{uid.replace('-', '_')}.slice"

    def observed(*uids: str) -> Callable[[], bool]:
        return lambda: set(status(concerto_cluster, node)["observedPodUIDs"]) == set(uids)

    def begin(uid: str) -> None:
        for name in ("sandbox", "container"):
            (cgroup(uid) / name).mkdir(parents=True)

    begin(found)
    start("--sys", str(sys_tree))
    first = wait_ready(concerto_cluster, node)["status"]
    assert first["agent"]["podEvents"] == "Inotify"
    assert first["observedPodUIDs"] == [found], "it was there before the agent"
    for uid in (job, daemon, "00000000-0000-4000-8000-000000000000"):
        begin(uid)
    eventually("the job's pod is observed", observed(found, job))
    shutil.rmtree(cgroup(found))
    eventually("the other's end is observed", observed(job))
    concerto_cluster.kubectl("delete", "pod", "-n", namespace, "job", "--force", "--grace-period=0", "--wait=true")
    # A watch that shows this one has shown that end
    later = make_pod(concerto_cluster, namespace, node, "later")
    begin(later)
    eventually("it is deleted, but still there", observed(job, later))
    shutil.rmtree(cgroup(job))
    eventually("its end is observed", observed(later))


def test_it_writes_no_other_nodes_objects(concerto_cluster: Cluster, node: str, start: Agents):
    other = f"{node}-other"
    make_node(concerto_cluster, other)
    agent = start(name=other)
    eventually("it is refused", lambda: f"not {other}" in agent.log.read_text())
    assert f"The agent of node {node} may write only the objects named {node}" in agent.log.read_text()
    assert ncap(concerto_cluster, other) is None
    assert agent.is_running(), "it goes on measuring"
    concerto_cluster.kubectl("delete", "node", other, "--wait=false")


def test_an_object_that_was_deleted_is_made_again(concerto_cluster: Cluster, node: str, start: Agents):
    start()
    before = wait_ready(concerto_cluster, node)
    concerto_cluster.kubectl("delete", "ncap", node)
    after = wait_ready(concerto_cluster, node)
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert after["status"]["agent"] == before["status"]["agent"]
    assert after["metadata"]["ownerReferences"] == before["metadata"]["ownerReferences"]


def test_a_second_agent_for_the_same_node_is_reported(concerto_cluster: Cluster, node: str, start: Agents):
    start()
    wait_ready(concerto_cluster, node)
    concerto_cluster.kubectl("patch", "ncap", node, "--type=merge", "-p", '{"spec": {"heartbeat": "2s"}}')
    second = start()
    reported = eventually(
        "two agents write one object",
        lambda: (c := condition(ncap(concerto_cluster, node), "Stalled"))["reason"] == "AnotherAgent" and c,
    )
    assert "Stop one of the two" in reported["message"]
    second.kill()
    eventually(
        "one is left",
        lambda: condition(ncap(concerto_cluster, node), "Stalled")["reason"] == "AsExpected",
    )


def test_an_agent_that_was_killed_starts_afresh(concerto_cluster: Cluster, node: str, start: Agents):
    first = start()
    before = wait_ready(concerto_cluster, node)
    first.kill()
    start()
    after = eventually(
        "a new instance is Ready",
        lambda: (
            (obj := ncap(concerto_cluster, node))
            and obj["status"]["agent"]["instance"] != before["status"]["agent"]["instance"]
            and condition(obj, "Ready")["status"] == "True"
            and obj
        ),
    )
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert condition(after, "Stalled")["reason"] == "AsExpected", "the one before is gone, not another one"


def observed_at(obj: Object) -> datetime:
    return datetime.fromisoformat(obj["status"]["observedAt"])


def covered(obj: Object) -> int:
    return next(int(w["coveredSeconds"]) for w in obj["status"]["windows"] if w["window"] == "15m")


def test_it_measures_while_the_api_server_is_away(
    concerto_cluster: Cluster, control_plane: LocalControlPlane, node: str, start: Agents
):
    agent = start()
    before = wait_ready(concerto_cluster, node)
    control_plane.stop_apiserver(kill=True)
    time.sleep(4)
    assert agent.is_running()
    back = datetime.now(UTC)
    control_plane.start_apiserver()

    def again() -> Object | None:
        now = ncap(concerto_cluster, node)
        return now if now and observed_at(now) > back else None

    after = eventually("it is published again", again)
    assert after["status"]["agent"]["instance"] == before["status"]["agent"]["instance"]
    between = (observed_at(after) - observed_at(before)).total_seconds()
    assert covered(after) - covered(before) > between / 2, "the windows have no gap of that length"


def test_a_token_is_read_again_from_its_file(concerto_cluster: Cluster, node: str, start: Agents):
    good = concerto_cluster.service_account_token(NAMESPACE, "concerto-agent", bound_node=node)
    agent = start()
    wait_ready(concerto_cluster, node)
    uid = concerto_cluster.get("node", node)["metadata"]["uid"]
    # The Node is deleted and made anew: the token that was bound to it ends with it, and so do its objects
    concerto_cluster.kubectl("delete", "node", node)
    eventually("its objects are collected", lambda: ncap(concerto_cluster, node) is None)
    made = make_node(concerto_cluster, node)
    assert made != uid
    fresh = concerto_cluster.service_account_token(NAMESPACE, "concerto-agent", bound_node=node)
    assert fresh != good
    token_file = next(Path(f"{a}.token") for a in agent.command if "kubeconfig." in a)
    write_private(token_file, fresh)

    def again() -> bool:
        """The old token may have been good for another few seconds: one object more goes with the old Node."""
        obj = ncap(concerto_cluster, node)
        said = condition(obj, "Ready")["status"]
        return bool(obj and said and obj["metadata"]["ownerReferences"][0]["uid"] == made)

    eventually("it is made again, and is the new Node's", again)
    assert agent.is_running()
