"""Random clusters and pods, by number: always the same objects for the same number.

Values come from short lists, so that what pods ask for often meets what nodes and other pods have.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
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
WAITS, MADE, AT_ONCE = "waits", "made", "at-once"
"""StorageClasses: volumes exist and are bound for a pod; volumes are made for a pod; volumes are bound at once."""
DRIVER = "disks.example.com"
"""CSI driver of the volumes that are not local."""
_SHARE_WITH_CLAIMS = 0.2


@dataclass
class Scenario:
    """One cluster, and pods that are to be placed on it one after another.

    Attributes:
        name: prefix of all its objects.
        nodes: its Nodes.
        storage: PersistentVolumes, claims and CSINodes.
        running: pods that are bound when the scenario begins.
        statuses: of running pods whose status is not that of a new pod, by name.
        deleted: names of running pods that are being deleted.
        pods: those to place, in order.
    """

    name: str
    nodes: list[Object] = field(default_factory=list)
    storage: list[Object] = field(default_factory=list)
    running: list[Object] = field(default_factory=list)
    statuses: dict[str, Object] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    pods: list[Object] = field(default_factory=list)


def scenario(number: int) -> Scenario:
    """The scenario of that number."""
    rng = random.Random(f"placement-{number}")
    found = Scenario(f"s{number}")
    names = [f"{found.name}-n{i}" for i in range(rng.randint(2, 6))]
    found.nodes = [_node(rng, name) for name in names]
    if rng.random() < _SHARE_WITH_CLAIMS:
        _Storage(rng, found, names).add()
    claims = [o for o in found.storage if o["kind"] == "PersistentVolumeClaim"]
    for i in range(rng.randint(0, 2 * len(names))):
        _add_running(rng, found, f"{found.name}-r{i}", names, claims)
    for i in range(rng.randint(2, 4)):
        pod = _Pod(rng, f"{found.name}-p{i}", names)
        pod.ask()
        found.pods.append(pod.body)
    # The binding of a pod with a claim may take as long as it likes, so it is the last
    if claims and rng.random() < 0.9:
        pod = _Pod(rng, f"{found.name}-p9", names)
        pod.ask(rng.choice([0, 0, 1]))
        # Two claims that wait could take each other's volume, which the rules do not follow
        bound = [claim for claim in claims if claim["spec"].get("volumeName")]
        mounted = {
            claim["metadata"]["name"]: claim for claim in [rng.choice(claims), *rng.sample(bound, min(1, len(bound)))]
        }
        pod.mount([*mounted.values()], missing=rng.random() < 0.05)
        found.pods.append(pod.body)
    return found


def _node(rng: random.Random, name: str) -> Object:
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
    for resource, values in (("ephemeral-storage", ("2Gi", "8G")), ("hugepages-2Mi", ("8Mi", "64Mi")), (_GPU, "12")):
        if rng.random() < 0.4:
            allocatable[resource] = rng.choice(values)
    spec: Object = {"taints": taints} if taints else {}
    if rng.random() < 0.08:
        spec["unschedulable"] = True
    status: Object = {"capacity": allocatable, "allocatable": allocatable, "conditions": [_ready()]}
    if rng.random() < 0.3:
        status["declaredFeatures"] = ["RestartAllContainersOnContainerExits"]
    return _object("v1", "Node", name, labels=labels, spec=spec, status=status)


_GPU = "example.com/gpu"
_TAINTS = [
    ("dedicated", "a", "NoSchedule"), ("dedicated", "b", "NoExecute"), ("spot", "", "PreferNoSchedule"),
    ("maintenance", "", "NoSchedule"),
]  # fmt: skip


def _ready() -> Object:
    at = "2026-01-01T00:00:00Z"
    return {"type": "Ready", "status": "True", "reason": "Test", "lastHeartbeatTime": at, "lastTransitionTime": at}


def _object(version: str, kind: str, name: str, **more: Any) -> Object:
    labels = more.pop("labels", {})
    metadata: Object = {"name": name, "labels": labels} | more.pop("metadata", {})
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **more}


def _add_running(rng: random.Random, found: Scenario, name: str, nodes: list[str], claims: list[Object]) -> None:
    pod = _Pod(rng, name, nodes)
    pod.ask(rng.choice([0, 1, 1, 2]), running=True)
    pod.spec["nodeName"] = node = rng.choice(nodes)
    taken = {number for other in found.running if other["spec"]["nodeName"] == node for number in _host_ports(other)}
    if taken & set(_host_ports(pod.body)):
        # kube-scheduler frees a port that two pods of a node hold as soon as one of them has ended
        pod.drop_ports()
    bound = [claim for claim in claims if claim["spec"].get("volumeName")]
    if bound and rng.random() < 0.3:
        pod.mount([rng.choice(bound)])
    found.running.append(pod.body)
    match rng.random():
        case share if share < 0.12:
            found.deleted.add(name)
        case share if share < 0.2:
            found.statuses[name] = {"phase": rng.choice(["Succeeded", "Failed"])}
        case share if share < 0.45:
            found.statuses[name] = {"phase": "Running"} | _resize(rng, pod.spec)


def _host_ports(pod: Object) -> list[int]:
    containers = [*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())]
    return [port["hostPort"] for container in containers for port in container.get("ports", ())]


def _resize(rng: random.Random, spec: Object) -> Object:
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


class _Pod:
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
        labels = {"app": rng.choice("ab"), "tier": rng.choice("xy"), "pod-template-hash": rng.choice("12")}
        if rng.random() < 0.5:
            labels["tenant"] = rng.choice("gh")
        self.spec: Object = {
            "containers": [{"name": "main", "image": "none.invalid/none"}],
            "terminationGracePeriodSeconds": 30,
            "automountServiceAccountToken": False,
        }
        metadata = {"namespace": rng.choice([*NAMESPACES, "red"])}
        self.body = _object("v1", "Pod", name, labels=labels, metadata=metadata, spec=self.spec)

    def ask(self, features: int | None = None, *, running: bool = False) -> None:
        """Give it a number of things to ask for; a pod that runs asks its node for nothing."""
        rng = self._rng
        ways = [
            self._request, self._request, self._request_as_a_whole, self._start, self._use_ports,
            self._attract, self._repel, self._repel,
        ]  # fmt: skip
        if not running:
            ways += [self._select, self._select, self._tolerate, self._spread, self._spread, self._prefer]
        count = rng.randint(1, 4) if features is None else features
        for way in rng.sample(ways, count):
            way()
        if not running:
            if rng.random() < 0.3:
                self._tolerate()
            if rng.random() < 0.02:
                self.spec["schedulingGates"] = [{"name": "example.com/wait"}]
            if rng.random() < 0.04:
                rule = {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}
                self.spec["containers"][0] |= {"restartPolicy": "Never", "restartPolicyRules": [rule]}

    def mount(self, claims: list[Object], *, missing: bool = False) -> None:
        """Use these claims, in whose namespace it then is, or one that does not exist."""
        names = [claim["metadata"]["name"] for claim in claims] if not missing else ["missing"]
        self.body["metadata"]["namespace"] = claims[0]["metadata"]["namespace"]
        self.spec["volumes"] = [
            {"name": f"v{i}", "persistentVolumeClaim": {"claimName": name}} for i, name in enumerate(names)
        ]

    def drop_ports(self) -> None:
        """Use no host ports."""
        for container in [*self.spec["containers"], *self.spec.get("initContainers", ())]:
            container.pop("ports", None)

    def _request(self) -> None:
        main = self.spec["containers"][0]
        main["resources"] = self._resources()
        if self._rng.random() < 0.3 and len(self.spec["containers"]) == 1:
            self.spec["containers"].append({"name": "second", "image": "none.invalid/none", "resources": self._small()})
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
            limits[_GPU] = rng.choice("12")
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

    def _prefer(self) -> None:
        kind = self._rng.choice(["podAffinity", "podAntiAffinity"])
        self._affinity(kind)["preferredDuringSchedulingIgnoredDuringExecution"] = [
            {"weight": self._rng.randint(1, 100), "podAffinityTerm": term} for term in self._constraints.terms()
        ]

    def _affinity(self, kind: str) -> Object:
        affinity: Object = self.spec.setdefault("affinity", {}).setdefault(kind, {})
        return affinity


class _Storage:
    """Volumes and claims of a scenario.

    Args:
        rng: what they are made by.
        found: the scenario.
        nodes: names of its nodes.
    """

    def __init__(self, rng: random.Random, found: Scenario, nodes: list[str]) -> None:
        self._rng = rng
        self._found = found
        self._nodes = nodes

    def add(self) -> None:
        """Add some of each kind to the scenario."""
        rng, found = self._rng, self._found
        for i in range(rng.randint(1, 4)):
            name = f"{found.name}-v{i}"
            bound, mode = rng.random() < 0.5, self._mode()
            self._volume(name, mode, name if bound else "")
            if bound:
                self._claim(name, mode, volumeName=name, storageClassName=WAITS)
        for i in range(rng.randint(1, 3)):
            self._claim(f"{found.name}-c{i}", self._mode(), storageClassName=rng.choice([WAITS, WAITS, MADE, AT_ONCE]))
        for node in self._nodes:
            if rng.random() < 0.6:
                driver = {"name": DRIVER, "nodeID": node, "allocatable": {"count": rng.randint(1, 2)}}
                self._found.storage.append(_object("storage.k8s.io/v1", "CSINode", node, spec={"drivers": [driver]}))

    def _mode(self) -> str:
        return self._rng.choice(["ReadWriteOnce", "ReadWriteOnce", "ReadWriteOncePod"])

    def _volume(self, name: str, mode: str, claim: str) -> None:
        rng = self._rng
        key, values = rng.choice([(HOSTNAME, self._nodes), (ZONE, ["a", "b", "c"])])
        term = {"matchExpressions": [{"key": key, "operator": "In", "values": [rng.choice(values)]}]}
        labels = {ZONE: rng.choice(["a", "b", "a__b"])} if rng.random() < 0.3 else {}
        spec: Object = {
            "storageClassName": WAITS,
            "capacity": {"storage": rng.choice(["1Gi", "2Gi", "5Gi"])},
            "accessModes": [mode],
            "persistentVolumeReclaimPolicy": "Retain",
        }
        if rng.random() < 0.5:
            spec |= {"local": {"path": "/none"}, "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}
        else:
            spec["csi"] = {"driver": DRIVER, "volumeHandle": name}
        if claim:
            spec["claimRef"] = {"namespace": "red", "name": claim}
        self._found.storage.append(_object("v1", "PersistentVolume", name, labels=labels, spec=spec))

    def _claim(self, name: str, mode: str, **spec: Any) -> None:
        size = "1Gi" if "volumeName" in spec else self._rng.choice(["1Gi", "2Gi", "3Gi"])
        body = {"accessModes": [mode], "resources": {"requests": {"storage": size}}}
        claim = _object("v1", "PersistentVolumeClaim", name, metadata={"namespace": "red"}, spec=body | spec)
        self._found.storage.append(claim)
