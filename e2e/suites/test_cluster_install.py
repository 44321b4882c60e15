"""Concerto as a platform team runs it: from images, restarted while it works, and removed without a trace.

One installation, looked at from all sides; the last test removes it. `make e2e-cluster` runs it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from e2e.image.build import Images, cached
from e2e.testbed.clusters import LocalControlPlane
from e2e.testbed.incluster import NAMESPACE, OVERLAY, import_images, install, wait_rolled_out
from e2e.testbed.nodes import RealNode, RealNodes
from e2e.testbed.processes import concerto_command
from e2e.testbed.recorder import Recorder
from e2e.testbed.requirements import require_binaries, require_kubelet
from e2e.testbed.system import REPOSITORY, System, busybox_job
from e2e.testbed.waiting import eventually

pytestmark = [pytest.mark.realnode, pytest.mark.timeout(900)]
NAMES = ("n1", "n2")
OPERATOR, AUTOSCALER, AGENT = "concerto-operator", "concerto-autoscaler", "concerto-agent"
LEASE_SECONDS = 15
PODS = 60
# Come and go without us
NOT_OURS = {"events", "events.events.k8s.io", "pods", "componentstatuses", "endpoints"}
# What containerd mounts into every container, on the file system of the node
GIVEN = {"/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/dev/termination-log"}


@dataclass
class Installed:
    """What the tests look at."""

    cluster: LocalControlPlane
    nodes: RealNodes
    images: Images
    system: System
    before: set[str]
    cgroups_before: dict[str, str]

    def pods(self, name: str) -> list[dict[str, Any]]:
        """Pods of one of our workloads that are not on their way out."""
        found = self.cluster.get("pods", "-n", NAMESPACE, "-l", f"app.kubernetes.io/name={name}")["items"]
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]


def everything(cluster: LocalControlPlane) -> set[str]:
    """Kind, namespace and name of every object there is, but for what comes and goes by itself."""
    kinds = set(cluster.kubectl("api-resources", "--verbs=list", "-o", "name").split()) - NOT_OURS
    columns = "custom-columns=:kind,:metadata.namespace,:metadata.name"
    shown = cluster.kubectl("get", ",".join(sorted(kinds)), "-A", "-o", columns, "--no-headers")
    rows = {" ".join(line.split()) for line in shown.splitlines() if line.strip()}
    # kubelets' own, as soon as they have registered
    return {row for row in rows if not row.startswith("Lease kube-node-lease ")}


def cgroup_settings(nodes: RealNodes) -> dict[str, str]:
    """What is set for each cgroup of pods."""
    found = {}
    for node in nodes:
        for controller, names in {
            "cpuset": ("cpuset.cpus", "cpuset.mems"),
            "cpu": ("cpu.shares", "cpu.cfs_quota_us", "cpu.weight", "cpu.max"),
        }.items():
            for name in names:
                for path in node.cgroup_path(controller).glob(f"kubepods/**/{name}"):
                    # kubelet gives all burstable pods together what they ask for together, ours among them
                    if controller == "cpuset" or "/pod" in str(path):
                        found[str(path)] = path.read_text()
    return found


@pytest.fixture(scope="module")
def found(say: Callable[[str], None]) -> Iterator[Installed]:
    if not os.environ.get("E2E_CLUSTER"):
        pytest.skip("installing from images takes 4 minutes: make e2e-cluster")
    binaries = require_binaries(say)
    require_kubelet(binaries)
    images = cached(say)
    with LocalControlPlane(binaries, scheduler=True) as cluster, RealNodes(cluster, NAMES) as nodes:
        nodes.wait_ready()
        before, cgroups = everything(cluster), cgroup_settings(nodes)
        import_images(nodes, images)
        install(cluster)
        system = System(cluster, list(NAMES), nodes, {}, None, cluster.logs, OVERLAY)
        try:
            wait_rolled_out(cluster)
            system.wait_measured()
            yield Installed(cluster, nodes, images, system, before, cgroups)
        finally:
            for name in (OPERATOR, AUTOSCALER, AGENT):
                said = cluster.kubectl(
                    "logs", "-n", NAMESPACE, "-l", f"app.kubernetes.io/name={name}", "--tail=200", check=False
                )
                (cluster.logs / f"{name}.log").write_text(said)


def test_images_are_small_and_hold_neither_shell_nor_pip(found):
    assert found.images.bytes <= 150 * 2**20
    for node in found.nodes:
        listed = node.exec("ctr", "-n", "k8s.io", "images", "list", "-q").split()
        assert {"docker.io/library/concerto-operator:0.1.0", "docker.io/library/concerto-agent:0.1.0"} <= set(listed)
    for pod in [*found.pods(OPERATOR), *found.pods(AUTOSCALER), *found.pods(AGENT)]:
        root = Path(f"/proc/{process(found, pod)}/root")
        programs = {p.name for folder in ("bin", "usr/bin", "usr/local/bin", "sbin") for p in (root / folder).glob("*")}
        assert "python3" in programs
        assert not programs & {
            "sh",
            "bash",
            "dash",
            "busybox",
            "apt",
            "apt-get",
            "dpkg",
            "pip",
            "pip3",
            "cc",
            "gcc",
            "ld",
        }
        assert not [*root.glob("opt/concerto/pip*"), *root.glob("usr/lib/python3*/**/pip")]


def test_the_trace_of_a_node_is_read_from_the_pods_through_the_api_server(found):
    arguments = ["top", "node", NAMES[0], "--trace", "--every", "1s", "--kubeconfig", str(found.cluster.kubeconfig)]

    def traced() -> str:
        done = subprocess.run(concerto_command(*arguments), capture_output=True, text=True, check=False)
        return done.stdout if done.returncode == 0 and "Nothing has been kept" not in done.stdout else ""

    shown = eventually("agent and leading operator have kept something", traced)
    for title in ("PODS AS UNITS, by the node's agent", "BY KIND, by the operator"):
        assert re.search(title + r"\nAT .*\n\d\d:\d\d:\d\d ", shown), shown


def test_two_operators_run_on_two_nodes_and_an_agent_on_each(found):
    for name in (OPERATOR, AGENT):
        pods = found.pods(name)
        assert sorted(pod["spec"]["nodeName"] for pod in pods) == list(NAMES)
        assert all(pod["spec"]["schedulerName"] == "default-scheduler" for pod in pods)
        assert [c["restartCount"] for pod in pods for c in pod["status"]["containerStatuses"]] == [0, 0]


def test_the_service_account_owns_the_lease(found):
    lease = found.cluster.get("lease", OPERATOR, "-n", NAMESPACE)
    account = found.cluster.get("serviceaccount", OPERATOR, "-n", NAMESPACE)
    (owner,) = lease["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("ServiceAccount", account["metadata"]["uid"])
    holder = lease["spec"]["holderIdentity"].rpartition("_")[0]
    assert holder in {pod["metadata"]["name"] for pod in found.pods(OPERATOR)}


def test_nobody_was_refused_anything(found):
    for pod in [*found.pods(OPERATOR), *found.pods(AUTOSCALER), *found.pods(AGENT)]:
        said = found.cluster.kubectl("logs", "-n", NAMESPACE, pod["metadata"]["name"])
        wrong = [line for line in said.splitlines() if re.search(r"ERROR|CRITICAL|[Ff]orbidden", line)]
        # kopf says so of what it asks again: the server is not ready with a kind that is a second old
        wrong = [line for line in wrong if "will retry" not in line]
        assert wrong == []


# --- the scan


def process(found: Installed, pod: dict[str, Any]) -> int:
    """The machine's number of the process that a pod's container runs."""
    node: RealNode = found.nodes[pod["spec"]["nodeName"]]
    (status,) = pod["status"]["containerStatuses"]
    container = status["containerID"].rpartition("//")[2]
    (procs,) = node.cgroup_path("memory").glob(f"kubepods/**/{container}/cgroup.procs")
    return int(procs.read_text().split()[0])


def named_paths() -> set[str]:
    """The host paths that docs/security.md names."""
    text = (REPOSITORY / "docs" / "security.md").read_text()
    section = text.partition("## Host paths")[2].partition("\n## ")[0]
    return set(re.findall(r"^\| `(/[^`]*)`", section, flags=re.MULTILINE))


def test_no_pod_has_more_of_its_node_than_the_page_on_security_says(found):
    for pod in [*found.pods(OPERATOR), *found.pods(AUTOSCALER), *found.pods(AGENT)]:
        spec = pod["spec"]
        paths = {v["hostPath"]["path"] for v in spec["volumes"] if "hostPath" in v}
        assert paths <= (named_paths() if AGENT in pod["metadata"]["name"] else set())
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        (container,) = spec["containers"]
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"] is True
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert "privileged" not in context


def test_processes_have_neither_capabilities_nor_a_writable_root(found):
    for pod in [*found.pods(OPERATOR), *found.pods(AUTOSCALER), *found.pods(AGENT)]:
        proc = Path(f"/proc/{process(found, pod)}")
        status = dict(line.split(":\t", 1) for line in (proc / "status").read_text().splitlines() if ":\t" in line)
        is_agent = AGENT in pod["metadata"]["name"]
        # cgroups belong to root: an agent that pins runs as root, and as nothing more
        pins = is_agent and "--pinning" in pod["spec"]["containers"][0]["args"]
        assert set(status["Uid"].split()) == ({"0"} if pins else {"65532"})
        assert {int(status[name], 16) for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
        assert status["NoNewPrivs"].strip() == "1"
        assert status["Seccomp"].strip() == "2"
        writable = set()
        for line in (proc / "mountinfo").read_text().splitlines():
            fields = line.split()
            kind = fields[fields.index("-") + 1]
            if "rw" in fields[5].split(",") and kind not in ("proc", "devpts", "mqueue", "tmpfs"):
                writable.add(fields[4])
        # Hierarchies of cgroup v1 are mounts of their own, read-only for all from containerd 2.0 on: until then only
        # root can write them, which no other pod of ours is
        cgroups = {path for path in writable if path.startswith("/host/sys/fs/cgroup")}
        assert writable - GIVEN - cgroups == set()
        assert is_agent or not cgroups


def test_an_agent_sees_kubelets_state_and_nothing_in_its_folders(found):
    for pod in found.pods(AGENT):
        root = Path(f"/proc/{process(found, pod)}/root")
        folders = {path.name: list(path.iterdir()) for path in (root / "host/kubelet").iterdir() if path.is_dir()}
        assert folders.keys() >= {"checkpoints", "image_manager", "pki", "pods", "pods-api"}
        assert not any(folders.values()), folders
        assert (root / "host/kubelet/cpu_manager_state").read_text()
        # the agent verified its kubelet by the copy
        assert "BEGIN CERTIFICATE" in (root / "kubelet-certificate/kubelet.crt").read_text()
        said = found.cluster.kubectl("logs", "-n", NAMESPACE, pod["metadata"]["name"])
        assert "/configz can't be read" not in said


# --- while it works


def job(name: str, pods: int, parallelism: int) -> dict[str, Any]:
    return busybox_job(name, "default", "app", ["sleep", "1"], pods=pods, parallelism=parallelism)


def succeeded(cluster: LocalControlPlane, name: str) -> int:
    return int(cluster.get("job", name)["status"].get("succeeded", 0))


def seconds(moment: str) -> float:
    """A time of the API, seconds since the epoch."""
    return datetime.fromisoformat(moment).timestamp()


def placed_at(pod: dict[str, Any]) -> float:
    """When a pod was placed, seconds since the epoch."""
    (condition,) = [c for c in pod["status"]["conditions"] if c["type"] == "PodScheduled"]
    return seconds(condition["lastTransitionTime"])


def test_a_rolling_restart_during_a_job_loses_nothing_and_keeps_no_pod_waiting_longer_than_a_lease_lasts(found, say):
    cluster = found.cluster
    with Recorder(str(cluster.kubeconfig)) as recorder:
        cluster.apply(job("rolling", PODS, 6))
        owners = set()

        def some_done() -> bool:
            for batch in cluster.get("pres", "-n", NAMESPACE, "-l", "concerto.dev/in-flight")["items"]:
                owners.add(tuple(o["name"] for o in batch["metadata"].get("ownerReferences", ())))
            return succeeded(cluster, "rolling") >= 6

        eventually("6 pods are done", some_done)
        assert owners == {(OPERATOR,)}
        old = {pod["metadata"]["uid"] for name in (OPERATOR, AGENT) for pod in found.pods(name)}
        began = time.time()
        cluster.kubectl("rollout", "restart", "-n", NAMESPACE, f"deployment/{OPERATOR}", f"daemonset/{AGENT}")
        wait_rolled_out(cluster, 180)
        restarted = time.time()
        cluster.wait("--for=condition=complete", "job/rolling", seconds=300)
        left = found.system.wait_no_batches()
    new = {pod["metadata"]["uid"] for name in (OPERATOR, AGENT) for pod in found.pods(name)}
    assert len(new) == 4
    assert not new & old
    verdict = recorder.verify()
    assert recorder.gaps == []
    assert verdict.violations == []
    assert verdict.rebound == []
    assert left == []
    pods = cluster.get("pods", "-l", "app=rolling")["items"]
    assert [pod["status"]["phase"] for pod in pods] == ["Succeeded"] * PODS
    waits = [placed_at(pod) - seconds(pod["metadata"]["creationTimestamp"]) for pod in pods]
    during = sum(began <= placed_at(pod) <= restarted for pod in pods)
    say(f"rolling restart: {restarted - began:.0f} s, {during} pods placed in it, the longest wait {max(waits):.0f} s")
    assert during
    assert max(waits) <= LEASE_SECONDS


def test_nothing_that_was_applied_has_been_written_to(found):
    assert found.system.diff() == ""


# --- the end


def test_removal_leaves_nothing_behind_and_lets_workloads_run(found):
    cluster = found.cluster
    cluster.kubectl("delete", "job", "rolling", "--wait=true")
    template = job("kept", 1, 1)["spec"]["template"]
    template["spec"]["containers"][0]["command"] = ["sleep", "3600"]
    template["spec"]["restartPolicy"] = "Always"
    cluster.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "kept", "namespace": "default"},
            "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "kept"}}, "template": template},
        }
    )
    cluster.kubectl("rollout", "status", "deployment/kept")

    def kept() -> list[tuple[Any, ...]]:
        return [
            (p["metadata"]["uid"], p["status"]["phase"], p["status"]["containerStatuses"][0]["restartCount"])
            for p in cluster.get("pods", "-l", "app=kept")["items"]
        ]

    running, cgroups = kept(), cgroup_settings(found.nodes)
    assert [phase for _, phase, _ in running] == ["Running", "Running"]
    held = [
        f"{o['kind']} {o['metadata']['name']}"
        for kind in ("ncap", "sub", "pres", "ncpu", "pcb", "phpa", "sprof")
        for o in json.loads(cluster.kubectl("get", kind, "-A", "-o", "json"))["items"]
        if o["metadata"].get("finalizers")
    ]
    assert held == []

    # Kinds go before objects of theirs, which kubectl then finds gone
    cluster.kubectl("delete", "-k", str(OVERLAY), "--ignore-not-found", "--timeout=120s", timeout_seconds=130)

    def more() -> set[str]:
        return {line for line in everything(cluster) - found.before if not line.split()[2].startswith("kept")}

    eventually(lambda: f"nothing more is there, of {more()}", lambda: not more())
    assert found.before - everything(cluster) == set()
    assert kept() == running
    after = cgroup_settings(found.nodes)
    for earlier in (found.cgroups_before, cgroups):
        common = earlier.keys() & after.keys()
        assert common
        assert {path: after[path] for path in common} == {path: earlier[path] for path in common}
