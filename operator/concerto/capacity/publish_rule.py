"""When an agent publishes: whether a new status differs enough from the last one to be worth a write. Pure code.

All nodes share one API server. An agent therefore writes a status when a number in it would change a decision, and
otherwise once a heartbeat, so that a missing heartbeat means a dead agent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from concerto.api.nodecapacity import NodeCapacityStatus
from concerto.api.subspacesnapshot import SubspaceStatus
from concerto.capacity.kinds.table import from_entries, has_changed, has_news

PublishReason = Literal["First", "Conditions", "Pods", "Capacity", "Usage", "Heartbeat"]


@dataclass(frozen=True)
class PublishSettings:
    """How large a change is worth a write; the agent's own settings, not the CRD's.

    Attributes:
        minimum_interval_seconds: shortest time between two writes of the status.
        capacity_share: change of the capacity that is worth a write, as a share of the published capacity.
        capacity_pods: smallest change of the capacity that is worth a write, pods.
        spare: change of the CPU share left for regular pods that is worth a write.
        usage: change of a resource's usage, or of its mean over a window, that is worth a write; fraction of the node.
        jitter: each heartbeat is drawn anew within this share around ``spec.heartbeat``, so that the nodes of a cluster
            that restarted as a whole drift apart.
        subspace: change of the local model that is worth a write: the distance that the vector of RMS usage along the
            first direction moved, in fractions of the node. The distance is absolute, because the cluster's model is
            the mean over all nodes.
        kind_share: change of what a kind of pods costs that is worth a write, as a share of it.
        subspace_interval_seconds: shortest time between two writes of the model; a kind of which something is known for
            the first time waits for ``minimum_interval_seconds`` only.
        subspace_heartbeat_seconds: longest time between two writes of an unchanged model.
    """

    minimum_interval_seconds: float = 1.0
    capacity_share: float = 0.1
    capacity_pods: float = 0.1
    spare: float = 0.1
    usage: float = 0.05
    jitter: float = 0.05
    subspace: float = 0.05
    kind_share: float = 0.05
    subspace_interval_seconds: float = 5.0
    subspace_heartbeat_seconds: float = 300.0


@dataclass(frozen=True)
class Published:
    """The status that the API server is known to have.

    Attributes:
        status: the status as it was written.
        measured_at: monotonic time of the measurement in it; the clock of ``observedAt`` may be set back.
        at: monotonic time of the write.
        due: monotonic time at which the next heartbeat is due.
    """

    status: NodeCapacityStatus
    measured_at: float
    at: float
    due: float


@dataclass(frozen=True)
class PublishedSubspace:
    """The local model that the API server is known to have.

    Attributes:
        status: the model.
        at: monotonic time of the write.
    """

    status: SubspaceStatus
    at: float


def should_publish(
    old: Published | None, new: NodeCapacityStatus, measured_at: float, settings: PublishSettings, now: float
) -> PublishReason | None:
    """The reason to write the status now, or None.

    Args:
        old: the status that was written last; None before the first write.
        new: the status that could be written.
        measured_at: monotonic time of the measurement in it.
        settings: the deadbands.
        now: monotonic time, seconds.
    """
    if old is None:
        return "First"
    if now - old.at < settings.minimum_interval_seconds:
        return None
    if condition_states(new.conditions) != condition_states(old.status.conditions) or new.agent != old.status.agent:
        return "Conditions"
    if new.observed_generation != old.status.observed_generation:
        return "Conditions"
    if measured_at <= old.measured_at:
        return None
    if set(new.observed_pod_uids) != set(old.status.observed_pod_uids):
        return "Pods"
    if new.large_pods.keys() != old.status.large_pods.keys():
        return "Pods"
    spare = abs(new.spare_share - old.status.spare_share) >= settings.spare
    if spare or capacity_moved(old.status.capacity, new.capacity, settings):
        return "Capacity"
    if usage_moved(old.status, new, settings.usage):
        return "Usage"
    return "Heartbeat" if now >= old.due else None


def capacity_moved(old: float, new: float, settings: PublishSettings) -> bool:
    """Whether the change would move a pod: small numbers decide whether one more fits, large ones where it goes."""
    return abs(new - old) >= max(settings.capacity_pods, settings.capacity_share * abs(old))


def usage_moved(old: NodeCapacityStatus, new: NodeCapacityStatus, change: float) -> bool:
    """Whether load-aware scores would differ: a usage or a window's mean has moved, or a resource came or went."""
    before = {r.name: r.usage for r in old.resources} | {(w.resource, w.window): w.average for w in old.windows}
    after = {r.name: r.usage for r in new.resources} | {(w.resource, w.window): w.average for w in new.windows}
    return before.keys() != after.keys() or any(abs(after[key] - before[key]) >= change for key in after)


def should_publish_subspace(
    old: PublishedSubspace | None, new: SubspaceStatus, settings: PublishSettings, now: float
) -> bool:
    """Whether the freshly measured local model is worth a write now; the arguments are those of `should_publish`."""
    if old is None:
        return True
    before, after = from_entries(old.status.kinds), from_entries(new.kinds)
    if now - old.at >= settings.minimum_interval_seconds and has_news(before, after):
        return True
    if now - old.at < settings.subspace_interval_seconds:
        return False
    if now - old.at >= settings.subspace_heartbeat_seconds or new.resources != old.status.resources:
        return True
    if condition_states(new.conditions) != condition_states(old.status.conditions):
        return True
    if has_changed(before, after, settings.kind_share):
        return True
    moved = (
        new.sigma[0] * is_now - old.status.sigma[0] * was
        for is_now, was in zip(new.directions[0], old.status.directions[0])
    )
    return math.hypot(*moved) >= settings.subspace


def condition_states(conditions: Iterable[Mapping[str, Any]]) -> set[tuple[str, str, str]]:
    """Type, status and reason of each condition. A message alone, such as one that counts seconds, is not news."""
    return {(c["type"], c["status"], c["reason"]) for c in conditions}
