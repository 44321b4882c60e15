"""PersistentVolumes, claims and what storage says of nodes, as scheduling sees them.

Source: Kubernetes' core/v1 and storage.k8s.io/v1 APIs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from concerto.api.quantities import whole
from concerto.api.selectors import FIELD_NAME, LabelSelector, NodeSelectorTerm, Requirement
from concerto.api.volume_migration import VolumeID, migrated_plugin, migrated_terms, migrated_volume

Raw = Mapping[str, Any]
Terms = tuple[NodeSelectorTerm, ...]

SELECTED_NODE = "volume.kubernetes.io/selected-node"
"""Annotation of a claim: the node for which a provisioner is to make its volume."""
BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
"""Annotation of a claim that is bound, and of which the volume says the same."""
BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"
"""Annotation of a volume that was bound by a program, and not by a person."""
BETA_CLASS = "volume.beta.kubernetes.io/storage-class"
MIGRATED_PLUGINS = "storage.alpha.kubernetes.io/migrated-plugins"
NO_PROVISIONER = "kubernetes.io/no-provisioner"


class ClaimKey(NamedTuple):
    """Namespace and name of a PersistentVolumeClaim."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """The claim that a volume is bound to, or is held for.

    Attributes:
        key: namespace and name.
        uid: its UID; empty if a person has reserved the volume by name.
    """

    key: ClaimKey
    uid: str


@dataclass(frozen=True, slots=True)
class PersistentVolume:
    """A PersistentVolume.

    Attributes:
        name: its name.
        uid: its UID.
        version: its resourceVersion.
        labels: its labels.
        bytes: its capacity.
        storage_class: its class; empty without one.
        access_modes: what it can be mounted as.
        mode: Filesystem or Block.
        attributes_class: its VolumeAttributesClass; empty without one.
        phase: Available, Bound, Released or Failed; Pending before its controller has seen it.
        deleting: whether its deletion has begun.
        claim: the claim that it is bound to or held for.
        affinity: the nodes that can reach it, as alternatives; None means all.
        plugin: the in-tree plugin that a CSI driver has replaced; empty for all other volumes.
        migrated_affinity: the same as the driver that has replaced its plugin has it.
        volume: CSI driver and handle; None for a volume that no CSI driver serves.
        is_csi: whether the volume itself names its driver and handle.
    """

    name: str
    uid: str
    version: str
    labels: Mapping[str, str]
    bytes: int
    storage_class: str
    access_modes: frozenset[str]
    mode: str
    attributes_class: str
    phase: str
    deleting: bool
    claim: ClaimRef | None
    affinity: Terms | None
    plugin: str
    migrated_affinity: Terms | None
    volume: VolumeID | None
    is_csi: bool

    def is_for(self, claim: PersistentVolumeClaim) -> bool:
        """Whether it is bound to this claim or held for it."""
        return self.claim is not None and self.claim.key == claim.key and self.claim.uid in ("", claim.uid)

    @classmethod
    def from_raw(cls, obj: Raw) -> Self:
        """The object as the API server holds it, whole or as ``trim_volume`` leaves it."""
        metadata, spec = obj["metadata"], obj["spec"]
        labels = metadata.get("labels") or {}
        ref = spec.get("claimRef")
        affinity = parse_volume_affinity(spec.get("nodeAffinity"))
        plugin = migrated_plugin(spec)
        csi = spec.get("csi")
        volume = (csi["driver"], csi["volumeHandle"]) if csi else migrated_volume(spec, labels)
        return cls(
            name=metadata["name"],
            uid=metadata.get("uid", ""),
            version=metadata.get("resourceVersion", ""),
            labels=labels,
            bytes=whole((spec.get("capacity") or {}).get("storage", 0)),
            storage_class=class_name(metadata, spec),
            access_modes=frozenset(spec.get("accessModes") or ()),
            mode=spec.get("volumeMode") or "Filesystem",
            attributes_class=spec.get("volumeAttributesClassName") or "",
            phase=(obj.get("status") or {}).get("phase") or "Pending",
            deleting="deletionTimestamp" in metadata,
            claim=ClaimRef(ClaimKey(ref.get("namespace", ""), ref.get("name", "")), ref.get("uid", ""))
            if ref
            else None,
            affinity=affinity,
            plugin=plugin.name if plugin else "",
            migrated_affinity=migrated_terms(plugin, affinity, labels) if plugin else affinity,
            volume=volume,
            is_csi=bool(csi),
        )


@dataclass(frozen=True, slots=True)
class PersistentVolumeClaim:
    """A PersistentVolumeClaim.

    Attributes:
        key: namespace and name.
        uid: its UID.
        version: its resourceVersion.
        storage_class: its class; empty without one.
        bytes: what it requests; None if it requests no amount.
        access_modes: what it is to be mounted as.
        mode: Filesystem or Block.
        attributes_class: its VolumeAttributesClass; empty without one.
        selector: labels that its volume must have; None means any.
        volume_name: its volume, or the one that a person has asked for by name; empty without one.
        phase: Pending, Bound or Lost.
        deleting: whether its deletion has begun.
        selected_node: the node for which its volume is being made; None before a node is selected.
        bind_completed: whether its binding to ``volume_name`` is complete.
        owner_uid: UID of the object that controls it; empty without one.
    """

    key: ClaimKey
    uid: str
    version: str
    storage_class: str
    bytes: int | None
    access_modes: frozenset[str]
    mode: str
    attributes_class: str
    selector: LabelSelector | None
    volume_name: str
    phase: str
    deleting: bool
    selected_node: str | None
    bind_completed: bool
    owner_uid: str

    @property
    def bound(self) -> bool:
        """Whether it is bound for good."""
        return bool(self.volume_name) and self.bind_completed

    @classmethod
    def from_raw(cls, obj: Raw) -> Self:
        """The object as the API server holds it, whole or as ``trim_claim`` leaves it."""
        metadata, spec = obj["metadata"], obj["spec"]
        annotations = metadata.get("annotations") or {}
        requested = ((spec.get("resources") or {}).get("requests") or {}).get("storage")
        owners: list[Raw] = [o for o in metadata.get("ownerReferences") or () if o.get("controller")]
        selector = spec.get("selector")
        return cls(
            key=ClaimKey(metadata["namespace"], metadata["name"]),
            uid=metadata.get("uid", ""),
            version=metadata.get("resourceVersion", ""),
            storage_class=class_name(metadata, spec),
            bytes=None if requested is None else whole(requested),
            access_modes=frozenset(spec.get("accessModes") or ()),
            mode=spec.get("volumeMode") or "Filesystem",
            attributes_class=spec.get("volumeAttributesClassName") or "",
            selector=None if selector is None else LabelSelector.from_raw(selector),
            volume_name=spec.get("volumeName") or "",
            phase=(obj.get("status") or {}).get("phase") or "Pending",
            deleting="deletionTimestamp" in metadata,
            selected_node=annotations.get(SELECTED_NODE),
            bind_completed=BIND_COMPLETED in annotations,
            owner_uid=owners[0].get("uid", "") if owners else "",
        )


@dataclass(frozen=True, slots=True)
class StorageClass:
    """A StorageClass.

    Attributes:
        name: its name.
        provisioner: who makes its volumes.
        waits: whether a claim is bound only when a pod that uses it has a node (WaitForFirstConsumer).
        topologies: label requirements, as alternatives, of the nodes that its volumes can be made for; empty means all.
    """

    name: str
    provisioner: str
    waits: bool
    topologies: tuple[tuple[Requirement, ...], ...]

    @property
    def provisions(self) -> bool:
        """Whether volumes are made for it."""
        return self.provisioner not in ("", NO_PROVISIONER)

    @classmethod
    def from_raw(cls, obj: Raw) -> Self:
        """The object as the API server holds it."""
        return cls(
            name=obj["metadata"]["name"],
            provisioner=obj.get("provisioner") or "",
            waits=obj.get("volumeBindingMode") == "WaitForFirstConsumer",
            topologies=tuple(
                tuple(Requirement(e["key"], "In", tuple(e["values"])) for e in term.get("matchLabelExpressions") or ())
                for term in obj.get("allowedTopologies") or ()
            ),
        )


@dataclass(frozen=True, slots=True)
class CSINode:
    """What the CSI drivers of a node have registered.

    Attributes:
        node: the node's name.
        limits: by driver, how many of its volumes the node can have; None where the driver names no limit.
        migrated: in-tree plugins whose volumes CSI drivers serve on the node.
    """

    node: str
    limits: Mapping[str, int | None]
    migrated: frozenset[str]

    @classmethod
    def from_raw(cls, obj: Raw) -> Self:
        """The object as the API server holds it."""
        metadata = obj["metadata"]
        plugins = (metadata.get("annotations") or {}).get(MIGRATED_PLUGINS) or ""
        return cls(
            node=metadata["name"],
            limits={
                d["name"]: (d.get("allocatable") or {}).get("count")
                for d in (obj.get("spec") or {}).get("drivers") or ()
            },
            migrated=frozenset(filter(None, plugins.split(","))),
        )


@dataclass(frozen=True, slots=True)
class CSIDriver:
    """A CSIDriver.

    Attributes:
        name: its name.
        tracks_capacity: whether it publishes CSIStorageCapacities.
        required_on_node: whether a pod can use its volumes only where the driver is registered.
    """

    name: str
    tracks_capacity: bool
    required_on_node: bool

    @classmethod
    def from_raw(cls, obj: Raw) -> Self:
        """The object as the API server holds it."""
        spec = obj.get("spec") or {}
        return cls(
            obj["metadata"]["name"],
            bool(spec.get("storageCapacity")),
            bool(spec.get("preventPodSchedulingIfMissing")),
        )


@dataclass(frozen=True, slots=True)
class CSIStorageCapacity:
    """Room for new volumes of a class in a part of the cluster.

    Attributes:
        key: namespace and name.
        storage_class: the class.
        max_bytes: the largest volume that can be made; None if that is not known.
        nodes: the nodes that reach it.
        free_bytes: all that is left for volumes; 0 if that is not known.
    """

    key: tuple[str, str]
    storage_class: str
    max_bytes: int | None
    nodes: LabelSelector
    free_bytes: int = 0

    @classmethod
    def from_raw(cls, obj: Raw) -> Self:
        """The object as the API server holds it."""
        metadata = obj["metadata"]
        largest = obj.get("maximumVolumeSize") or obj.get("capacity")
        return cls(
            (metadata["namespace"], metadata["name"]),
            obj["storageClassName"],
            None if largest is None else whole(largest),
            LabelSelector.from_raw(obj.get("nodeTopology")),
            whole(obj.get("capacity") or 0),
        )


@dataclass(frozen=True, slots=True)
class VolumeAttachment:
    """A volume that is attached to a node, or about to be.

    Attributes:
        name: the object's name.
        node: the node's name.
        driver: the CSI driver that attaches it.
        volume_name: the PersistentVolume; empty for an inline volume.
    """

    name: str
    node: str
    driver: str
    volume_name: str

    @classmethod
    def from_raw(cls, obj: Raw) -> Self:
        """The object as the API server holds it."""
        spec = obj["spec"]
        source = spec.get("source") or {}
        return cls(
            obj["metadata"]["name"],
            spec["nodeName"],
            spec.get("attacher") or "",
            source.get("persistentVolumeName") or "",
        )


@dataclass(frozen=True, slots=True)
class VolumeBindings:
    """What has to be bound before a pod can be bound to a node.

    Attributes:
        node: the node.
        static: claims, and the existing volume that each of them gets.
        provisioned: claims whose volume is to be made for the node.
        uids: UIDs of claims and volumes that were decided on, by claim or by the volume's name.
    """

    node: str
    static: tuple[tuple[ClaimKey, str], ...] = ()
    provisioned: tuple[ClaimKey, ...] = ()
    uids: tuple[tuple[ClaimKey | str, str], ...] = ()

    def __bool__(self) -> bool:
        """Whether there is anything to bind."""
        return bool(self.static or self.provisioned)


NO_BINDINGS = VolumeBindings("")


def class_name(metadata: Raw, spec: Raw) -> str:
    """The storage class of a claim or a volume; the annotation of old comes before the field."""
    annotations: Mapping[str, str] = metadata.get("annotations") or {}
    return annotations.get(BETA_CLASS, spec.get("storageClassName") or "")


def parse_volume_affinity(affinity: Raw | None) -> Terms | None:
    """``spec.nodeAffinity`` of a volume. What it requires of a node's name never sees one, as in kube-scheduler."""
    required = (affinity or {}).get("required")
    if required is None:
        return None
    terms = (NodeSelectorTerm.from_raw(t) for t in required.get("nodeSelectorTerms") or ())
    nameless = Requirement(FIELD_NAME, "NotIn", ("",))
    return tuple(
        NodeSelectorTerm(t.labels, (nameless,) if t.names else ()) for t in terms if all(r.accepts("") for r in t.names)
    )
