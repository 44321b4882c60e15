"""What the node's pods cost, by kind: from readings of their cgroups to the sums that nodes share. Pure.

The natural share of a pod is its CPU time over the time for which it held its place, the time in which its tasks waited
for a CPU left out. Contention adds as much to the one as to the other, so an overloaded node measures the same share as
an empty one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from concerto.api.pod_kind import Kind
from concerto.api.subspacesnapshot import KindEntry
from concerto.api.timestamps import parse_timestamp
from concerto.capacity.kinds.sums import PodMeasurement
from concerto.capacity.kinds.table import NodeKinds, to_entries
from concerto_agent.pod_reader import PodReading
from concerto_agent.podmeta import uids_of

Object = dict[str, Any]


@dataclass(frozen=True)
class _Pod:
    """A pod as the API server shows it.

    Attributes:
        kind: which pods it is like.
        accepted_at: monotonic time at which kubelet took it in, seconds; None if it is not known.
        cpu_limit: cores that its quota allows; None without one.
    """

    kind: Kind
    accepted_at: float | None
    cpu_limit: float | None


@dataclass(frozen=True)
class _Use:
    """What a pod has used so far; ``lost`` is the time in which its tasks waited for a CPU."""

    work: float
    lost: float
    memory: float


class PodCosts:
    """The costs of one node's counted pods."""

    def __init__(self) -> None:
        """Nothing is known before `on_pod` and `read`."""
        self._kinds = NodeKinds()
        self._pods: dict[str, _Pod] = {}
        self._use: dict[str, _Use] = {}

    def on_pod(self, old: Object | None, new: Object | None, at: float, wall: float) -> None:
        """The API server shows, or no longer shows, a pod (`podmeta.trim_pod`).

        Args:
            old: the pod as it was; None if it is new.
            new: the pod as it is; None if it is gone.
            at: monotonic time, seconds.
            wall: the same instant, seconds since the epoch.
        """
        if new is None:
            for uid in uids_of(old) if old is not None else ():
                if uid not in self._use:
                    self._pods.pop(uid, None)
            return
        accepted = new["status"]["acceptedAt"]
        since = None if accepted is None else at - max(0.0, wall - parse_timestamp(accepted))
        limit = new["limits"].get("")
        for uid in uids_of(new):
            known = self._pods.get(uid)
            # The first answer stays: a later one would be off by a step of the wall clock
            begun = since if known is None or known.accepted_at is None else known.accepted_at
            self._pods[uid] = _Pod(new["kind"], begun, None if limit is None else limit / 1000)

    def read(self, readings: Mapping[str, PodReading], tasks_per_cpu: float) -> None:
        """Take readings of counted pods.

        Args:
            readings: by UID.
            tasks_per_cpu: tasks that run or wait for a CPU, per CPU of the node, since the readings before. Where the
                kernel does not tell what a pod waited for, its CPU time is taken to have been held up as everybody's.
        """
        for uid, reading in readings.items():
            before = self._use.get(uid, _Use(0.0, 0.0, 0.0))
            if reading.stalled_seconds is None:
                worked = max(0.0, reading.cpu_seconds - before.work)
                lost = before.lost + worked * max(tasks_per_cpu - 1.0, 0.0)
            else:
                lost = reading.stalled_seconds
            self._use[uid] = _Use(reading.cpu_seconds, lost, max(before.memory, reading.memory_bytes or 0.0))

    def ended(self, uid: str, started_at: float, at: float) -> None:
        """A counted pod has ended.

        Args:
            uid: the pod.
            started_at: when its first container started, monotonic seconds.
            at: when its last one ended, monotonic seconds.
        """
        pod, use = self._pods.pop(uid, None), self._use.pop(uid, None)
        if pod is not None and use is not None:
            self._kinds.pod_ended(pod.kind, _measurement(pod, use, started_at, at, ended=True), at)

    def entries(self, counted: Mapping[str, float], now: float) -> tuple[KindEntry, ...]:
        """What was measured of each kind, as a SubspaceSnapshot carries it.

        Args:
            counted: start of each counted pod, monotonic seconds, by UID.
            now: monotonic seconds.
        """
        running = [
            (pod.kind, _measurement(pod, use, started_at, now, ended=False))
            for uid, started_at in counted.items()
            if (pod := self._pods.get(uid)) is not None and (use := self._use.get(uid)) is not None
        ]
        return to_entries(self._kinds.table(running, now))


def _measurement(pod: _Pod, use: _Use, started_at: float, until: float, *, ended: bool) -> PodMeasurement:
    begun = started_at if pod.accepted_at is None else min(pod.accepted_at, started_at)
    life = max(0.0, until - begun)
    held = max(0.0, life - use.lost)
    # A quota stalls a pod, too, so that its share would come out above what it may take
    if pod.cpu_limit is not None and pod.cpu_limit > 0.0:
        held = min(max(held, use.work / pod.cpu_limit), life)
    return PodMeasurement(use.work, held, life, use.memory, ended)
