"""Random clusters and pods, by number: always the same objects for the same number.

Values come from short lists, so that what pods ask for often meets what nodes and other pods have.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from e2e.testbed.placement.random_objects import (
    HOSTNAME,
    NAMESPACES,
    ZONE,
    Object,
    RandomPod,
    host_ports,
    make_object,
    random_node,
)

WAITS, MADE, AT_ONCE = "waits", "made", "at-once"
"""StorageClasses: volumes exist and are bound for a pod; volumes are made for a pod; volumes are bound at once."""
DRIVER = "disks.example.com"
"""CSI driver of the volumes that are not local."""
_SHARE_WITH_CLAIMS = 0.2
_SHARE_WITH_SERVICES = 0.15


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
        budgets: PodDisruptionBudgets, with their status.
        services: Services, by whose selectors pods without spread constraints are spread.
        pods: those to place, in order.
    """

    name: str
    nodes: list[Object] = field(default_factory=list)
    storage: list[Object] = field(default_factory=list)
    running: list[Object] = field(default_factory=list)
    statuses: dict[str, Object] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    budgets: list[Object] = field(default_factory=list)
    services: list[Object] = field(default_factory=list)
    pods: list[Object] = field(default_factory=list)


def scenario(number: int) -> Scenario:
    """The scenario of that number."""
    rng = random.Random(f"placement-{number}")
    found = Scenario(f"s{number}")
    names = [f"{found.name}-n{i}" for i in range(rng.randint(2, 6))]
    found.nodes = [random_node(rng, name) for name in names]
    if rng.random() < _SHARE_WITH_CLAIMS:
        RandomStorage(rng, found, names).add()
    claims = [o for o in found.storage if o["kind"] == "PersistentVolumeClaim"]
    if rng.random() < _SHARE_WITH_SERVICES:
        found.services = [_service(rng, f"{found.name}-{i}") for i in range(rng.randint(1, 2))]
    for i in range(rng.randint(0, 2 * len(names))):
        _add_running(rng, found, f"{found.name}-r{i}", names, claims)
    for i in range(rng.randint(2, 4)):
        pod = RandomPod(rng, f"{found.name}-p{i}", names)
        pod.ask()
        found.pods.append(pod.body)
    # The binding of a pod with a claim may take as long as it likes, so it is the last
    if claims and rng.random() < 0.9:
        pod = RandomPod(rng, f"{found.name}-p9", names)
        pod.ask(rng.choice([0, 0, 1]))
        # Two claims that wait could take each other's volume, which the rules do not follow
        bound = [claim for claim in claims if claim["spec"].get("volumeName")]
        mounted = {
            claim["metadata"]["name"]: claim for claim in [rng.choice(claims), *rng.sample(bound, min(1, len(bound)))]
        }
        pod.mount([*mounted.values()], missing=rng.random() < 0.05)
        found.pods.append(pod.body)
    return found


def _service(rng: random.Random, name: str) -> Object:
    selector = rng.choice([{"app": "a"}, {"app": "b"}, {"tier": "x"}, {"app": "a", "tier": "y"}])
    spec = {"clusterIP": "None", "selector": selector, "ports": [{"port": 80}]}
    return make_object("v1", "Service", name, metadata={"namespace": rng.choice([*NAMESPACES, "red"])}, spec=spec)


def _add_running(rng: random.Random, found: Scenario, name: str, nodes: list[str], claims: list[Object]) -> None:
    pod = RandomPod(rng, name, nodes)
    pod.ask(rng.choice([0, 1, 1, 2]), running=True)
    pod.spec["nodeName"] = node = rng.choice(nodes)
    taken = {number for other in found.running if other["spec"]["nodeName"] == node for number in host_ports(other)}
    if taken & set(host_ports(pod.body)):
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
            found.statuses[name] = {"phase": "Running"} | resize_status(rng, pod.spec)


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


class RandomStorage:
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
                self._found.storage.append(
                    make_object("storage.k8s.io/v1", "CSINode", node, spec={"drivers": [driver]})
                )

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
        self._found.storage.append(make_object("v1", "PersistentVolume", name, labels=labels, spec=spec))

    def _claim(self, name: str, mode: str, **spec: Any) -> None:
        size = "1Gi" if "volumeName" in spec else self._rng.choice(["1Gi", "2Gi", "3Gi"])
        body = {"accessModes": [mode], "resources": {"requests": {"storage": size}}}
        claim = make_object("v1", "PersistentVolumeClaim", name, metadata={"namespace": "red"}, spec=body | spec)
        self._found.storage.append(claim)
