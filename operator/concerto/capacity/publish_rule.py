"""When an agent publishes: whether a new status differs enough from the last one to be worth a write. Pure code.

All nodes share one API server. An agent therefore writes a status when a number in it would change a decision, and
otherwise once a heartbeat, so that a missing heartbeat means a dead agent.

Placement by kind counts pods as the API server shows them. Of a status it reads what the node takes for itself, which
is written at once, and how busy the node is. Which pods an agent has counted, and the capacity in units, then change no
decision: such news waits for `PublishSettings.by_kind`.
Together the two intervals keep a busy node below 0.2 writes a second.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from concerto.api.nodecapacity import NodeCapacityStatus
from concerto.api.subspacesnapshot import SubspaceStatus
from concerto.capacity.kinds.table import Table, from_entries, has_changed, has_news

PublishReason = Literal["First", "Conditions", "Pods", "Capacity", "Usage", "Heartbeat"]


@dataclass(frozen=True)
class PublishSettings:
    """How large a change is worth a write; the agent's own settings, not the CRD's.

    Attributes:
        min_interval_seconds: shortest time between two writes of the status.
        steady_interval_seconds: the same while all that has changed is pods, capacity or usage.
        capacity_share: change of the capacity that is worth a write, as a share of the published capacity.
        capacity_pods: smallest change of the capacity that is worth a write, pods.
        spare: change of the CPU share left for regular pods that is worth a write.
        system: change of what a node takes of its CPUs or its memory for itself that is worth a write; fraction of it.
        usage: change of a resource's usage, or of its mean over a window, that is worth a write; fraction of the node.
        pods_wanting: change of the number of pods that want a core, per core, that is worth a write: the pace at which
            the node is given work follows it.
        jitter: each heartbeat is drawn anew within this share around ``spec.heartbeat``, so that the nodes of a cluster
            that restarted as a whole drift apart.
        subspace: change of the local model that is worth a write: the distance that the vector of RMS usage along the
            first direction moved, in fractions of the node. The distance is absolute, because the cluster's model is
            the mean over all nodes.
        kind_share: change of what a kind of pods costs that is worth a write, as a share of it.
        subspace_interval_seconds: shortest time between two writes of the model; a kind of which something is known for
            the first time waits for ``min_interval_seconds`` only.
        settled_interval_seconds: shortest time between two writes of the model once of each kind a pod has ended or has
            run for ``young_kind_seconds``; until then others of the kind wait for what is learned.
        young_kind_seconds: see there.
        subspace_heartbeat_seconds: longest time between two writes of an unchanged model.
        by_kind_interval_seconds: ``steady_interval_seconds`` where pods are placed by kind.
        by_kind_settled_seconds: ``settled_interval_seconds`` where pods are placed by kind.
    """

    min_interval_seconds: float = 1.0
    steady_interval_seconds: float = 1.0
    capacity_share: float = 0.1
    capacity_pods: float = 0.1
    spare: float = 0.1
    system: float = 0.1
    usage: float = 0.05
    pods_wanting: float = 0.2
    jitter: float = 0.05
    subspace: float = 0.05
    kind_share: float = 0.05
    subspace_interval_seconds: float = 5.0
    settled_interval_seconds: float = 5.0
    young_kind_seconds: float = 30.0
    subspace_heartbeat_seconds: float = 300.0
    by_kind_interval_seconds: float = 10.0
    by_kind_settled_seconds: float = 20.0

    def by_kind(self) -> Self:
        """The settings where pods are placed by what pods of their kind cost."""
        return replace(
            self,
            steady_interval_seconds=self.by_kind_interval_seconds,
            settled_interval_seconds=self.by_kind_settled_seconds,
        )


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
    if now - old.at < settings.min_interval_seconds:
        return None
    if condition_states(new.conditions) != condition_states(old.status.conditions) or new.agent != old.status.agent:
        return "Conditions"
    if new.observed_generation != old.status.observed_generation:
        return "Conditions"
    if measured_at <= old.measured_at:
        return None
    if system_moved(old.status, new, settings.system):
        return "Usage"
    if now - old.at < settings.steady_interval_seconds:
        return "Heartbeat" if now >= old.due else None
    if set(new.observed_pod_uids) != set(old.status.observed_pod_uids):
        return "Pods"
    if new.large_pods.keys() != old.status.large_pods.keys():
        return "Pods"
    spare = abs(new.spare_share - old.status.spare_share) >= settings.spare
    if spare or capacity_moved(old.status.capacity, new.capacity, settings):
        return "Capacity"
    if usage_moved(old.status, new, settings.usage) or wanting_moved(old.status, new, settings.pods_wanting):
        return "Usage"
    return "Heartbeat" if now >= old.due else None


def capacity_moved(old: float, new: float, settings: PublishSettings) -> bool:
    """Whether the change would move a pod: small numbers decide whether one more fits, large ones where it goes."""
    return abs(new - old) >= max(settings.capacity_pods, settings.capacity_share * abs(old))


def system_moved(old: NodeCapacityStatus, new: NodeCapacityStatus, change: float) -> bool:
    """Whether less or more of the node is left for pods: what it takes for itself has moved, came or went."""
    return any(_moved(was, now, change) for was, now in zip(_system(old), _system(new)))


def _system(status: NodeCapacityStatus) -> tuple[float | None, float | None]:
    return status.system_cpu, next((r.non_pod for r in status.resources if r.name == "memory"), None)


def usage_moved(old: NodeCapacityStatus, new: NodeCapacityStatus, change: float) -> bool:
    """Whether load-aware scores would differ: a usage or a window's mean has moved, or a resource came or went."""
    before = {r.name: r.usage for r in old.resources} | {(w.resource, w.window): w.average for w in old.windows}
    after = {r.name: r.usage for r in new.resources} | {(w.resource, w.window): w.average for w in new.windows}
    return before.keys() != after.keys() or any(abs(after[key] - before[key]) >= change for key in after)


def wanting_moved(old: NodeCapacityStatus, new: NodeCapacityStatus, change: float) -> bool:
    """Whether the node would be given work at another pace: more or fewer pods want a core, or that became known."""
    return _moved(old.pods_wanting, new.pods_wanting, change)


def _moved(was: float | None, now: float | None, change: float) -> bool:
    return (was is None) != (now is None) or (was is not None and now is not None and abs(now - was) >= change)


def should_publish_subspace(
    old: PublishedSubspace | None, new: SubspaceStatus, settings: PublishSettings, now: float
) -> bool:
    """Whether the freshly measured local model is worth a write now; the arguments are those of `should_publish`."""
    if old is None:
        return True
    before, after = from_entries(old.status.kinds), from_entries(new.kinds)
    if should_publish_kinds(before, after, settings, now - old.at):
        return True
    if now - old.at < _model_interval(after, settings):
        return False
    if now - old.at >= settings.subspace_heartbeat_seconds or new.resources != old.status.resources:
        return True
    if condition_states(new.conditions) != condition_states(old.status.conditions):
        return True
    moved = (
        new.sigma[0] * is_now - old.status.sigma[0] * was
        for is_now, was in zip(new.directions[0], old.status.directions[0])
    )
    return math.hypot(*moved) >= settings.subspace


def should_publish_kinds(before: Table, after: Table, settings: PublishSettings, elapsed_seconds: float) -> bool:
    """Whether what a node knows of kinds of pods is worth a write of its model.

    Args:
        before: as written last.
        after: as known now.
        settings: the intervals.
        elapsed_seconds: since the last write.
    """
    if elapsed_seconds >= settings.min_interval_seconds and has_news(before, after):
        return True
    return elapsed_seconds >= _model_interval(after, settings) and has_changed(before, after, settings.kind_share)


def _model_interval(kinds: Table, settings: PublishSettings) -> float:
    settled = all(sums.ended or sums.max_running_held >= settings.young_kind_seconds for sums in kinds.values())
    return settings.settled_interval_seconds if settled else settings.subspace_interval_seconds


def condition_states(conditions: Iterable[Mapping[str, Any]]) -> set[tuple[str, str, str]]:
    """Type, status and reason of each condition. A message alone, such as one that counts seconds, is not news."""
    return {(c["type"], c["status"], c["reason"]) for c in conditions}
