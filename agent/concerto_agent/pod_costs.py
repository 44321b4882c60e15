"""What the node's pods cost, by kind: from readings of their cgroups to the sums that nodes share. Pure.

The natural share of a pod is its CPU time over the time for which it held its place, the time in which its tasks waited
for a CPU left out. Contention adds as much to the one as to the other, so an overloaded node measures the same share as
an empty one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from concerto.api.pod_kind import Kind
from concerto.api.subspacesnapshot import KindEntry
from concerto.api.timestamps import read_timestamp
from concerto.capacity.kinds.contention import StartsAndEnds, leave_out
from concerto.capacity.kinds.start_cost import StartCost
from concerto.capacity.kinds.sums import SHOWN_CORE_SECONDS, PodMeasurement, recent_share
from concerto.capacity.kinds.table import MAX_ENTRIES, NodeKinds, from_entries, to_entries
from concerto_agent.pod_census import uids_of
from concerto_agent.pod_reader import PodReading

Object = dict[str, Any]


_MAX_TEARDOWN_SECONDS = 10.0
"""How long after the end of its last container a pod's end may show at the API server; then the former is taken."""


@dataclass(frozen=True)
class _Pod:
    """A pod as the API server shows it.

    Attributes:
        kind: which pods it is like.
        bound_at: monotonic time since which it holds its place, seconds.
        cpu_limit: cores that its quota allows; None without one.
        limited: whether it, or a container of it, has a CPU limit.
        finished: whether the API server shows that it, or every container of it, has ended.
    """

    kind: Kind
    bound_at: float
    cpu_limit: float | None
    limited: bool
    finished: bool


@dataclass(frozen=True)
class _Use:
    """What a pod has used so far; ``lost`` is the time in which its tasks waited for a CPU.

    ``peak_work`` is its CPU time, each part of it times the cores that were used then.
    """

    work: float
    lost: float
    memory: float
    peak_work: float


_UNUSED = _Use(0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class _Ending:
    """A pod whose containers have ended, which the API server does not show yet.

    Attributes:
        pod: the pod.
        use: what it has used.
        started_at: when its first container started, monotonic seconds.
        exited_at: when its last process ended.
        at: when its containers' cgroups were gone.
    """

    pod: _Pod
    use: _Use
    started_at: float
    exited_at: float
    at: float


class PodCosts:
    """The costs of one node's counted pods.

    A pod holds its place until the API server shows the end of its last container: that is when the scheduler may give
    its place away.

    Attributes:
        start_cost: what its pods' starts and ends cost the node.
        has_news: whether a kind has shown its load, or has ended a pod, for the first time since `entries` was called.
    """

    def __init__(self) -> None:
        """Nothing is known before `on_pod` and `read`."""
        self.start_cost = StartCost()
        self.has_news = False
        self._kinds = NodeKinds()
        self._pods: dict[str, _Pod] = {}
        self._use: dict[str, _Use] = {}
        self._exited: dict[str, float] = {}  # when a container of the pod last ended
        self._ending: dict[str, _Ending] = {}
        self._starts_and_ends = StartsAndEnds()
        self._before: dict[str, PodMeasurement] = {}  # of pods that run, when `entries` was last called
        self._published: dict[str, bool] = {}  # kinds in the last entries, and whether a pod of each had ended

    def recall(self, published: Sequence[KindEntry], age_seconds: float, now: float) -> None:
        """What this node's agent had published before it was started again.

        Args:
            published: of each kind.
            age_seconds: how long ago.
            now: monotonic seconds.
        """
        self._kinds.recall(from_entries(published), age_seconds, now)

    def on_pod(self, old: Object | None, new: Object | None, at: float, wall: float) -> None:
        """The API server shows, or no longer shows, a pod (`pod_census.trim_pod`).

        Args:
            old: the pod as it was; None if it is new.
            new: the pod as it is; None if it is gone.
            at: monotonic time, seconds.
            wall: the same instant, seconds since the epoch.
        """
        if new is None:
            for uid in uids_of(old) if old is not None else ():
                self._finish(uid, at)
                if uid not in self._use:
                    self._forget(uid)
            return
        accepted = read_timestamp(new["status"]["acceptedAt"], None)
        # A pod that kubelet has not taken in was bound just now. Kubelet's own time is rounded to a second
        since = at if accepted is None else at - max(0.0, wall - accepted)
        limit = new["limits"].get("")
        for uid in uids_of(new):
            known = self._pods.get(uid)
            # The first answer stays: a later one would be off by a step of the wall clock
            begun = since if known is None else known.bound_at
            finished = new["status"]["finished"]
            self._pods[uid] = _Pod(
                new["kind"], begun, None if limit is None else limit / 1000, bool(new["limits"]), finished
            )
            if finished:
                self._finish(uid, at)

    def is_limited(self, uid: str) -> bool:
        """Whether the pod, or a container of it, has a CPU limit; so it is taken until the API server has shown it."""
        pod = self._pods.get(uid)
        return pod is None or pod.limited

    def read(self, readings: Mapping[str, PodReading], tasks_per_cpu: float) -> None:
        """Take readings of counted pods.

        Args:
            readings: by UID.
            tasks_per_cpu: tasks that run or wait for a CPU, per CPU of the node, since the readings before. Where the
                kernel does not report what a pod waited for, its CPU time is taken to have been held up as everybody's.
        """
        for uid, reading in readings.items():
            before = self._use.get(uid, _UNUSED)
            if reading.stalled_seconds is None:
                worked = max(0.0, reading.cpu_seconds - before.work)
                lost = before.lost + worked * max(tasks_per_cpu - 1.0, 0.0)
            else:
                lost = reading.stalled_seconds
            memory = max(before.memory, reading.memory_bytes or 0.0)
            if before is _UNUSED or (reading.cpu_seconds, lost, memory) != (before.work, before.lost, before.memory):
                self._use[uid] = _Use(reading.cpu_seconds, lost, memory, reading.peak_work)
            if reading.cpu_seconds >= SHOWN_CORE_SECONDS and (pod := self._pods.get(uid)) is not None:
                self._note_news(pod.kind.key, ended=False)

    def _note_news(self, key: str, *, ended: bool) -> None:
        if len(self._published) < MAX_ENTRIES and self._published.get(key) not in (True, ended):
            self.has_news = True

    def exited(self, uid: str, at: float) -> None:
        """A container of the pod has no process any more, at ``at``, monotonic seconds."""
        if uid in self._pods:
            self._exited[uid] = at

    def ended(self, uid: str, started_at: float, at: float) -> None:
        """The containers of a counted pod have ended.

        Args:
            uid: the pod.
            started_at: when its first container started, monotonic seconds.
            at: when its last one ended, monotonic seconds.
        """
        pod, use = self._pods.get(uid), self._use.pop(uid, None)
        exited_at = min(self._exited.pop(uid, at), at)
        if pod is None or use is None:
            self._forget(uid)
            return
        self._ending[uid] = _Ending(pod, use, started_at, max(exited_at, started_at), at)
        if pod.finished:
            self._finish(uid, at)

    def _finish(self, uid: str, at: float) -> None:
        """The pod no longer holds its place, if its containers have ended."""
        ending = self._ending.pop(uid, None)
        if ending is None:
            return
        self._forget(uid)
        until = max(at, ending.at) if at - ending.at <= _MAX_TEARDOWN_SECONDS else ending.at
        around = max(0.0, ending.started_at - ending.pod.bound_at) + max(0.0, until - ending.exited_at)
        use = replace(ending.use, lost=ending.use.lost + self._starts_and_ends.held_up(around))
        measured = _measurement(ending.pod, use, ending.started_at, until, ended=True)
        self._kinds.pod_ended(ending.pod.kind, self.start_cost.added_to(measured), until)
        self._note_news(ending.pod.kind.key, ended=True)

    def _forget(self, uid: str) -> None:
        self._pods.pop(uid, None)
        self._exited.pop(uid, None)

    def entries(self, counted: Mapping[str, float], now: float) -> tuple[KindEntry, ...]:
        """What was measured of each kind, as a SubspaceSnapshot carries it.

        Args:
            counted: start of each counted pod, monotonic seconds, by UID.
            now: monotonic seconds.
        """
        for uid in [uid for uid, ending in self._ending.items() if now - ending.at > _MAX_TEARDOWN_SECONDS]:
            self._finish(uid, now)
        running = {}
        for uid, started_at in counted.items():
            if (pod := self._pods.get(uid)) is not None and (use := self._use.get(uid)) is not None:
                measured = _measurement(pod, use, started_at, now, ended=False)
                if (before := self._before.get(uid)) is not None:
                    recent = recent_share(before, measured)
                    measured = replace(measured, recent=recent)
                running[uid] = measured
        self._before = running
        table = self._kinds.table(((self._pods[uid].kind, measured) for uid, measured in running.items()), now)
        self._published, self.has_news = {key: sums.ended > 0.0 for key, sums in table.items()}, False
        return to_entries(table)


def _measurement(pod: _Pod, use: _Use, started_at: float, until: float, *, ended: bool) -> PodMeasurement:
    life = max(0.0, until - min(pod.bound_at, started_at))
    whole = PodMeasurement(use.work, life, life, use.memory, ended, peak_work=use.peak_work)
    return leave_out(whole, use.lost, pod.cpu_limit)
