"""Random volumes, claims and what nodes can attach, and the StorageClasses and drivers of all scenarios."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from e2e.testbed.placement.random_objects import HOSTNAME, ZONE, Object, RandomPod, make_object

WAITS, MADE, AT_ONCE, COUNTED, STRICT = "waits", "made", "at-once", "counted", "strict"
"""StorageClasses: volumes exist and are bound for a pod; volumes are made for a pod; volumes are bound at once; volumes
are made where their driver publishes room; volumes are made, and only nodes with their driver take pods."""
DRIVER, COUNTING_DRIVER, STRICT_DRIVER = (f"{name}.example.com" for name in ("disks", "counting", "strict"))
"""CSI drivers: of volumes that are not local; one that publishes CSIStorageCapacities; one that has to be on a node."""
_SIZES = ("1Gi", "2Gi", "3Gi")
_VOLUME, _SECOND_VOLUME = "scratch", "more"
_SELECTED_NODE = "volume.kubernetes.io/selected-node"


def storage_classes() -> list[Object]:
    """The StorageClasses of all scenarios."""
    zone = {"allowedTopologies": [{"matchLabelExpressions": [{"key": ZONE, "values": ["a", "b"]}]}]}
    exist, wait = "kubernetes.io/no-provisioner", "WaitForFirstConsumer"
    found: list[tuple[str, str, str, Object]] = [
        (WAITS, exist, wait, {}), (AT_ONCE, exist, "Immediate", {}), (MADE, DRIVER, wait, zone),
        (COUNTED, COUNTING_DRIVER, wait, {}), (STRICT, STRICT_DRIVER, wait, {}),
    ]  # fmt: skip
    return [
        make_object("storage.k8s.io/v1", "StorageClass", name, provisioner=provisioner, volumeBindingMode=mode, **more)
        for name, provisioner, mode, more in found
    ]


def csi_drivers() -> list[Object]:
    """The CSIDrivers of all scenarios."""
    return [
        make_object("storage.k8s.io/v1", "CSIDriver", COUNTING_DRIVER, spec={"storageCapacity": True}),
        make_object("storage.k8s.io/v1", "CSIDriver", STRICT_DRIVER, spec={"preventPodSchedulingIfMissing": True}),
    ]


class RandomStorage:
    """Volumes and claims of a scenario.

    Args:
        rng: what they are made by.
        name: prefix of their names.
        nodes: names of the scenario's nodes.

    Attributes:
        objects: PersistentVolumes, claims, CSINodes, CSIStorageCapacities and VolumeAttachments.
    """

    def __init__(self, rng: random.Random, name: str, nodes: Sequence[str]) -> None:
        self._rng = rng
        self._name = name
        self._nodes = nodes
        self.objects: list[Object] = []
        for i in range(rng.randint(1, 4)):
            volume = f"{name}-v{i}"
            bound, mode = rng.random() < 0.5, self._mode()
            self._volume(volume, mode, volume if bound else "")
            if bound:
                self._claim(volume, mode, volumeName=volume, storageClassName=WAITS)
        for i in range(rng.randint(1, 3)):
            storage_class = rng.choice([WAITS, WAITS, MADE, COUNTED, COUNTED, STRICT, AT_ONCE])
            self._claim(f"{name}-c{i}", self._mode(), storageClassName=storage_class)
        for node in nodes:
            if rng.random() < 0.6:
                self._csi_node(node)
        for i in range(rng.randint(1, 6)):
            self._capacity(f"{name}-{i}")
        for volume in [o for o in self.objects if o["kind"] == "PersistentVolume" and "csi" in o["spec"]]:
            if rng.random() < 0.3:
                self._attach(volume["metadata"]["name"])

    @property
    def claims(self) -> list[Object]:
        """Its claims."""
        return [o for o in self.objects if o["kind"] == "PersistentVolumeClaim"]

    @property
    def bound_claims(self) -> list[Object]:
        """Those that have a volume."""
        return [claim for claim in self.claims if claim["spec"].get("volumeName")]

    def mount_new(self, pod: RandomPod, *, bound: bool) -> None:
        """Have the pod use a claim that is made for it alone, with a volume that exists for it, or without one."""
        rng, claim = self._rng, f"{pod.body['metadata']['name']}-{_VOLUME}"
        mode = self._mode()
        spec: Object = {"accessModes": [mode], "resources": {"requests": {"storage": "1Gi"}}}
        if bound:
            self._volume(claim, mode, claim)
            spec |= {"volumeName": claim, "storageClassName": WAITS}
        else:
            spec["storageClassName"] = rng.choice([WAITS, MADE, *[COUNTED] * 5, STRICT, AT_ONCE])
        pod.mount_own(_VOLUME, spec)

    def mount_second(self, pod: RandomPod, rng: random.Random) -> None:
        """Have the pod use one more claim whose volume is to be made: of its own, or one that has its node already."""
        spec: Object = {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": rng.choice(_SIZES)}},
            "storageClassName": rng.choice([COUNTED, COUNTED, COUNTED, MADE, STRICT]),
        }
        if rng.random() < 0.6:
            pod.mount_own(_SECOND_VOLUME, spec)
            return
        metadata = {"namespace": "red", "annotations": {_SELECTED_NODE: rng.choice(self._nodes)}}
        self.objects.append(
            make_object("v1", "PersistentVolumeClaim", f"{self._name}-selected", metadata=metadata, spec=spec)
        )
        pod.mount([self.objects[-1]])

    def take_name(self, pod: RandomPod) -> None:
        """Add a claim that has the name of the one that would be made for the pod alone."""
        self._claim(f"{pod.body['metadata']['name']}-{_VOLUME}", self._mode(), storageClassName=MADE)

    def _mode(self) -> str:
        return self._rng.choice(["ReadWriteOnce", "ReadWriteOnce", "ReadWriteOncePod"])

    def _csi_node(self, node: str) -> None:
        drivers: list[Object] = [{"name": DRIVER, "nodeID": node, "allocatable": {"count": self._rng.randint(1, 2)}}]
        if self._rng.random() < 0.5:
            drivers.append({"name": STRICT_DRIVER, "nodeID": node})
        self.objects.append(make_object("storage.k8s.io/v1", "CSINode", node, spec={"drivers": drivers}))

    def _attach(self, volume: str) -> None:
        spec = {
            "attacher": DRIVER,
            "nodeName": self._rng.choice(self._nodes),
            "source": {"persistentVolumeName": volume},
        }
        self.objects.append(make_object("storage.k8s.io/v1", "VolumeAttachment", volume, spec=spec))

    def _capacity(self, name: str) -> None:
        rng = self._rng
        key, values = rng.choice([(HOSTNAME, self._nodes), *[(ZONE, ["a", "b", "c"])] * 3])
        amounts: Object = {"capacity": rng.choice([*_SIZES, "10Gi", "100Gi"])} if rng.random() < 0.9 else {}
        # Without capacity, it would end kube-scheduler (docs/scheduling.md, known exceptions)
        if rng.random() < 0.3 and (size := rng.choice(_SIZES)) and amounts:
            amounts["maximumVolumeSize"] = size
        if rng.random() < 0.9:
            amounts["nodeTopology"] = {"matchLabels": {key: rng.choice(values)}}
        made = make_object(
            "storage.k8s.io/v1", "CSIStorageCapacity", name, metadata={"namespace": "red"}, storageClassName=COUNTED,
            **amounts,
        )  # fmt: skip
        self.objects.append(made)

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
        if rng.random() < 0.5:
            labels["grade"] = rng.choice("xy")
        if not claim and rng.random() < 0.15:
            spec["volumeMode"] = "Block"
        if claim:
            spec["claimRef"] = {"namespace": "red", "name": claim}
        self.objects.append(make_object("v1", "PersistentVolume", name, labels=labels, spec=spec))

    def _claim(self, name: str, mode: str, **spec: Any) -> None:
        size = "1Gi" if "volumeName" in spec else self._rng.choice(_SIZES)
        body: Object = {"accessModes": [mode], "resources": {"requests": {"storage": size}}}
        if "volumeName" not in spec:
            if self._rng.random() < 0.2:
                body["selector"] = {"matchLabels": {"grade": self._rng.choice("xy")}}
            if self._rng.random() < 0.15:
                body["volumeMode"] = "Block"
        claim = make_object("v1", "PersistentVolumeClaim", name, metadata={"namespace": "red"}, spec=body | spec)
        self.objects.append(claim)
