"""Where each kind lives under the API server's paths."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote

_PLAIN = re.compile("[a-z0-9.-]*")
"""What names are nearly always made of."""


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind as the API server serves it.

    Attributes:
        group: API group; empty for the core group.
        version: API version, such as ``v1``.
        plural: the name in paths.
        kind: the name in objects.
        namespaced: whether its objects live in namespaces.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool

    @property
    def api_version(self) -> str:
        """As it stands in an object's ``apiVersion``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def group_resource(self) -> str:
        """The name that no other kind has, such as ``deployments.apps``, as kubectl takes it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """The URL path of a collection, of one object, or of one object's subresource.

        A namespaced kind without a namespace is the collection over all namespaces; a namespace given for a cluster
        scoped kind is an error rather than ignored, as it is always a mistake.

        Raises:
            ValueError: the parts do not go together.
        """
        if subresource and not name:
            raise ValueError(f"a subresource of {self.plural} needs the object's name")
        if self.namespaced and name and not namespace:
            raise ValueError(f"{self.kind} {name!r} needs its namespace")
        if namespace and not self.namespaced:
            raise ValueError(f"{self.kind} is cluster scoped and takes no namespace (got {namespace!r})")
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if namespace:
            parts += ["namespaces", _encoded(namespace)]
        parts.append(self.plural)
        if name:
            parts.append(_encoded(name))
        if subresource:
            parts.append(subresource)
        return "/".join(parts)


def _encoded(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else quote(name, safe="")


PODS = Resource("", "v1", "pods", "Pod", True)
NODES = Resource("", "v1", "nodes", "Node", False)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", False)
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount", True)
EVENTS = Resource("events.k8s.io", "v1", "events", "Event", True)
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease", True)
POD_DISRUPTION_BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True)
POD_GROUPS = Resource("scheduling.k8s.io", "v1beta1", "podgroups", "PodGroup", True)
SERVICES = Resource("", "v1", "services", "Service", True)
REPLICATION_CONTROLLERS = Resource("", "v1", "replicationcontrollers", "ReplicationController", True)
REPLICA_SETS = Resource("apps", "v1", "replicasets", "ReplicaSet", True)
STATEFUL_SETS = Resource("apps", "v1", "statefulsets", "StatefulSet", True)
DAEMON_SETS = Resource("apps", "v1", "daemonsets", "DaemonSet", True)
PERSISTENT_VOLUMES = Resource("", "v1", "persistentvolumes", "PersistentVolume", False)
PERSISTENT_VOLUME_CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", True)
STORAGE_CLASSES = Resource("storage.k8s.io", "v1", "storageclasses", "StorageClass", False)
CSI_NODES = Resource("storage.k8s.io", "v1", "csinodes", "CSINode", False)
CSI_DRIVERS = Resource("storage.k8s.io", "v1", "csidrivers", "CSIDriver", False)
CSI_STORAGE_CAPACITIES = Resource("storage.k8s.io", "v1", "csistoragecapacities", "CSIStorageCapacity", True)
DEVICE_CLASSES = Resource("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", False)
VOLUME_ATTACHMENTS = Resource("storage.k8s.io", "v1", "volumeattachments", "VolumeAttachment", False)

_GROUP, _VERSION = "concerto.dev", "v1alpha1"
NODE_CAPACITIES = Resource(_GROUP, _VERSION, "nodecapacities", "NodeCapacity", False)
SUBSPACE_SNAPSHOTS = Resource(_GROUP, _VERSION, "subspacesnapshots", "SubspaceSnapshot", False)
POD_RESERVATIONS = Resource(_GROUP, _VERSION, "podreservations", "PodReservation", True)
NODE_CPU_TOPOLOGIES = Resource(_GROUP, _VERSION, "nodecputopologies", "NodeCPUTopology", False)
POD_CPU_BINDINGS = Resource(_GROUP, _VERSION, "podcpubindings", "PodCPUBinding", True)
PREDICTIVE_HPAS = Resource(_GROUP, _VERSION, "predictivehpas", "PredictiveHPA", True)
SCHEDULING_PROFILES = Resource(_GROUP, _VERSION, "schedulingprofiles", "SchedulingProfile", False)
