"""Binds the volumes of pods in flight, each after its placement record is stored and before the pod is bound.

A volume that exists is held for its claim (``PersistentVolume.spec.claimRef``); the volume of a claim that is to be
provisioned is asked for by the annotation ``volume.kubernetes.io/selected-node``. Then the pod waits until the claims
are bound, which kube-controller-manager and provisioners do. A provisioner that fails takes the annotation back.

Nothing is undone if the pod is not bound after all, or if this process ends in between: volumes and claims show what
was begun, and the next decision on the pod starts from there. Source: ``volumeBinder`` of kube-scheduler.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field

from concerto.api.pod import PodView
from concerto.api.resource_version import not_newer
from concerto.api.volumes import ClaimKey, PersistentVolume, PersistentVolumeClaim, VolumeBindings
from concerto.controllers.volumes.claim_writes import ClaimWrites, NotBound, held_for_another
from concerto.kube.failpoints import point
from concerto.scheduling.state.cluster import ClusterState


@dataclass(eq=False)
class _Flight:
    """A pod whose volumes are being bound.

    Attributes:
        bindings: what is being bound.
        changed: set when something that it waits for may have changed.
        to_check: claims that have changed since they were looked at, or their volumes.
        versions: from which on an object shows what was written, by claim or by the volume's name.
        uids: of claims and volumes that were decided on; of others, as they were first seen.
        ended: why nothing more is to be done; empty while it waits.
    """

    bindings: VolumeBindings
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    to_check: dict[ClaimKey, None] = field(default_factory=dict)
    versions: dict[Hashable, str] = field(default_factory=dict)
    uids: dict[Hashable, str] = field(default_factory=dict)
    ended: str = ""

    def check_uid(self, what: str, key: Hashable, uid: str) -> None:
        """Another object of the same name may be of another size, class or place.

        Raises:
            NotBound: it is not the one that was decided on.
        """
        if self.uids.setdefault(key, uid) != uid:
            raise NotBound(f"{what} was deleted and created again meanwhile")

    def check_ended(self) -> None:
        """Whether there is still something to do.

        Raises:
            NotBound: there is not.
        """
        if self.ended:
            raise NotBound(self.ended)


class VolumeBinder:
    """Binds volumes.

    Args:
        cluster: what is known of volumes, claims and nodes; only read.
        writes: to volumes and claims.
        is_waiting: by UID, whether a pod exists and is not bound.
    """

    def __init__(self, cluster: ClusterState, writes: ClaimWrites, is_waiting: Callable[[str], bool]) -> None:
        self._cluster = cluster
        self._volumes = cluster.volumes
        self._writes = writes
        self._is_waiting = is_waiting
        self._flights: dict[str, _Flight] = {}  # by the pod's UID
        # By claim, and by the volume's name: who waits for it, and for which of its claims
        self._waiting: dict[Hashable, dict[_Flight, ClaimKey]] = {}

    # --- watch events

    def on_claim(self, key: ClaimKey) -> None:
        """A claim has changed."""
        self._wake(key)

    def on_volume(self, name: str, claim: ClaimKey | None) -> None:
        """A volume, which is held for this claim, has changed."""
        self._wake(name)
        if claim is not None:
            self._wake(claim)

    def on_node_gone(self, name: str) -> None:
        """A Node is gone: no volume is going to be made for it."""
        for flight in self._flights.values():
            if flight.bindings.node == name:
                flight.changed.set()

    def on_pod(self, uid: str, node: str) -> None:
        """A pod is bound to ``node``; or it has ended or gone, and ``node`` is empty."""
        if (flight := self._flights.get(uid)) is not None:
            flight.ended = f"The pod was bound to {node} by another scheduler." if node else "The pod is gone."
            flight.changed.set()

    # --- the step of a placement

    async def bind(self, pod: PodView, bindings: VolumeBindings, within_seconds: float) -> str | None:
        """Bind the volumes of a pod in flight; returns once all its claims are bound, or the problem."""
        flight = self._flights[pod.uid] = _Flight(bindings, uids=dict(bindings.uids))
        if not self._is_waiting(pod.uid):
            flight.ended = "The pod is gone."
        claims = [*(key for key, _ in bindings.static), *bindings.provisioned]
        watched: dict[Hashable, ClaimKey] = {key: key for key in claims} | {name: key for key, name in bindings.static}
        for each, key in watched.items():
            self._waiting.setdefault(each, {})[flight] = key
        try:
            async with asyncio.timeout(within_seconds):
                await self._write(flight)
                await self._until_bound(flight, claims)
        except NotBound as problem:
            return f"binding volumes: {problem}"
        except TimeoutError:
            return f"binding volumes: {self._waits_for(flight)} after {within_seconds:g} s"
        finally:
            del self._flights[pod.uid]
            for each in watched:
                del self._waiting[each][flight]
                if not self._waiting[each]:
                    del self._waiting[each]
        return None

    # --- inside

    def _wake(self, key: Hashable) -> None:
        for flight, claim in self._waiting.get(key, {}).items():
            flight.to_check[claim] = None
            flight.changed.set()

    async def _write(self, flight: _Flight) -> None:
        flight.check_ended()
        for key, name in flight.bindings.static:
            volume, claim = self._volume(flight, name), self._claim(flight, key)
            flight.versions[name] = await self._writes.hold(volume, claim)
            point("after-hold-volumes")
            flight.check_ended()
        for key in flight.bindings.provisioned:
            claim = self._claim(flight, key)
            flight.versions[key] = await self._writes.select_node(claim, flight.bindings.node)
            point("after-select-nodes")
            flight.check_ended()

    async def _until_bound(self, flight: _Flight, claims: Iterable[ClaimKey]) -> None:
        volume_of = dict(flight.bindings.static)
        unbound: set[ClaimKey] = set()
        flight.to_check = dict.fromkeys(claims)
        while True:
            flight.changed.clear()
            flight.check_ended()
            self._check_node(flight.bindings.node)
            # A pod may have a thousand claims, which are bound one after another
            to_check, flight.to_check = flight.to_check, {}
            for key in to_check:
                name = volume_of.get(key)
                bound = self._is_provisioned(flight, key) if name is None else self._is_held(flight, key, name)
                (unbound.discard if bound else unbound.add)(key)
            if not unbound:
                point("after-volumes-bound")
                return
            await flight.changed.wait()

    def _is_held(self, flight: _Flight, key: ClaimKey, name: str) -> bool:
        volume, claim = self._volume(flight, name), self._claim(flight, key)
        if _is_older(volume.version, flight.versions[name]):
            return False
        self._check_reach(volume, flight.bindings.node)
        if volume.claim is None or not volume.claim.uid:
            raise NotBound(f'ClaimRef got reset for pv "{name}"')
        if not volume.is_for(claim):
            raise held_for_another(volume, volume.claim)
        if claim.volume_name not in ("", name):
            raise NotBound(
                f'persistentvolumeclaim "{key.name}" was bound to persistentvolume "{claim.volume_name}" meanwhile'
            )
        return claim.bound

    def _is_provisioned(self, flight: _Flight, key: ClaimKey) -> bool:
        claim = self._claim(flight, key)
        if _is_older(claim.version, flight.versions[key]):
            return False
        if claim.selected_node != flight.bindings.node:
            raise NotBound(f'provisioning failed for PVC "{key.name}"')
        if claim.volume_name:
            volume = self._volumes.volumes.get(claim.volume_name)
            if volume is None:
                return False  # it is about to be seen
            self._check_reach(volume, flight.bindings.node)
        return claim.bound

    def _check_node(self, name: str) -> None:
        row = self._cluster.row_of.get(name)
        if row is None or not self._cluster.nodes.exists[row]:
            raise NotBound(f'node "{name}" not found')

    def _check_reach(self, volume: PersistentVolume, node: str) -> None:
        row = self._cluster.row_of.get(node)
        if row is None or not self._volumes.reaches(volume)[row]:
            raise NotBound(f'pv "{volume.name}" node affinity doesn\'t match node "{node}"')

    def _claim(self, flight: _Flight, key: ClaimKey) -> PersistentVolumeClaim:
        claim = self._volumes.claims.get(key)
        if claim is None:
            raise NotBound(f'persistentvolumeclaim "{key.name}" not found')
        flight.check_uid(f'persistentvolumeclaim "{key.name}"', key, claim.uid)
        return claim

    def _volume(self, flight: _Flight, name: str) -> PersistentVolume:
        volume = self._volumes.volumes.get(name)
        if volume is None:
            raise NotBound(f'persistentvolume "{name}" not found')
        flight.check_uid(f'persistentvolume "{name}"', name, volume.uid)
        return volume

    def _waits_for(self, flight: _Flight) -> str:
        keys = [key for key, _ in flight.bindings.static] + list(flight.bindings.provisioned)
        unbound = [key.name for key in keys if not ((claim := self._volumes.claims.get(key)) and claim.bound)]
        return f"the pod still waits for claim {', '.join(unbound) or 'nothing'}"


def _is_older(version: str, written: str) -> bool:
    """Whether what is known of an object is from before a write."""
    return version != written and not_newer(version, written)
