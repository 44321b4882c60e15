"""What decisions have reserved of volumes and claims until their pods are bound."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import TypeVar

from concerto.api.volumes import NO_BINDINGS, ClaimKey, VolumeBindings

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class VolumeReservations:
    """Reservations by pod; pods that share a claim reserve the same for it.

    Attributes:
        version: grows with each change.
    """

    def __init__(self) -> None:
        self.version = 0
        self._of_pod: dict[str, VolumeBindings] = {}  # by UID
        self._holders: dict[str, dict[str, ClaimKey]] = {}  # by the volume's name and the pod's UID
        self._nodes: dict[ClaimKey, dict[str, str]] = {}  # by the pod's UID

    def holders(self, volume: str) -> Collection[ClaimKey]:
        """The claims that a volume is reserved for: one, unless that was deleted and another has taken its place."""
        holders = self._holders.get(volume)
        return () if holders is None else holders.values()

    def node(self, claim: ClaimKey) -> str | None:
        """The node that a claim's volume is to be made for."""
        return next(iter(self._nodes.get(claim, {}).values()), None)

    def of(self, uid: str) -> VolumeBindings:
        """What the decision on a pod has reserved."""
        return self._of_pod.get(uid, NO_BINDINGS)

    def reserve(self, uid: str, bindings: VolumeBindings) -> None:
        """A pod is about to be bound, and these volumes before it."""
        self.unreserve(uid)
        if not bindings:
            return
        self.version += 1
        self._of_pod[uid] = bindings
        for key, name in bindings.static:
            self._holders.setdefault(name, {})[uid] = key
        for key in bindings.provisioned:
            self._nodes.setdefault(key, {})[uid] = bindings.node

    def unreserve(self, uid: str) -> None:
        """The pod is bound, or it is not going to be."""
        bindings = self._of_pod.pop(uid, None)
        if bindings is None:
            return
        self.version += 1
        for _, name in bindings.static:
            _forget(self._holders, name, uid)
        for key in bindings.provisioned:
            _forget(self._nodes, key, uid)


def _forget(table: dict[_Key, dict[str, _Value]], key: _Key, uid: str) -> None:
    of_pods = table[key]
    of_pods.pop(uid, None)
    if not of_pods:
        del table[key]
