"""One node's account of units: who is on it, which pods its agent has counted, and the sums over them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from concerto.api.nodecapacity import NodeCapacityStatus


class Room(NamedTuple):
    """Pods that a node can take; NaN without a status.

    Attributes:
        capacity: before what is promised.
        startable: that may still start on it.
        holdable: units that can still be held on it. Held units wait for their pods. They keep room from others, but
            not the few starts that a node allows at a time: a node that takes its pods one by one would take none any
            more for a single unit that is held.
    """

    capacity: float
    startable: float
    holdable: float


_UNKNOWN = Room(math.nan, math.nan, math.nan)


@dataclass(slots=True)
class NodeAccount:
    """Units by pod UID.

    Attributes:
        live: of the pods assigned or bound to the node that have not ended.
        observed: pods that its agent counts.
        credited: of pods that have ended, or whose containers have, and that its agent still counts.
        in_flight: sum over the live pods that its agent does not count.
        held: sum over what reservations hold on the node.
        resource_version: version of the NodeCapacity that ``status`` is from; empty without one.
        status: its last status.
        heartbeat_seconds: how often its agent reports at least.
        last_status_at: when its last status came, by the operator's clock, seconds.
        max_pods: pods that the Node allows, beyond which no number of its agent is believed; None without a Node.
    """

    live: dict[str, int] = field(default_factory=dict)
    observed: frozenset[str] = frozenset()
    credited: dict[str, int] = field(default_factory=dict)
    in_flight: int = 0
    held: int = 0
    resource_version: str = ""
    status: NodeCapacityStatus | None = None
    heartbeat_seconds: float = 0.0
    last_status_at: float = 0.0
    max_pods: int | None = None

    @property
    def promised(self) -> int:
        """Units in flight, less those that the agent counts though their pods have ended."""
        return self.in_flight - sum(self.credited.values()) if self.credited else self.in_flight

    @property
    def empty(self) -> bool:
        """Whether nothing is known of the node."""
        return not (self.live or self.status or self.held or self.resource_version or self.max_pods is not None)

    @property
    def room(self) -> Room:
        """What the node can take by its last status."""
        status = self.status
        if status is None:
            return _UNKNOWN
        capacity, promised = self._believed(status.capacity), self.promised
        room = capacity if status.room is None else max(self._believed(status.room), capacity)
        # Pods that an agent says it counts, ended ones or others, are numbers of its own, too
        places = math.inf if self.max_pods is None else self.max_pods - len(self.live)
        return Room(capacity, min(capacity - promised, places), min(room - promised, places) - self.held)

    def _believed(self, pods: float) -> float:
        """What an agent reports, as far as its Node makes it possible: an agent must not draw others' pods by a lie."""
        if math.isnan(pods):
            return 0.0
        return pods if self.max_pods is None else max(-float(self.max_pods), min(pods, float(self.max_pods)))

    def add_pod(self, uid: str, units: int) -> bool:
        """A pod is assigned or bound to the node; returns whether its agent counts it already."""
        self.live[uid] = units
        self.credited.pop(uid, None)
        if uid in self.observed:
            return True
        self.in_flight += units
        return False

    def remove_pod(self, uid: str) -> None:
        """The pod is not on the node any more."""
        units = self.live.pop(uid)
        if uid not in self.observed:
            self.in_flight -= units

    def lift(self, uid: str) -> int:
        """As if the end of a live pod had been seen; returns its units, for ``put_back``."""
        units = self.live[uid]
        self.remove_pod(uid)
        self.credit(uid, units)
        return units

    def put_back(self, uid: str, units: int) -> None:
        """Undo ``lift``."""
        self.add_pod(uid, units)

    def credit(self, uid: str, units: int) -> bool:
        """The pod has ended; returns whether its agent still counts it, so that its units are given back here."""
        if uid not in self.observed:
            return False
        self.credited[uid] = units
        return True

    def observe(self, uids: frozenset[str], ended_units: Callable[[str], int | None]) -> list[str]:
        """The agent counts these pods.

        Args:
            uids: the pods.
            ended_units: units of a pod whose end, or that of whose containers, has been seen; None for others.

        Returns:
            The live ones among them.
        """
        self.credited = {
            uid: units for uid in uids if (units := ended_units(uid) or self.credited.get(uid)) is not None
        }
        self.observed = uids
        self.in_flight = sum(units for uid, units in self.live.items() if uid not in uids)
        return [uid for uid in self.live if uid in uids]
