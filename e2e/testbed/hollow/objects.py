"""What a kubelet writes, as plain objects: Node, Lease and pod statuses. Pure.

Modelled on what kubelet 1.35 leaves in the API server for a Job's pods.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from concerto.api.pod import PodView
from concerto.api.quantities import parse_quantity
from concerto.api.timestamps import format_micro_timestamp, format_timestamp
from concerto.simulation.scheduling.node_model import PodLoad

Object = dict[str, Any]

LEASE_NAMESPACE = "kube-node-lease"
LABEL = "hollow.concerto.dev/fleet"
# What a pod's load is read from; each may be left out.
ANNOTATION = "hollow.concerto.dev/"

# Pods that end do the small workload of Carico, section 5.2 (docs/references.md); others are a service, idle mostly.
FINITE_LOAD = PodLoad(wait_seconds=2.0, core_seconds=4.1)
SERVICE_LOAD = PodLoad(wait_seconds=0.9, core_seconds=0.1, bursts=0)


@dataclass(frozen=True)
class NodeShape:
    """What each simulated node has.

    Attributes:
        cores: CPUs.
        memory_bytes: memory.
        max_pods: most pods it admits.
        zones: how many zones the nodes are dealt out to by their numbers; 0: they have no label of a zone.
    """

    cores: int = 4
    memory_bytes: int = 8 * 2**30
    max_pods: int = 110
    zones: int = 0


@dataclass
class HollowNode:
    """One simulated node.

    Attributes:
        index: its row in the model.
        name: of its Node.
        address: that it claims.
        uid: of its Node, once that exists.
        alive: whether it has power; from when it has been registered.
    """

    index: int
    name: str
    address: str
    uid: str = ""
    alive: bool = False


def pod_load(pod: Mapping[str, Any]) -> PodLoad:
    """What a pod does once it runs: from its annotations, its CPU limit and its restart policy.

    Annotations (all optional): ``hollow.concerto.dev/wait-seconds``, ``core-seconds``, ``threads``, ``bursts`` (0: for
    ever), ``memory`` (a quantity), ``memory-ramp-seconds``.

    Raises:
        ValueError: an annotation is no number; the message names it.
    """
    annotations = {
        key.removeprefix(ANNOTATION): value
        for key, value in (pod["metadata"].get("annotations") or {}).items()
        if key.startswith(ANNOTATION)
    }
    load = SERVICE_LOAD if pod["spec"].get("restartPolicy", "Always") == "Always" else FINITE_LOAD
    fields = {
        "wait-seconds": ("wait_seconds", float),
        "core-seconds": ("core_seconds", float),
        "threads": ("threads", int),
        "bursts": ("bursts", int),
        "memory": ("memory_bytes", lambda value: float(parse_quantity(value))),
        "memory-ramp-seconds": ("memory_ramp_seconds", float),
    }
    changes: dict[str, Any] = {}
    for key, (name, convert) in fields.items():
        if key in annotations:
            try:
                changes[name] = convert(annotations[key])
            except ValueError as error:
                raise ValueError(f"annotation {ANNOTATION}{key}: {error}") from error
    limits = [(c.get("resources") or {}).get("limits") or {} for c in pod["spec"]["containers"]]
    if all("cpu" in limit for limit in limits):
        changes["cpu_limit"] = float(sum(parse_quantity(limit["cpu"]) for limit in limits))
    return replace(load, **changes)


def build_node(name: str, address: str, fleet: str, shape: NodeShape, now: float) -> Object:
    """The Node as a kubelet registers it: Ready, with all it has allocatable."""
    resources = {"cpu": str(shape.cores), "memory": str(shape.memory_bytes), "pods": str(shape.max_pods)}
    number = int(name.rpartition("-")[2])
    zone = {"topology.kubernetes.io/zone": f"zone-{number % shape.zones}"} if shape.zones else {}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                LABEL: fleet,
                **zone,
            },
        },
        "status": {
            "addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}],
            "allocatable": resources,
            "capacity": resources,
            "conditions": node_conditions(now),
            "nodeInfo": {
                "architecture": "amd64",
                "bootID": "",
                "containerRuntimeVersion": "hollow://1",
                "kernelVersion": "",
                "kubeProxyVersion": "",
                "kubeletVersion": "v1.37.2",
                "machineID": name,
                "operatingSystem": "linux",
                "osImage": "Concerto simulated node",
                "systemUUID": name,
            },
        },
    }


def node_conditions(now: float) -> list[Object]:
    """A kubelet's conditions on a node where all is well."""
    at = format_timestamp(now)
    said = {
        "MemoryPressure": ("False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        "DiskPressure": ("False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        "PIDPressure": ("False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        "Ready": ("True", "KubeletReady", "kubelet is posting ready status"),
    }
    return [
        {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": at,
            "lastTransitionTime": at,
        }
        for kind, (status, reason, message) in said.items()
    ]


def build_lease(name: str, uid: str, renew_seconds: float, now: float) -> Object:
    """The node's Lease; kubelet asks for four times what it renews in."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": name,
            "namespace": LEASE_NAMESPACE,
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}],
        },
        "spec": {
            "holderIdentity": name,
            "leaseDurationSeconds": int(4 * renew_seconds),
            "renewTime": format_micro_timestamp(now),
        },
    }


def refusal(pod: PodView, node_pods: Mapping[str, Mapping[str, int]], allocatable: Mapping[str, int]) -> str | None:
    """Why the kubelet's admission refuses the pod (``OutOfcpu``, ``OutOfpods``, ...), or None.

    Args:
        pod: the pod that has been bound here.
        node_pods: requests of the pods that are here already, by UID.
        allocatable: the node's, in the units of ``concerto.api.quantities.resource_amount``.
    """
    if len(node_pods) >= allocatable["pods"]:
        return "OutOfpods"
    for resource in ("cpu", "memory"):
        wanted = pod.requests.get(resource, 0)
        if wanted and wanted + sum(r.get(resource, 0) for r in node_pods.values()) > allocatable[resource]:
            return f"OutOf{resource}"
    return None


@dataclass(frozen=True)
class ContainerEnd:
    """How a pod's containers ended.

    Attributes:
        at: when, seconds since the epoch.
        exit_code: of each.
        reason: Completed, OOMKilled, Error or Unknown.
    """

    at: float
    exit_code: int
    reason: str


@dataclass(frozen=True)
class PodLife:
    """What a kubelet knows of a pod whose status it is about to write.

    Attributes:
        address: the node's.
        pod_ip: the pod's.
        admitted: when the kubelet saw it, seconds since the epoch.
        started: when its containers started; None if they did not yet.
        end: how they ended; None if they did not yet.
        restarts: how often they have been started again.
    """

    address: str
    pod_ip: str
    admitted: float
    started: float | None = None
    end: ContainerEnd | None = None
    restarts: int = 0


def _conditions(pod: Mapping[str, Any], true: Mapping[str, bool], reason: str, now: float) -> list[Object]:
    """The pod's conditions with those of ``true`` set; the scheduler's stays as it is."""
    before = {c["type"]: c for c in (pod.get("status") or {}).get("conditions") or []}
    for kind, holds in true.items():
        status = str(holds)
        same = before.get(kind, {}).get("status") == status
        since = before[kind]["lastTransitionTime"] if same else format_timestamp(now)
        before[kind] = {"type": kind, "status": status, "lastProbeTime": None, "lastTransitionTime": since}
        if reason and kind != "PodReadyToStartContainers":
            before[kind]["reason"] = reason
    return list(before.values())


def pod_status(pod: Mapping[str, Any], life: PodLife, now: float) -> Object:
    """The status that a kubelet writes for the pod at this point of its life; for a merge patch."""
    running = life.started is not None and life.end is None
    phase = "Running" if running else "Pending"
    if life.end is not None:
        phase = "Succeeded" if life.end.exit_code == 0 else "Failed"
    started_at = format_timestamp(life.started) if life.started is not None else None
    uid, containers = pod["metadata"]["uid"], []
    for index, container in enumerate(pod["spec"]["containers"]):
        container_id = f"hollow://{uid}-{index}-{life.restarts}"
        if life.end is not None:
            state: Object = {
                "terminated": {
                    "containerID": container_id,
                    "exitCode": life.end.exit_code,
                    "reason": life.end.reason,
                    "startedAt": started_at,
                    "finishedAt": format_timestamp(life.end.at),
                }
            }
        elif running:
            state = {"running": {"startedAt": started_at}}
        else:
            state = {"waiting": {"reason": "ContainerCreating"}}
        containers.append(
            {
                "name": container["name"],
                "image": container["image"],
                "imageID": "",
                "containerID": "" if life.started is None else container_id,
                "ready": running,
                "started": running,
                "restartCount": life.restarts,
                "lastState": {},
                "state": state,
            }
        )
    true = {"PodReadyToStartContainers": running, "Initialized": True, "Ready": running, "ContainersReady": running}
    return {
        "phase": phase,
        "conditions": _conditions(pod, true, "PodCompleted" if phase == "Succeeded" else "", now),
        "containerStatuses": containers,
        "hostIP": life.address,
        "hostIPs": [{"ip": life.address}],
        "podIP": life.pod_ip,
        "podIPs": [{"ip": life.pod_ip}],
        "startTime": format_timestamp(life.admitted),
    }


def rejected_status(pod: Mapping[str, Any], reason: str, now: float) -> Object:
    """The status of a pod that the kubelet's admission has refused."""
    name = pod["metadata"]["name"]
    message = f"Pod was rejected: Node didn't have enough resource: {reason.removeprefix('OutOf')} (pod {name})"
    return {"phase": "Failed", "reason": reason, "message": message, "startTime": format_timestamp(now)}
