"""Which of the pods on the node count, that is, make up n and ``observedPodUIDs``.

A pod counts from its first container's start to its last container's end, because that is how long its load can be
part of what is measured. Before its start (its sandbox is made, its image pulled, kubelet is busy with others) it is no
load yet, however long that takes: to the operator it is still in flight. After its last instruction a pod stays for
seconds, while kubelet takes the sandbox down: if it counted until then, a node full of ended pods would look full. The
cgroups of the containers show both moments; where the runtime gives sandboxes no cgroup, the pod's status shows the
first. *Which* pods count, the API server decides:

- A static pod does not count. Its cgroup carries the hash of its manifest (32 hexadecimal digits), so that it is known
  even while the API is away; its mirror pod names the hash in an annotation.
- A pod of a DaemonSet does not count: it belongs to the node, not to what is placed on it.
- A UID that the API does not show does not count yet. Either the watch shows the pod in a moment (kubelet has just seen
  it from the same server), or it is the rest of a pod that nobody knows any more, which kubelet will clear away. To the
  operator an uncounted pod is still in flight, which is the safe side; its load is part of the pods' usage even so.
- A pod with a container that may be started again (its ``restartPolicy``, or the pod's, is Always or OnFailure, or it
  has ``restartPolicyRules``), and that is not being deleted, goes on counting without it, until the pod's status shows
  that all containers have ended for good: only there stands whether one has failed. A pod that the API server no longer
  shows counts until its containers are gone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from concerto.api.pod_end import TERMINAL, containers_have_ended, may_start_again
from concerto.api.pod_kind import kind_of_pod
from concerto.api.pod_ownership import MIRROR, belongs_to_node
from concerto.api.pod_start import CONTAINER_STATUSES
from concerto.api.timestamps import read_timestamp
from concerto_agent.quotas import PodLimits, spec_limits

CONFIG_HASH = "kubernetes.io/config.hash"
_STATIC_UID = re.compile(r"^[0-9a-f]{32}$")
_MAX_UID = 64
"""Characters of a UID: anybody may write 256 KiB into an annotation."""
MAX_CONTAINERS = 100
"""Of a pod whose containers' limits are held. Anybody may name a node in pods with thousands of containers each."""

Object = dict[str, Any]


def trim_pod(pod: Object) -> Object:
    """The part of a raw Pod that is read here."""
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    annotations = metadata.get("annotations") or {}
    config_hash = annotations.get(CONFIG_HASH, "") if MIRROR in annotations else ""
    containers = len(spec.get("initContainers") or ()) + len(spec.get("containers") or ())
    return {
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
            "annotations": {CONFIG_HASH: config_hash} if 0 < len(config_hash) <= _MAX_UID else {},
        },
        "counts": not belongs_to_node(pod),
        "limits": _limits(spec, containers, status.get("phase") in TERMINAL),
        "kind": kind_of_pod({"metadata": metadata, "spec": spec}),
        "containers": containers,
        "restarts": may_start_again(spec) and "deletionTimestamp" not in metadata,
        "status": {
            "acceptedAt": status.get("startTime"),
            "startedAt": _first_start(status),
            "running": _running(status),
            "finished": status.get("phase") in TERMINAL or containers_have_ended(metadata, spec, status),
        },
    }


def _limits(spec: Object, containers: int, is_over: bool) -> dict[str, int]:
    """`spec_limits`; of a pod that is over or has too many containers, its own limit alone."""
    limits = spec_limits(spec)
    if is_over or containers > MAX_CONTAINERS:
        limits = {"": limits[""]} if "" in limits else {}
    return limits


def _first_start(status: Object) -> str | None:
    """When the first of its containers started, as far as the status shows."""
    starts = [
        state["startedAt"]
        for group in CONTAINER_STATUSES
        for container in status.get(group) or ()
        for state in (container.get("state") or {}, container.get("lastState") or {})
        for state in state.values()
        if state and state.get("startedAt")
    ]
    return min(starts, default=None)  # times of one form sort as text


def _running(status: Object) -> dict[str, list[str]]:
    """Container ID -> [name, start] of the containers that run."""
    return {
        container["containerID"].rpartition("//")[2]: [container["name"], state.get("startedAt") or ""]
        for group in CONTAINER_STATUSES
        for container in status.get(group) or ()
        if (state := (container.get("state") or {}).get("running")) and container.get("containerID")
    }


def limits_of(pods: Iterable[Object]) -> dict[str, PodLimits]:
    """CPU limits of those pods (trimmed) that have some, by UID."""
    return {
        pod["metadata"]["uid"]: PodLimits(
            pod["limits"].get(""),
            {key: pod["limits"][name] for key, (name, _) in pod["status"]["running"].items() if name in pod["limits"]},
        )
        for pod in pods
        if pod["limits"]
    }


@dataclass(frozen=True)
class Containers:
    """The containers of a pod, as its cgroups show them.

    Attributes:
        seen: how many containers have had a cgroup since the pod was first seen.
        ids: IDs of what still has one, which can only be the sandbox unless the runtime gives sandboxes none.
    """

    seen: int
    ids: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Known:
    """A pod as the API server shows it; ``started`` is the wall time of its first container's start."""

    counts: bool
    started: float | None
    finished: bool
    restarts: bool
    containers: int
    running: frozenset[str]


class PodListener(Protocol):
    """What is called when a pod begins or ends to count."""

    def pod_started(self, at: float) -> None:
        """A pod counts; its first container started at ``at``, monotonic seconds, perhaps long ago."""
        ...

    def pod_ended(self, uid: str, started_at: float, at: float) -> None:
        """The pod that had started at ``started_at`` is gone at ``at``."""
        ...


class PodCensus:
    """Brings together the cgroups that are there and the pods that the API shows.

    Attributes:
        counted: UID -> start, monotonic seconds, of exactly the pods that count, oldest first.
    """

    def __init__(self, listener: PodListener, *, max_pods: int) -> None:
        """Nothing is there and nothing known.

        Args:
            listener: called with every change of ``counted``.
            max_pods: most pods that count (``spec.maxPods``); beyond it the youngest stay uncounted.
        """
        self.counted: dict[str, float] = {}
        self._listener = listener
        self._max_pods = max_pods
        self._present: set[str] = set()
        self._working: dict[str, float] = {}
        self._idle: dict[
            str, Containers
        ] = {}  # pods that have had containers and have none, or one that may be a sandbox
        self._found: set[str] = set()
        self._known: dict[str, _Known] = {}
        self._deleted: set[str] = set()
        self._uncounted: list[str] | None = None  # None: to be found anew

    def appeared(self, uid: str, at: float, *, found: bool = False) -> None:
        """A pod's cgroup is there.

        Args:
            uid: as in the cgroup's name.
            at: since when, monotonic seconds.
            found: it was there before anyone looked, so that its pod may have been running for long.
        """
        self._present.add(uid)
        if found:
            self._found.add(uid)
        self._believe_status(uid, at)
        self._settle(at)

    def working(self, uid: str, at: float) -> None:
        """A container of the pod, whose cgroup is there, has started by ``at``, monotonic seconds."""
        self._working.setdefault(uid, at)
        self._idle.pop(uid, None)
        self._settle(at)

    def containers_gone(self, uid: str, left: Containers, at: float) -> None:
        """The pod's containers have ended by ``at``, as far as its cgroups show."""
        self._idle[uid] = left
        self._settle(at)

    def vanished(self, uid: str, at: float) -> None:
        """A pod's cgroup is gone since ``at``."""
        self._present.discard(uid)
        self._working.pop(uid, None)
        self._idle.pop(uid, None)
        self._found.discard(uid)
        self._settle(at)
        if uid in self._deleted:
            self._forget(uid)

    def on_pod_change(self, old: Object | None, new: Object | None, at: float, wall: float) -> None:
        """The API shows, or no longer shows, a pod (trimmed).

        Args:
            old: as it was; None if it is new.
            new: as it is; None if it is gone.
            at: monotonic time, seconds.
            wall: the same instant in seconds since the epoch, for how long a pod that is found running has run.
        """
        if new is None:
            for uid in uids_of(old) if old is not None else ():
                if uid in self._present:
                    self._deleted.add(uid)
                else:
                    self._forget(uid)
            return
        known = _Known(
            counts=new["counts"],
            started=read_timestamp(new["status"]["startedAt"], None),
            finished=new["status"]["finished"],
            restarts=new["restarts"],
            containers=new["containers"],
            running=frozenset(new["status"]["running"]),
        )
        for uid in uids_of(new):
            self._known[uid] = known
            if uid in self._found and known.started is not None and uid not in self.counted:
                since = at - max(wall - known.started, 0.0)
                self._working[uid] = min(self._working.get(uid, at), since)
            self._believe_status(uid, at)
        self._settle(at)

    def _believe_status(self, uid: str, at: float) -> None:
        """A container that the status shows has started by now, if only its pod's cgroup is still (or yet) there."""
        known = self._known.get(uid)
        if uid in self._present and known is not None and known.started is not None:
            self._working.setdefault(uid, at)

    def limit(self, max_pods: int, at: float) -> None:
        """``spec.maxPods`` has changed."""
        self._max_pods = max_pods
        self._settle(at)

    def uncounted(self) -> list[str]:
        """UIDs that are there and known not to count: what they use belongs to the node."""
        if self._uncounted is None:
            self._uncounted = [uid for uid in self._present if self._is_unit(uid) is False]
        return self._uncounted

    def _is_unit(self, uid: str) -> bool | None:
        if _STATIC_UID.match(uid):
            return False
        known = self._known.get(uid)
        return None if known is None else known.counts

    def _is_over(self, uid: str) -> bool:
        """Whether no container of the pod runs, and none will run again."""
        known, left = self._known.get(uid), self._idle.get(uid)
        if known is not None and known.finished:
            return True
        if left is None or (left.ids and known is not None and left.ids & known.running):
            return False
        if uid in self._deleted or known is None:
            return True
        # Init containers end before others start
        return not known.restarts and left.seen >= known.containers

    def _settle(self, at: float) -> None:
        """Make ``counted`` what it should be, and call the listener with the differences."""
        self._uncounted = None
        started = [uid for uid in self._present if uid in self._working]
        units = [uid for uid in started if self._is_unit(uid) and not self._is_over(uid)]
        units.sort(key=lambda uid: (self._working[uid], uid))
        wanted = {uid: self._working[uid] for uid in units[: self._max_pods]}
        before, self.counted = self.counted, wanted
        for uid in before.keys() - wanted.keys():
            self._listener.pod_ended(uid, before[uid], at)
        for uid in wanted.keys() - before.keys():
            self._listener.pod_started(wanted[uid])

    def _forget(self, uid: str) -> None:
        self._known.pop(uid, None)
        self._deleted.discard(uid)


def uids_of(pod: Mapping[str, Any]) -> Iterator[str]:
    """The UIDs that the pod's cgroup may carry."""
    yield pod["metadata"]["uid"]
    config_hash = pod["metadata"]["annotations"].get(CONFIG_HASH)
    if config_hash:
        yield config_hash
