"""Random nodes and pods.

Values come from short lists, so that what pods ask for often meets what nodes and other pods have.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from e2e.testbed.placement.constraints import Constraints

Object = dict[str, Any]

ZONE, HOSTNAME = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
NAMESPACES: Mapping[str, Mapping[str, str]] = {
    "red": {"team": "red"},
    "blue": {"team": "blue", "size": "large"},
    "bare": {},
}
"""Namespaces of all scenarios, and their labels."""
RUNTIME_CLASS = "heavy"
OVERHEAD = {"cpu": "250m", "memory": "64Mi"}
"""Overhead of pods of that RuntimeClass."""


def random_node(rng: random.Random, name: str) -> Object:
    """A node that is ready, and may have labels and taints."""
    labels = {HOSTNAME: name}
    for key, values, share in (
        (ZONE, "abc", 0.85), ("rack", "12", 0.6), ("disk", ("ssd", "hdd"), 0.5), ("size", ("1", "2", "10", "big"), 0.5),
    ):  # fmt: skip
        if rng.random() < share:
            labels[key] = rng.choice(values)
    taints = [
        dict(zip(("key", "value", "effect"), taint)) for taint in rng.sample(_TAINTS, rng.choice([0, 0, 0, 1, 2]))
    ]
    allocatable = {
        "cpu": rng.choice(["1", "2", "2500m", "4"]),
        "memory": rng.choice(["1Gi", "2Gi", "1500M", "4Gi"]),
        "pods": rng.choice(["110", "110", "110", "3", "2"]),
    }
    for resource, values in (("ephemeral-storage", ("2Gi", "8G")), ("hugepages-2Mi", ("8Mi", "64Mi")), (GPU, "12")):
        if rng.random() < 0.4:
            allocatable[resource] = rng.choice(values)
    spec: Object = {"taints": taints} if taints else {}
    if rng.random() < 0.08:
        spec["unschedulable"] = True
    status: Object = {"capacity": allocatable, "allocatable": allocatable, "conditions": [_ready()]}
    status["images"] = [
        {"names": [image], "sizeBytes": _IMAGES[image]} for image in rng.sample([*_IMAGES], rng.choice([0, 1, 2]))
    ]
    if rng.random() < 0.3:
        status["declaredFeatures"] = ["RestartAllContainersOnContainerExits"]
    return make_object("v1", "Node", name, labels=labels, spec=spec, status=status)


MI = 2**20
GPU = "example.com/gpu"
"""An extended resource that some nodes have."""
_IMAGES = {
    "none.invalid/none:latest": 80 * MI,
    "none.invalid/model:v2": 3000 * MI,
    "none.invalid:5000/tools:v1": 10 * MI,
}
"""Their sizes, bytes."""
_TAINTS = [
    ("dedicated", "a", "NoSchedule"), ("dedicated", "b", "NoExecute"), ("spot", "", "PreferNoSchedule"),
    ("maintenance", "", "NoSchedule"),
]  # fmt: skip


def _ready() -> Object:
    at = "2026-01-01T00:00:00Z"
    return {"type": "Ready", "status": "True", "reason": "Test", "lastHeartbeatTime": at, "lastTransitionTime": at}


def make_object(version: str, kind: str, name: str, **more: Any) -> Object:
    """An object with these parts beside its metadata, to which ``labels`` and ``metadata`` add."""
    labels = more.pop("labels", {})
    metadata: Object = {"name": name, "labels": labels} | more.pop("metadata", {})
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **more}


def host_ports(pod: Object) -> list[int]:
    """The host ports of all its containers."""
    containers = [*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())]
    return [port["hostPort"] for container in containers for port in container.get("ports", ())]


def resize_status(rng: random.Random, spec: Object) -> Object:
    """A status by which the node has given the pod's containers something else than their spec wants."""

    def amounts() -> Object:
        return {"cpu": rng.choice(["100m", "600m", "1200m"]), "memory": rng.choice(["64Mi", "700Mi"])}

    def reported(container: Object) -> Object:
        own = {"name": container["name"], "ready": True, "restartCount": 0, "image": "i", "imageID": "i"}
        if rng.random() < 0.7:
            own["resources"] = {"requests": amounts()}
        if rng.random() < 0.7:
            own["allocatedResources"] = amounts()
        return own

    status: Object = {"containerStatuses": [reported(c) for c in spec["containers"]]}
    if "initContainers" in spec:
        status["initContainerStatuses"] = [reported(c) for c in spec["initContainers"]]
    if rng.random() < 0.4:
        status |= {"resources": {"requests": amounts()}, "allocatedResources": amounts()}
    if rng.random() < 0.5:
        reason = rng.choice(["Infeasible", "Deferred"])
        status["conditions"] = [{"type": "PodResizePending", "status": "True", "reason": reason}]
    return status


def random_labels(rng: random.Random) -> dict[str, str]:
    """Labels of a pod."""
    labels = {"app": rng.choice("ab"), "tier": rng.choice("xy"), "pod-template-hash": rng.choice("12")}
    return labels | ({"tenant": rng.choice("gh")} if rng.random() < 0.5 else {})


class RandomPod:
    """A pod in the making.

    Args:
        rng: what it is made by.
        name: its name.
        nodes: names of the scenario's nodes.

    Attributes:
        body: the Pod.
        spec: its spec.
    """

    def __init__(self, rng: random.Random, name: str, nodes: list[str]) -> None:
        self._rng = rng
        self._constraints = Constraints(rng, nodes)
        labels = random_labels(rng)
        self.spec: Object = {
            "containers": [{"name": "main", "image": rng.choice(["none.invalid/none", *_IMAGES])}],
            "terminationGracePeriodSeconds": 30,
            "automountServiceAccountToken": False,
        }
        metadata = {"namespace": rng.choice([*NAMESPACES, "red"])}
        self.body = make_object("v1", "Pod", name, labels=labels, metadata=metadata, spec=self.spec)

    def ask(self, features: int | None = None, *, running: bool = False) -> None:
        """Add a number of requirements; a running pod gets none that its node has to meet."""
        rng = self._rng
        ways = [
            self._request, self._request, self._request_as_a_whole, self._start, self._use_ports,
            self._attract, self._repel, self._repel, self._prefer,
        ]  # fmt: skip
        if not running:
            ways += [self._select, self._select, self._tolerate, self._spread, self._spread, self._prefer_nodes]
        count = rng.randint(1, 4) if features is None else features
        for way in rng.sample(ways, count):
            way()
        if rng.random() < 0.1:
            self.spec["volumes"] = [{"name": "files", "image": {"reference": rng.choice([*_IMAGES])}}]
        if not running:
            if rng.random() < 0.3:
                self._tolerate()
            if rng.random() < 0.02:
                self.spec["schedulingGates"] = [{"name": "example.com/wait"}]
            if rng.random() < 0.04:
                rule = {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}
                self.spec["containers"][0] |= {"restartPolicy": "Never", "restartPolicyRules": [rule]}

    def ask_for(self, what: str) -> None:
        """Add one requirement: ports, company, distance, spread, nodes or taints."""
        ways = {
            "ports": self._use_ports,
            "company": self._attract,
            "distance": self._repel,
            "spread": self._spread,
            "nodes": self._select,
            "taints": self._tolerate,
        }
        ways[what]()

    def mount(self, claims: list[Object], *, missing: bool = False) -> None:
        """Use these claims, in whose namespace it then is, or one that does not exist."""
        names = [claim["metadata"]["name"] for claim in claims] if not missing else ["missing"]
        self.body["metadata"]["namespace"] = claims[0]["metadata"]["namespace"]
        volumes = self.spec.setdefault("volumes", [])
        first = sum("persistentVolumeClaim" in volume for volume in volumes)
        volumes += [
            {"name": f"v{i}", "persistentVolumeClaim": {"claimName": name}} for i, name in enumerate(names, first)
        ]

    def mount_own(self, name: str, claim: Object) -> None:
        """Use a claim with this ``spec`` that is made for the pod alone (a generic ephemeral volume)."""
        self.body["metadata"]["namespace"] = "red"
        volume = {"name": name, "ephemeral": {"volumeClaimTemplate": {"spec": claim}}}
        self.spec.setdefault("volumes", []).append(volume)

    def drop_ports(self) -> None:
        """Use no host ports."""
        for container in [*self.spec["containers"], *self.spec.get("initContainers", ())]:
            container.pop("ports", None)

    def _request(self) -> None:
        main = self.spec["containers"][0]
        main["resources"] = self._resources()
        if self._rng.random() < 0.3 and len(self.spec["containers"]) == 1:
            image = self._rng.choice([*_IMAGES])
            self.spec["containers"].append({"name": "second", "image": image, "resources": self._small()})
        if self._rng.random() < 0.15:
            self.spec |= {"runtimeClassName": RUNTIME_CLASS, "overhead": OVERHEAD}

    def _resources(self) -> Object:
        rng = self._rng
        requests = {"cpu": rng.choice(["100m", "0.5", "900m", "1500m", "3"])}
        if rng.random() < 0.6:
            requests["memory"] = rng.choice(["64Mi", "600Mi", "1Gi", "0"])
        if rng.random() < 0.2:
            requests["ephemeral-storage"] = rng.choice(["1Gi", "3Gi"])
        limits = {}
        if rng.random() < 0.15:
            limits[GPU] = rng.choice("12")
        if rng.random() < 0.1:
            limits["hugepages-2Mi"] = rng.choice(["4Mi", "32Mi"])
        if rng.random() < 0.1:
            return {"limits": requests | limits}
        return {"requests": requests | limits, "limits": limits} if limits else {"requests": requests}

    def _small(self) -> Object:
        return {"requests": {"cpu": self._rng.choice(["10m", "300m"]), "memory": "32Mi"}}

    def _request_as_a_whole(self) -> None:
        rng = self._rng
        self.spec["resources"] = {"requests": {"cpu": rng.choice(["4", "5"]), "memory": rng.choice(["2Gi", "3Gi"])}}
        if rng.random() < 0.6:
            self.spec["resources"] = {"requests": {"cpu": "3"}}
        if rng.random() < 0.25:
            # The API server sets the requests that are missing
            self.spec["resources"]["limits"] = {"cpu": "5", "memory": "3Gi"}

    def _start(self) -> None:
        rng = self._rng
        kinds = [rng.choice(["init", "sidecar"]) for _ in range(rng.randint(1, 3))]
        self.spec["initContainers"] = [
            {"name": f"{kind}{i}", "image": "none.invalid/none"}
            | ({"restartPolicy": "Always"} if kind == "sidecar" else {})
            | ({"resources": {"requests": {"cpu": rng.choice(["100m", "800m"])}}} if rng.random() < 0.8 else {})
            | ({"ports": [{"containerPort": 80, "hostPort": 8082}]} if rng.random() < 0.15 else {})
            for i, kind in enumerate(kinds)
        ]
        ported = [c for c in self.spec["initContainers"] if "ports" in c]
        for container in ported[1:]:
            del container["ports"]

    def _use_ports(self) -> None:
        rng = self._rng
        ports = []
        for number in rng.sample([8080, 8081], rng.choice([1, 1, 2])):
            port: Object = {"containerPort": 80 + number % 2, "hostPort": number}
            if rng.random() < 0.3:
                port["hostIP"] = rng.choice(["10.0.0.1", "10.0.0.2"])
            if rng.random() < 0.3:
                port["protocol"] = "UDP"
            ports.append(port)
        self.spec["containers"][0]["ports"] = ports

    def _select(self) -> None:
        if self._rng.random() < 0.4:
            self.spec["nodeSelector"] = self._constraints.node_labels()
        else:
            self._affinity("nodeAffinity")["requiredDuringSchedulingIgnoredDuringExecution"] = {
                "nodeSelectorTerms": self._constraints.node_terms()
            }

    def _tolerate(self) -> None:
        self.spec["tolerations"] = self._constraints.tolerations()

    def _attract(self) -> None:
        self._affinity("podAffinity")["requiredDuringSchedulingIgnoredDuringExecution"] = self._constraints.terms()

    def _repel(self) -> None:
        self._affinity("podAntiAffinity")["requiredDuringSchedulingIgnoredDuringExecution"] = self._constraints.terms()

    def _spread(self) -> None:
        self.spec["topologySpreadConstraints"] = self._constraints.spread()

    def _prefer_nodes(self) -> None:
        self._affinity("nodeAffinity")["preferredDuringSchedulingIgnoredDuringExecution"] = [
            {"weight": self._rng.randint(1, 100), "preference": term} for term in self._constraints.node_terms()
        ]

    def _prefer(self) -> None:
        kind = self._rng.choice(["podAffinity", "podAntiAffinity"])
        self._affinity(kind)["preferredDuringSchedulingIgnoredDuringExecution"] = [
            {"weight": self._rng.randint(1, 100), "podAffinityTerm": term} for term in self._constraints.terms()
        ]

    def _affinity(self, kind: str) -> Object:
        affinity: Object = self.spec.setdefault("affinity", {}).setdefault(kind, {})
        return affinity
