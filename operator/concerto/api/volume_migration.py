"""Volumes of in-tree plugins as the CSI drivers that have replaced them see them.

Source: ``csi-translation-lib`` of Kubernetes 1.37, for the plugins that kube-scheduler counts as migrated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from concerto.api.selectors import NodeSelectorTerm, Requirement

Raw = Mapping[str, Any]
VolumeID = tuple[str, str]
"""CSI driver and volume handle."""

ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
BETA_ZONE, BETA_REGION = "failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region"
ZONES_DELIMITER = "__"
"""Between the zones in the label of a volume that is in several."""
_UNSPECIFIED = "UNSPECIFIED"
_EBS_VOLUME = re.compile(r"^vol-[^/]*$")


@dataclass(frozen=True, slots=True)
class MigratedPlugin:
    """An in-tree plugin whose volumes a CSI driver serves.

    Attributes:
        name: the plugin's, as in StorageClass.provisioner and in the CSINode's annotation.
        driver: the CSI driver's.
        topology_key: node label of the driver that stands for the zone; empty where it has none.
    """

    name: str
    driver: str
    topology_key: str


_BY_SOURCE = {
    "awsElasticBlockStore": MigratedPlugin(
        "kubernetes.io/aws-ebs", "ebs.csi.aws.com", "topology.ebs.csi.aws.com/zone"
    ),
    "gcePersistentDisk": MigratedPlugin("kubernetes.io/gce-pd", "pd.csi.storage.gke.io", "topology.gke.io/zone"),
    "azureDisk": MigratedPlugin("kubernetes.io/azure-disk", "disk.csi.azure.com", ""),
    "cinder": MigratedPlugin(
        "kubernetes.io/cinder", "cinder.csi.openstack.org", "topology.cinder.csi.openstack.org/zone"
    ),
    "portworxVolume": MigratedPlugin("kubernetes.io/portworx-volume", "pxd.portworx.com", ""),
}  # fmt: skip
MIGRATED_SOURCES = tuple(_BY_SOURCE)
"""Fields of a volume's source that name a migrated plugin."""
_DRIVER_OF_PROVISIONER = {plugin.name: plugin.driver for plugin in _BY_SOURCE.values()}
_NOT_MIGRATED = frozenset({"kubernetes.io/azure-file", "kubernetes.io/vsphere-volume"})
"""Provisioners with a CSI driver, whose volumes kube-scheduler does not count."""


def driver_of_provisioner(provisioner: str) -> str:
    """The CSI driver that makes the volumes of a StorageClass; empty where kube-scheduler does not count them."""
    return "" if provisioner in _NOT_MIGRATED else _DRIVER_OF_PROVISIONER.get(provisioner, provisioner)


def migrated_plugin(source: Raw) -> MigratedPlugin | None:
    """The migrated plugin that a volume's source names."""
    return next((plugin for field, plugin in _BY_SOURCE.items() if source.get(field)), None)


def migrated_volume(source: Raw, labels: Mapping[str, str] | None = None) -> VolumeID | None:
    """Driver and handle of a volume of a migrated plugin.

    Args:
        source: the PersistentVolume's spec, or a pod's inline volume.
        labels: the PersistentVolume's labels; None for an inline volume.

    Returns:
        None if the plugin is not a migrated one, or the volume cannot be translated.
    """
    for field, plugin in _BY_SOURCE.items():
        if details := source.get(field):
            handle = _handle(field, details, labels or {})
            return (plugin.driver, handle) if handle else None
    return None


def _handle(field: str, details: Raw, labels: Mapping[str, str]) -> str:
    match field:
        case "awsElasticBlockStore":
            return _ebs_handle(details.get("volumeID", ""))
        case "gcePersistentDisk":
            return _gce_handle(details.get("pdName", ""), labels)
        case "azureDisk":
            managed = str(details.get("kind") or "Managed").lower() == "managed"
            return str(details.get("diskURI", "")) if managed else ""
        case _:
            return str(details.get("volumeID", ""))


def _ebs_handle(volume: str) -> str:
    if not volume.startswith("aws://"):
        return volume
    name = volume.removeprefix("aws://").partition("/")[2].strip("/")
    return name if _EBS_VOLUME.match(name) else ""


def _gce_handle(disk: str, labels: Mapping[str, str]) -> str:
    zones = (labels.get(BETA_ZONE) or labels.get(ZONE) or "").split(ZONES_DELIMITER)
    if len(zones) == 1:
        return f"projects/{_UNSPECIFIED}/zones/{zones[0] or _UNSPECIFIED}/disks/{disk}"
    regions = {zone.rpartition("-")[0] for zone in zones}
    if len(regions) != 1 or any(zone.count("-") != 2 for zone in zones):
        return ""
    return f"projects/{_UNSPECIFIED}/regions/{regions.pop()}/disks/{disk}"


def migrated_terms(
    plugin: MigratedPlugin, terms: tuple[NodeSelectorTerm, ...] | None, labels: Mapping[str, str]
) -> tuple[NodeSelectorTerm, ...] | None:
    """A volume's node affinity where its CSI driver serves it: zones are those of the driver's node label.

    Args:
        plugin: the volume's.
        terms: the PersistentVolume's own node affinity.
        labels: the PersistentVolume's labels, which say the zone if the affinity does not.
    """
    if not plugin.topology_key:
        return terms
    named = {r.key for term in terms or () for r in term.labels}
    zone, region = _topology_labels(named, labels)
    if zone in named:
        renamed = {zone: plugin.topology_key}
    else:
        renamed = {}
        zones = tuple(sorted({z.strip() for z in labels.get(zone, "").split(ZONES_DELIMITER)} - {""}))
        if zones:
            added = Requirement(plugin.topology_key, "In", zones)
            terms = tuple(NodeSelectorTerm((*t.labels, added), t.names) for t in terms or (NodeSelectorTerm(()),))
    if region == BETA_REGION:
        renamed[BETA_REGION] = REGION
    if terms is None or not renamed:
        return terms
    return tuple(
        NodeSelectorTerm(tuple(Requirement(renamed.get(r.key, r.key), r.operator, r.values) for r in t.labels), t.names)
        for t in terms
    )


def _topology_labels(named: set[str], labels: Mapping[str, str]) -> tuple[str, str]:
    """The keys of zone and region that the volume uses, the current ones before the old ones."""
    for where in (named, labels):
        if ZONE in where:
            return ZONE, REGION
        if BETA_ZONE in where:
            return BETA_ZONE, BETA_REGION
    return ZONE, REGION
