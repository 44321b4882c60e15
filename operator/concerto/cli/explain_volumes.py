"""The part of `concerto explain` that is about volumes: reads storage objects, and names the claims a pod waits for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from concerto.api.pod import PodView
from concerto.api.volumes import (
    ClaimKey,
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from concerto.kube import Resource, Session
from concerto.kube.resources import (
    CSI_DRIVERS,
    CSI_NODES,
    CSI_STORAGE_CAPACITIES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    STORAGE_CLASSES,
    VOLUME_ATTACHMENTS,
)
from concerto.scheduling.state.volumes import VolumeIndex


async def read_storage(session: Session, volumes: VolumeIndex) -> None:
    """Put all storage objects of the cluster into the index, except those that cannot be parsed.

    Raises:
        KubeError: some of them cannot be read, for want of a right for instance.
    """
    readers: tuple[tuple[Resource, Callable[[Any], Any], Callable[[Any], object]], ...] = (
        (PERSISTENT_VOLUMES, PersistentVolume.from_raw, volumes.set_volume),
        (PERSISTENT_VOLUME_CLAIMS, PersistentVolumeClaim.from_raw, volumes.set_claim),
        (STORAGE_CLASSES, StorageClass.from_raw, volumes.set_class),
        (CSI_NODES, CSINode.from_raw, volumes.use.set_csi_node),
        (CSI_DRIVERS, CSIDriver.from_raw, volumes.set_driver),
        (CSI_STORAGE_CAPACITIES, CSIStorageCapacity.from_raw, volumes.set_capacity),
        (VOLUME_ATTACHMENTS, VolumeAttachment.from_raw, volumes.set_attachment),
    )
    lists = await asyncio.gather(*(session.list(resource.path()) for resource, _, _ in readers))
    for (_, parse, put), listed in zip(readers, lists):
        for raw in listed["items"]:
            with contextlib.suppress(Exception):  # what the operator cannot read counts as gone there, too
                put(parse(raw))


def waits_for(volumes: VolumeIndex, pod: PodView) -> list[str]:
    """A sentence for each claim that the pod waits for; none for a pod that is bound."""
    if pod.node_name:
        return []
    sentences = []
    for used in pod.volumes.claims:
        claim = volumes.claims.get(ClaimKey(pod.namespace, used.name))
        if claim is None:
            sentences.append(f"waits for claim {used.name}: it does not exist")
        elif claim.bound:
            continue
        elif (held := next((v for v in volumes.of_class(claim.storage_class) if v.is_for(claim)), None)) is not None:
            sentences.append(f"waits for claim {used.name}: volume {held.name} is held for it and not bound yet")
        elif claim.selected_node is not None:
            storage_class = volumes.classes.get(claim.storage_class)
            maker = f" by {storage_class.provisioner}" if storage_class else ""
            sentences.append(
                f"waits for claim {used.name}: its volume is to be made{maker} for node {claim.selected_node}"
            )
        elif not volumes.waits(claim):
            sentences.append(f"waits for claim {used.name}: it is not bound, and its class does not wait for pods")
    return sentences
