"""Pods that wait for a node: every unbound pod, and the queue of those whose scheduler name has a profile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from itertools import islice

from concerto.api.pod import PodView
from concerto.api.podgroup import GroupKey
from concerto.api.volumes import ClaimKey
from concerto.controllers.scheduling.unschedulable import UnschedulableReporter
from concerto.scheduling.profile import Profile
from concerto.scheduling.queue import Queue
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.cluster import ClusterState

MAX_ENQUEUED = 2000
"""Pods of changed profiles that come into the queue, or leave it, with one cycle: 40 ms."""


class PendingPods:
    """The unbound pods of every scheduler.

    Attributes:
        queue: those that the operator places.
        work: set when a cycle may have something to decide.
        on_pod_groups: given the PodGroups that have changed, or whose pods have.
    """

    def __init__(
        self,
        cluster: ClusterState,
        profiles: Mapping[str, Profile],
        reporter: UnschedulableReporter,
        clock: Callable[[], float],
    ) -> None:
        """No pod waits yet.

        Args:
            cluster: knows which pods are placed already.
            profiles: in use, by scheduler name.
            reporter: reports on pods that find no node.
            clock: seconds since the epoch.
        """
        self.on_pod_groups: Callable[[Collection[GroupKey]], None] = lambda keys: None
        self.queue = Queue(signatures=cluster.signatures)
        self.work = asyncio.Event()
        self._cluster = cluster
        self._profiles = profiles
        self._reporter = reporter
        self._clock = clock
        self._pods: dict[str, PodView] = {}  # by UID
        self._of_changed_profiles: dict[str, None] = {}  # UIDs, in order
        self._first_seen: dict[str, float] = {}

    def __contains__(self, uid: str) -> bool:
        """Whether the pod is known to be unbound."""
        return uid in self._pods

    def needs_node(self, uid: str) -> bool:
        """Whether the pod is known to be unbound, and is not assumed on a node."""
        return uid in self._pods and not self._cluster.is_placed(uid)

    def add_pod(self, pod: PodView) -> None:
        """An unbound pod appeared or changed."""
        self._pods[pod.uid] = pod
        self._first_seen.setdefault(pod.uid, self._clock())
        if pod.scheduler_name in self._profiles:
            self._enqueue(pod)

    def remove_pod(self, uid: str) -> None:
        """The pod is bound, has ended or is gone."""
        if self._pods.pop(uid, None) is not None:
            self.queue.remove(uid)
            self._of_changed_profiles.pop(uid, None)
            self._reporter.forget(uid)
            self._first_seen.pop(uid, None)

    def waited_seconds(self, uid: str) -> float:
        """Since the pod was first seen unbound."""
        now = self._clock()
        return now - self._first_seen.get(uid, now)

    def on_profile(self, scheduler_name: str) -> None:
        """The profile of that scheduler name came into use, changed, or is no longer in use."""
        pods = [pod for pod in self._pods.values() if pod.scheduler_name == scheduler_name]
        is_used = scheduler_name in self._profiles
        self._of_changed_profiles |= {pod.uid: None for pod in pods if (pod.uid in self.queue) != is_used}
        self.queue.requeue_all()
        self.work.set()

    def apply_profiles(self) -> None:
        """Some pods of profiles that came into use join the queue, and some of those that are not used leave it."""
        for uid in list(islice(self._of_changed_profiles, MAX_ENQUEUED)):
            del self._of_changed_profiles[uid]
            if (pod := self._pods.get(uid)) is None:
                continue
            if pod.scheduler_name in self._profiles:
                self._enqueue(pod)
            else:
                self.queue.remove(uid)
                self._reporter.forget(uid)

    def requeue(self, change: Change) -> None:
        """The cluster changed in a way that may let waiting pods find a node."""
        if change:
            self.queue.requeue(change)
            self.work.set()

    def requeue_users(self, claim: ClaimKey) -> None:
        """A claim changed in a way that may let pods that use it find a node."""
        self.queue.requeue_users(claim)
        self.work.set()

    def requeue_pod_groups(self) -> None:
        """PodGroups or their pods may have changed: where they have, that may let the pods find nodes."""
        if changed := self._cluster.pod_groups.take_changed():
            for key in changed:
                self.queue.requeue_pod_group(key)
            self.on_pod_groups(changed)
            self.work.set()

    def look_at_pod_group(self, key: GroupKey) -> None:
        """Another look at the pods of a PodGroup is due."""
        self.queue.requeue_pod_group(key)
        self.work.set()

    def retry(self, uid: str) -> None:
        """A placement of the pod did not come about: it is decided again, after a growing wait."""
        pod = self._pods.get(uid)
        if pod is not None and pod.scheduler_name in self._profiles:  # it may have gone out of use meanwhile
            self.queue.set(pod)
            self.queue.retry(uid, self._clock())
            self.work.set()

    async def wait_for_work(self, now: float) -> None:
        """Return when something changed, a pod's wait is over, or pods of changed profiles remain."""
        if self._of_changed_profiles:
            await asyncio.sleep(0)
            return
        self.work.clear()
        due = self.queue.next_ready()
        try:
            async with asyncio.timeout(None if due is None else max(0.0, due - now)):
                await self.work.wait()
        except TimeoutError:
            pass

    def _enqueue(self, pod: PodView) -> None:
        if not self._cluster.is_placed(pod.uid):
            self.queue.set(pod)
            self.work.set()
