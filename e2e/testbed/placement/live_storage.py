"""Volumes and claims of a scenario in a real API server, as its controllers leave them."""

from __future__ import annotations

import asyncio

from concerto.kube import Session
from concerto.kube.errors import NotFound
from concerto.kube.resources import (
    CSI_DRIVERS,
    CSI_NODES,
    CSI_STORAGE_CAPACITIES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    STORAGE_CLASSES,
    VOLUME_ATTACHMENTS,
)
from e2e.testbed.placement.changes import Change
from e2e.testbed.placement.random_objects import Object
from e2e.testbed.placement.random_storage import csi_drivers, storage_classes
from e2e.testbed.waiting import eventually_async

_KINDS = {
    resource.kind: resource
    for resource in (
        PERSISTENT_VOLUMES, PERSISTENT_VOLUME_CLAIMS, CSI_NODES, CSI_STORAGE_CAPACITIES, VOLUME_ATTACHMENTS,
    )
}  # fmt: skip
_CLAIM = "PersistentVolumeClaim"
_VOLUME = "PersistentVolume"


async def prepare(session: Session) -> None:
    """Make what all scenarios share."""
    for body in storage_classes():
        await session.create(STORAGE_CLASSES.path(), body)
    for body in csi_drivers():
        await session.create(CSI_DRIVERS.path(), body)


class LiveStorage:
    """The storage of one scenario.

    Args:
        session: connection to the API server.

    Attributes:
        objects: PersistentVolumes, claims, CSINodes, CSIStorageCapacities, VolumeAttachments, StorageClasses and
            CSIDrivers as they are.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.objects: list[Object] = []

    async def create(self, bodies: list[Object]) -> None:
        """Make these objects; returns once the volume controller has done what it does without a pod."""
        for kind, resource in _KINDS.items():
            of_kind = [body for body in bodies if body["kind"] == kind]
            paths = [resource.path(body["metadata"].get("namespace")) for body in of_kind]
            self.objects += await asyncio.gather(*map(self._session.create, paths, of_kind))
        self.objects = list(await asyncio.gather(*map(self._settled, self.objects)))
        for kind, shared in (("StorageClass", STORAGE_CLASSES), ("CSIDriver", CSI_DRIVERS)):
            items = (await self._session.list(shared.path()))["items"]
            self.objects += [{**item, "kind": kind} for item in items]

    async def follow_own_claims(self, pod: Object) -> None:
        """Return once the controller has made the claims that are for this pod alone, and they have their volumes."""
        for name in own_claims(pod):
            await eventually_async(f"claim {name} is there", lambda name=name: self._find(pod, name))
            claim = await self._settled(await self._get(_CLAIM, pod["metadata"]["namespace"], name))
            self._put(claim)
            if volume := claim["spec"].get("volumeName"):
                self._put(await self._get(_VOLUME, None, volume))

    async def forget_own_claims(self, pod: Object) -> None:
        """Delete the claims that were made for this pod alone; their volumes are free for new ones of that name."""
        uid, namespace = pod["metadata"]["uid"], pod["metadata"]["namespace"]
        for name in own_claims(pod):
            claim = await self._get(_CLAIM, namespace, name)
            if any(owner["uid"] == uid for owner in claim["metadata"].get("ownerReferences", ())):
                await self._session.delete(PERSISTENT_VOLUME_CLAIMS.path(namespace, name))
                self.objects = [o for o in self.objects if o["metadata"]["uid"] != claim["metadata"]["uid"]]
                if volume := claim["spec"].get("volumeName"):
                    free = {"spec": {"claimRef": {"uid": None, "resourceVersion": None}}}
                    patched = await self._session.patch(PERSISTENT_VOLUMES.path(name=volume), free)
                    self._put(await self._settled({**patched, "kind": _VOLUME}))

    async def change(self, change: Change) -> None:
        """Make a change of one of them, if it is there."""
        key = (change.kind, change.name)
        found = next((o for o in self.objects if (o["kind"], o["metadata"]["name"]) == key), None)
        if found is None:
            return
        path = _KINDS[change.kind].path(found["metadata"].get("namespace"), change.name)
        self.objects = [o for o in self.objects if o is not found]
        if change.patch is None:
            await self._session.delete(path)
        else:
            self._put({**await self._session.patch(path, change.patch), "kind": change.kind})

    async def remove(self) -> None:
        """Delete what ``create`` and the controller have made."""
        paths = [
            PERSISTENT_VOLUME_CLAIMS.path("red"), PERSISTENT_VOLUMES.path(), CSI_NODES.path(),
            CSI_STORAGE_CAPACITIES.path("red"), VOLUME_ATTACHMENTS.path(),
        ]  # fmt: skip
        await asyncio.gather(*(self._session.request("DELETE", path) for path in paths))

    async def _find(self, pod: Object, name: str) -> bool:
        try:
            await self._get(_CLAIM, pod["metadata"]["namespace"], name)
        except NotFound:
            return False
        return True

    async def _get(self, kind: str, namespace: str | None, name: str) -> Object:
        found: Object = await self._session.get(_KINDS[kind].path(namespace, name))
        return {**found, "kind": kind}

    def _put(self, obj: Object) -> None:
        uid = obj["metadata"]["uid"]
        self.objects = [o for o in self.objects if o["metadata"]["uid"] != uid] + [obj]

    async def _settled(self, obj: Object) -> Object:
        """The object once the volume controller has bound it or found it free, where it does so without a pod."""
        kind, metadata, spec = obj["kind"], obj["metadata"], obj.get("spec") or {}
        claims, volumes = ({o["metadata"]["name"] for o in self.objects if o["kind"] == k} for k in (_CLAIM, _VOLUME))
        if kind == _VOLUME:
            wanted = "Bound" if (spec.get("claimRef") or {}).get("name") in claims else "Available"
        elif kind == _CLAIM and spec.get("volumeName") in volumes:
            wanted = "Bound"
        else:
            return obj
        latest: Object = {}

        async def look() -> bool:
            latest.update(await self._get(kind, metadata.get("namespace"), metadata["name"]))
            return (latest.get("status") or {}).get("phase") == wanted

        await eventually_async(f"{kind} {metadata['name']} is {wanted}", look)
        return latest


def own_claims(pod: Object) -> list[str]:
    """Names of the claims that are for this pod alone: those of its generic ephemeral volumes."""
    volumes = pod["spec"].get("volumes") or ()
    return [f"{pod['metadata']['name']}-{volume['name']}" for volume in volumes if "ephemeral" in volume]
