"""The two writes that bind volumes: a volume is held for a claim, and a claim gets the node that its volume is for.

Both are kube-scheduler's own. Each names the version of the object that was decided on, so that it changes nothing that
somebody else has changed since. What is not known to have been written is read back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from concerto.api.volumes import (
    BOUND_BY_CONTROLLER,
    SELECTED_NODE,
    ClaimRef,
    PersistentVolume,
    PersistentVolumeClaim,
)
from concerto.kube import ApiError, Conflict, NotFound, Object, Session
from concerto.kube.confirmed_writes import NotWritten, WriteSettings, write_until_known
from concerto.kube.fair_places import PlaceOf
from concerto.kube.resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES

_RETRIES = WriteSettings(give_up_after_seconds=60.0, repeats_conflicts=True)


@dataclass(frozen=True)
class ClaimWriteSettings:
    """How volumes and claims are written.

    Attributes:
        timeout_seconds: time limit of one write; see `BinderSettings`.
        retries: how a write is repeated; one that ends in a conflict is.
    """

    timeout_seconds: float = 4.0
    retries: WriteSettings = _RETRIES


class NotBound(Exception):
    """A pod's volumes cannot be bound as decided; the message says why, for the pod's event."""


def held_for_another(volume: PersistentVolume, claim: ClaimRef) -> NotBound:
    """The error about a volume that another claim has."""
    key = claim.key
    return NotBound(f'persistentvolume "{volume.name}" was bound to claim {key.namespace}/{key.name} meanwhile')


def _undone(what: str, field: str) -> NotBound:
    """The error about a write that the API server took and that its answer does not show."""
    return NotBound(f"{what} does not keep {field} as written: look for an admission webhook or policy that changes it")


def build_claim_ref(volume: PersistentVolume, claim: PersistentVolumeClaim) -> Object:
    """The patch by which a volume is held for a claim. A person's own reservation by name stays marked as theirs."""
    metadata: Object = {"resourceVersion": volume.version}
    if not volume.is_for(claim):
        metadata["annotations"] = {BOUND_BY_CONTROLLER: "yes"}
    reference = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": claim.key.namespace,
        "name": claim.key.name,
        "uid": claim.uid,
        "resourceVersion": claim.version,
    }
    return {"metadata": metadata, "spec": {"claimRef": reference}}


def build_selected_node(claim: PersistentVolumeClaim, node: str) -> Object:
    """The patch by which a claim's volume is to be made for a node."""
    return {"metadata": {"resourceVersion": claim.version, "annotations": {SELECTED_NODE: node}}}


class ClaimWrites:
    """Writes to volumes and claims.

    Args:
        session: the way to the API server.
        may_write: whether this process still leads; asked before each attempt.
        settings: waits and timeouts.
        place: held by each write, for the namespace of its claim.
    """

    def __init__(
        self, session: Session, may_write: Callable[[], bool], settings: ClaimWriteSettings, place: PlaceOf
    ) -> None:
        self._session = session
        self._may_write = may_write
        self._settings = settings
        self._place = place

    async def hold(self, volume: PersistentVolume, claim: PersistentVolumeClaim) -> str:
        """Hold a volume for a claim; returns the version from which on it is.

        Raises:
            NotBound: it is held for another claim, it is gone, or the API server refuses; or the claim has another.
        """
        if claim.volume_name not in ("", volume.name):
            raise NotBound(f'persistentvolumeclaim "{claim.key.name}" was changed meanwhile')

        def is_held(found: PersistentVolume) -> bool:
            return found.claim is not None and found.claim.uid == claim.uid

        uid = volume.uid
        while not is_held(volume):
            if volume.uid != uid:
                raise NotBound(f'persistentvolume "{volume.name}" was deleted and created again meanwhile')
            if volume.deleting:
                raise NotBound(f'persistentvolume "{volume.name}" is being deleted')
            if volume.claim is not None and not volume.is_for(claim):
                raise held_for_another(volume, volume.claim)
            path, body = PERSISTENT_VOLUMES.path(name=volume.name), build_claim_ref(volume, claim)
            found, is_ours = await self._patch(path, body, "hold-volume", claim.key.namespace)
            volume = PersistentVolume.from_raw(found)
            if is_ours and not is_held(volume):
                raise _undone(f'persistentvolume "{volume.name}"', "spec.claimRef")
        return volume.version

    async def select_node(self, claim: PersistentVolumeClaim, node: str) -> str:
        """Have a claim's volume made for a node; returns the version from which on it is.

        Raises:
            NotBound: another node was selected, the claim is bound or gone, or the API server refuses.
        """
        uid = claim.uid
        while claim.selected_node != node:
            if claim.uid != uid or claim.selected_node is not None or claim.volume_name:
                raise NotBound(f'persistentvolumeclaim "{claim.key.name}" was changed meanwhile')
            path = PERSISTENT_VOLUME_CLAIMS.path(claim.key.namespace, claim.key.name)
            body = build_selected_node(claim, node)
            found, is_ours = await self._patch(path, body, "select-node", claim.key.namespace)
            claim = PersistentVolumeClaim.from_raw(found)
            if is_ours and claim.selected_node != node:
                raise _undone(f'persistentvolumeclaim "{claim.key.name}"', f"annotation {SELECTED_NODE}")
        return claim.version

    async def _patch(self, path: str, body: Object, name: str, namespace: str) -> tuple[Object, bool]:
        """The object once the patch is carried out, and True; or as it is, and False, if somebody else was first.

        Args:
            path: of the object.
            body: a patch that names the version that it changes.
            name: of the write, in the names of failpoints.
            namespace: of the claim.
        """
        settings = self._settings
        version = body["metadata"]["resourceVersion"]
        written: Object | None = None

        async def write() -> Object:
            nonlocal written
            written = await self._session.patch(path, body, timeout_seconds=settings.timeout_seconds, attempts=1)
            return written

        async def read_back() -> Object | None:
            try:
                found = await self._session.get(path)
            except NotFound as error:  # whatever was written is gone with it
                raise NotBound(error.message) from error
            return None if found["metadata"]["resourceVersion"] == version else found

        try:
            async with self._place(namespace):
                found = await write_until_known(
                    write, read_back, may_write=self._may_write, settings=settings.retries, name=name
                )
                return found, found is written
        except NotFound as error:
            raise NotBound(error.message) from error
        except Conflict as error:
            raise NotBound(f"volumes could not be bound: {error.message}") from error
        except ApiError as error:
            raise NotBound(f"the API server refused to bind volumes: {error.message}") from error
        except NotWritten as error:
            raise NotBound(f"volumes could not be bound: {error}") from error
