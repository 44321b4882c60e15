"""The part of `concerto explain` that is about devices that a pod requests as extended resources."""

from __future__ import annotations

from concerto.api.deviceclass import DeviceClass
from concerto.api.pod import PodView
from concerto.cli.cluster_reading import put_all
from concerto.kube import KubeError, Session
from concerto.kube.resources import DEVICE_CLASSES
from concerto.scheduling.state.cluster import ClusterState


async def read_devices(session: Session, cluster: ClusterState, pod: PodView) -> list[str]:
    """Put the DeviceClasses into the cluster, for a pod that requests an extended resource; returns what went wrong."""
    if not pod.shape.requests_extended_resource:
        return []
    try:
        items = (await session.list(DEVICE_CLASSES.path()))["items"]
    except KubeError as error:
        return [f"DeviceClasses are left out, as they cannot be read: {error}"]
    problems: list[str] = []
    classes = cluster.resources.device_classes
    put_all("DeviceClass", items, lambda raw: classes.set(DeviceClass.from_raw(raw)), problems)
    return problems
