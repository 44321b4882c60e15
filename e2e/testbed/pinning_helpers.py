"""A real node whose agent pins, pods bound on it the way the scheduler binds them, and what the kernel says of them."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from concerto.api.cpulist import format_cpu_list
from e2e.testbed import REPOSITORY
from e2e.testbed.agent_helpers import Object, condition, pod_spec
from e2e.testbed.clusters import LocalControlPlane
from e2e.testbed.images import BUSYBOX_IMAGE, build_image
from e2e.testbed.nodes import RealNode, RealNodes
from e2e.testbed.processes import Process, agent_process
from e2e.testbed.waiting import eventually

GROUP = "/apis/concerto.dev/v1alpha1"
FULL = os.environ.get("CONCERTO_PINNING_FULL") == "1"
"""Whether the suites run as long as `make chaos` has them run."""
# kubelet settings with which neither a pod's cgroup nor kubelet gives a container what its binding says
STATIC_POLICY = {"cpuManagerPolicy": "static", "reservedSystemCPUs": "0"}
# What its own program says first: no other process is asked, and nothing is started before
FIRST_INSTRUCTION = (
    'while read k v; do [ "$k" = Cpus_allowed_list: ] && echo -n $v >/dev/termination-log; done </proc/self/status'
)


@contextlib.contextmanager
def pinning_node(
    cluster: LocalControlPlane,
    name: str,
    *,
    kubelet_config: Mapping[str, Any] | None = None,
    containerd: Path | None = None,
) -> Iterator[tuple[RealNode, Process]]:
    """A real node that has both CPUs of the machine, and its agent, which pins: by NRI with a containerd of ours."""
    cluster.kubectl("apply", "-f", str(REPOSITORY / "manifests" / "components" / "pinning" / "rbac.yaml"))
    with RealNodes(cluster, [name], kubelet_config=kubelet_config, containerd=containerd) as nodes:
        nodes.wait_ready()
        node = nodes[name]
        node.import_image(build_image(cluster.work_dir / "busybox.tar", BUSYBOX_IMAGE))
        more = [] if containerd is None else ["--nri-socket", str(node.nri_socket)]
        agent = pinning_agent(cluster, node, *more).start()
        try:
            yield node, agent
        finally:
            agent.kill()


def pinning_agent(cluster: LocalControlPlane, node: RealNode, *more: str) -> Process:
    """The agent of a real node, with the rights of the pinning component; not started."""
    flags = ["--scope", "cgroup", "--cgroup", node.cgroup, "--memory-capacity", str(node.spec.memory_bytes)]
    return agent_process(
        cluster, cluster.logs, node.name, [*flags, *node.kubelet_flags, "--pinning", *more], wrap=node.in_cgroup
    )


def pod(namespace: str, name: str, command: str, node: str = "", **spec: Any) -> Object:
    """A pod for nobody's scheduler; on a node from the start if one is given."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"schedulerName": "nobody", "restartPolicy": "Never", **pod_spec(command), **spec}
        | ({"nodeName": node} if node else {}),
    }


def binding(namespace: str, pod_name: str, cpus: Sequence[int], level: str = "CPU", name: str = "") -> Object:
    """A PodCPUBinding, by default of the pod's name."""
    return {
        "apiVersion": "concerto.dev/v1alpha1",
        "kind": "PodCPUBinding",
        "metadata": {"name": name or pod_name, "namespace": namespace},
        "spec": {"podName": pod_name, "cpuSet": [{"cpuID": cpu} for cpu in cpus], "exclusivenessLevel": level},
    }


def get_binding(cluster: LocalControlPlane, namespace: str, name: str) -> Object:
    """The PodCPUBinding as it is."""
    return cluster.request("GET", f"{GROUP}/namespaces/{namespace}/podcpubindings/{name}")


def grant(cluster: LocalControlPlane, obj: Object, node: str, pod_uid: str, mems: str = "0") -> None:
    """Say in a binding's status what the operator says once it has assigned the pod to the node."""
    metadata = obj["metadata"]
    held = {
        "type": "Validated",
        "status": "True",
        "reason": "Validated",
        "message": "CPU binding is validated.",
        "observedGeneration": metadata["generation"],
        "lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    agents = [c for c in obj.get("status", {}).get("conditions", ()) if c["type"] != "Validated"]
    cpus = format_cpu_list(item["cpuID"] for item in obj["spec"]["cpuSet"])
    status = {**obj.get("status", {}), "nodeName": node, "podUID": pod_uid, "cpus": cpus, "mems": mems}
    if containers := obj["spec"].get("containers"):
        status["containers"] = containers
    body = obj | {"status": status | {"resourceStatus": "Validated", "conditions": [*agents, held]}}
    path = f"{GROUP}/namespaces/{metadata['namespace']}/podcpubindings/{metadata['name']}/status"
    cluster.request("PUT", path, body)


def until_condition(cluster: LocalControlPlane, namespace: str, name: str, kind: str, status: str = "True") -> Object:
    """The binding once the agent has said this of its present generation."""

    def look() -> Object | None:
        obj = get_binding(cluster, namespace, name)
        found = condition(obj, kind)
        current = found.get("observedGeneration") == obj["metadata"]["generation"]
        return obj if current and found["status"] == status else None

    return dict(eventually(f"{kind} of {name} is {status}", look))


def start_bound(cluster: LocalControlPlane, node: str, objects: Sequence[tuple[Object, Object]]) -> None:
    """Make pods and their bindings, and bind each pod once the node's agent is prepared, all at the same time."""

    def one(made: tuple[Object, Object]) -> None:
        new_pod, new_binding = made
        namespace, name = new_pod["metadata"]["namespace"], new_pod["metadata"]["name"]
        uid = cluster.request("POST", f"/api/v1/namespaces/{namespace}/pods", new_pod)["metadata"]["uid"]
        bound = cluster.request("POST", f"{GROUP}/namespaces/{namespace}/podcpubindings", new_binding)
        grant(cluster, bound, node, uid)
        until_condition(cluster, namespace, new_binding["metadata"]["name"], "Prepared")
        target = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace, "uid": uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        cluster.request("POST", f"/api/v1/namespaces/{namespace}/pods/{name}/binding", target)

    with ThreadPoolExecutor(len(objects)) as pool:
        list(pool.map(one, objects))


def ends(cluster: LocalControlPlane, namespace: str, names: Sequence[str]) -> dict[str, str]:
    """What each pod has said at its end, once all have ended."""

    def look() -> dict[str, str] | None:
        found = {}
        for item in cluster.request("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]:
            for status in item.get("status", {}).get("containerStatuses", ()):
                if terminated := status["state"].get("terminated"):
                    found[item["metadata"]["name"]] = terminated.get("message", "")
        return found if found.keys() >= set(names) else None

    return dict(eventually("all pods have ended", look))


class Kernel:
    """The cpusets of a node's pods, as the kernel shows them (v1)."""

    def __init__(self, node: RealNode) -> None:
        self.kubepods = node.cgroup_path("cpuset") / "kubepods"
        self._cpu = node.cgroup_path("cpu") / "kubepods"

    def pod(self, uid: str) -> Path:
        """The directory of a pod's cgroup."""
        places = (self.kubepods / qos / f"pod{uid}" for qos in ("besteffort", "burstable", "."))
        return next(place for place in places if place.is_dir())

    def sets(self, uid: str) -> set[str]:
        """The different ``cpuset.cpus`` of a pod's cgroups; empty if it has none."""
        found = set()
        with contextlib.suppress(StopIteration, OSError):
            for path in [self.pod(uid), *(p for p in self.pod(uid).iterdir() if p.is_dir())]:
                found.add((path / "cpuset.cpus").read_text().strip())
        return found

    def widen(self, uid: str, cpus: str) -> None:
        """What somebody does by hand who does not want the pod pinned; no agent may be there."""
        for path in [self.pod(uid), *filter(Path.is_dir, self.pod(uid).iterdir())]:
            (path / "cpuset.cpus").write_text(cpus)

    def quotas(self, uid: str) -> list[int]:
        """Microseconds of CPU that a pod and its containers have in each period; -1 is without limit."""
        pod = self._cpu / self.pod(uid).relative_to(self.kubepods)
        return sorted(
            int((path / "cpu.cfs_quota_us").read_text()) for path in [pod, *filter(Path.is_dir, pod.iterdir())]
        )

    def allowed(self, uid: str, word: bytes = b"") -> set[str]:
        """``Cpus_allowed_list`` of every process of the pod whose command line has the word; empty if it has none."""
        found = set()
        with contextlib.suppress(StopIteration):
            for file in self.pod(uid).glob("*/cgroup.procs"):
                with contextlib.suppress(OSError):
                    for pid in file.read_text().split():
                        if word in Path(f"/proc/{pid}/cmdline").read_bytes():
                            status = Path(f"/proc/{pid}/status").read_text()
                            found.add(status.split("Cpus_allowed_list:")[1].split()[0])
        return found

    def program(self, uid: str) -> set[str]:
        """The same of what runs ``sleep 1000``: the pod's own command, without the sandbox's."""
        return self.allowed(uid, b"1000")

    def until_it_runs(self, uid: str) -> None:
        """Wait for the pod's own command: by then all its cgroups are there."""
        eventually(f"pod {uid} runs", lambda: self.program(uid))

    def until(self, uid: str, cpus: str) -> float:
        """Wait until all cgroups and processes of a pod have these CPUs; how long that took, seconds."""
        began = time.monotonic()
        eventually(f"pod {uid} has CPUs {cpus}", lambda: self.sets(uid) == {cpus} and self.allowed(uid) <= {cpus})
        return time.monotonic() - began
