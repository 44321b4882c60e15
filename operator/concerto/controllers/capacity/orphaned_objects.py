"""Objects that are named after a node which is not there: somebody has misspelt it, or the node has yet to join.

Their statuses are the node's agent's to write, so an event is all that the operator says of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from concerto.api.subspacesnapshot import CLUSTER_NAME
from concerto.kube import Object
from concerto.kube.events import EventRecorder
from concerto.kube.reflector import Key


@dataclass(frozen=True)
class NodelessSettings:
    """When something is said.

    Attributes:
        look_every_seconds: between two looks.
        patience_seconds: how long an object may be without its node: it goes a little later than that does.
        again_seconds: after which it is said again, as events are forgotten after an hour.
    """

    look_every_seconds: float = 5.0
    patience_seconds: float = 15.0
    again_seconds: float = 1800.0


class NodelessObjects:
    """Says which objects have no node."""

    def __init__(
        self,
        nodes: Mapping[Key, Object],
        named_after_nodes: Iterable[Mapping[Key, Object]],
        recorder: EventRecorder,
        clock: Callable[[], float],
        settings: NodelessSettings | None = None,
    ) -> None:
        """The stores are looked at, never changed.

        Args:
            nodes: the nodes there are.
            named_after_nodes: stores of kinds whose objects are named after nodes.
            recorder: of events.
            clock: seconds.
            settings: when something is said.
        """
        self._nodes = nodes
        self._stores = tuple(named_after_nodes)
        self._recorder = recorder
        self._clock = clock
        self._settings = settings or NodelessSettings()
        self._say_at: dict[str, float] = {}  # by UID

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(self._settings.look_every_seconds)

    def look(self) -> None:
        """Record an event on each object that has been without its node for long."""
        now = self._clock()
        nodeless = [
            obj
            for store in self._stores
            for key, obj in store.items()
            if key not in self._nodes and key[1] != CLUSTER_NAME
        ]
        first = now + self._settings.patience_seconds
        self._say_at = {uid: self._say_at.get(uid, first) for uid in (obj["metadata"]["uid"] for obj in nodeless)}
        for obj in nodeless:
            if now >= self._say_at[obj["metadata"]["uid"]]:
                self._say_at[obj["metadata"]["uid"]] = now + self._settings.again_seconds
                name = obj["metadata"]["name"]
                self._recorder.record(
                    obj,
                    type="Warning",
                    reason="NodeNotFound",
                    action="Observing",
                    note=f"There is no node {name}, so this {obj['kind']} has no effect. Delete it, unless a node "
                    "of that name will join. Its name must be one that `kubectl get nodes` shows.",
                )
