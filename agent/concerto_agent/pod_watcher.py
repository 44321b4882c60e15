"""Which pod cgroups there are, from the kernel: a pod is seen some 20 ms after its creation in the API.

The API's own events come after the container runtime's load spike has begun (Carico, figure 4.8), so that the churn
window can only be opened in time from here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from concerto_agent.cgroups import KUBEPODS_PATHS, container_id, is_qos_directory, kubepods_below, pod_uid
from concerto_agent.container_exits import ContainerExits
from concerto_agent.files import GONE, subdirectories
from concerto_agent.inotify import (
    IN_CREATE,
    IN_DELETE,
    IN_IGNORED,
    IN_ISDIR,
    IN_MOVED_FROM,
    IN_MOVED_TO,
    IN_Q_OVERFLOW,
    Inotify,
)
from concerto_agent.pod_census import Containers

log = logging.getLogger(__name__)

_SANDBOX_AND_CONTAINER = 2
"""Cgroups in a pod's that mean that a container of it is there: its sandbox has one of its own, and is there first."""


class PodWatcher:
    """Keeps the set of pod cgroups below one cgroup, whatever appears or disappears in the meantime.

    Every directory is watched first and scanned then, so that nothing falls between; the queue of events is a complete
    log, so that a scan which runs ahead of it is only repeated by it, never contradicted for long.

    Attributes:
        pods: pod UID (as in the directory's name) -> path of its cgroup, relative to the hierarchy's root.
        working: UIDs of the pods of which a container, and not only the sandbox, has a cgroup.
        events: ``Inotify``, or ``Scan`` where a watch could not be had and the tree is read once a second.
        kubepods: path of the kubepods cgroup; None while it does not exist. Pods in one that kubelet's former cgroup
            driver has left are followed, too.
    """

    def __init__(
        self,
        root: Path,
        scope: str,
        on_change: Callable[[str, bool], None],
        on_working: Callable[[str], None],
        on_containers_gone: Callable[[str, Containers], None] = lambda uid, left: None,
        *,
        exits: ContainerExits | None = None,
        scan_seconds: float = 1.0,
        check_seconds: float = 30.0,
        open_inotify: Callable[[], Inotify] = Inotify,
    ) -> None:
        """A watcher that has not looked yet.

        Args:
            root: a cgroup hierarchy's root (any that kubelet makes pod cgroups in).
            scope: path of the cgroup below which kubepods lies, relative to ``root``; "" for the root.
            on_change: called with a UID and whether it came (True) or went (False).
            on_working: called with a UID when a container has its cgroup, and none had one before. A runtime that gives
                sandboxes none is never seen to get there with one container: the pod's status shows those.
            on_containers_gone: called with a UID when the last container's cgroup is gone.
            exits: is given the cgroup of each container; None: nobody asks when their processes end.
            scan_seconds: how often the tree is read where events can't be had.
            check_seconds: how often it is read in spite of events, should the kernel ever keep one to itself.
            open_inotify: gives an inotify instance.
        """
        self.pods: dict[str, str] = {}
        self.working: set[str] = set()
        self.events: Literal["Inotify", "Scan"] = "Scan"
        self.kubepods: str | None = None
        self._root = root
        self._scope = scope.strip("/")
        self._on_change = on_change
        self._on_working = on_working
        self._on_containers_gone = on_containers_gone
        self._exits = exits
        self._names: dict[str, set[str]] = {}  # of the cgroups that each pod has in its own
        self._seen: dict[str, int] = {}  # how many each has had: a pod may start containers again for months
        self._uid_of: dict[str, str] = {}  # the other way round
        self._scan_seconds = scan_seconds
        self._check_seconds = check_seconds
        self._open_inotify = open_inotify
        self._inotify: Inotify | None = None
        self._directories: dict[int, str] = {}
        self._pod_directories: set[str] = set()  # those of them that are pods'
        self._unwatched: set[str] = set()  # pods' directories that the kernel gave no watch for
        self._wake = asyncio.Event()
        self._complaint: str | None = None

    async def run(self) -> None:
        """Watch until cancelled."""
        loop = asyncio.get_running_loop()
        reading: int | None = None
        try:
            while True:
                self._wake.clear()
                self.refresh()
                descriptor = self._inotify.fileno() if self._inotify else None
                if descriptor != reading:
                    if reading is not None:
                        loop.remove_reader(reading)
                    if descriptor is not None:
                        loop.add_reader(descriptor, self.drain)
                    reading = descriptor
                complete = self.events == "Inotify" and self.kubepods is not None
                if complete:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._wake.wait(), self._check_seconds)
                else:
                    await asyncio.sleep(self._scan_seconds)
        finally:
            if reading is not None:
                loop.remove_reader(reading)
            self.close()

    def refresh(self) -> None:
        """Watch every directory that can hold pods, and take what is there now."""
        complaint, self._complaint = self._complaint, None
        if self._inotify is None:
            try:
                self._inotify = self._open_inotify()
            except OSError as error:
                self._complaint = f"no inotify: {error}"
        watched = self._watch(self._scope)
        found = kubepods_below(self._root, self._scope)
        self.kubepods = next(iter(found), None)
        present: dict[str, str] = {}
        for path in reversed(found):  # of a pod that is in several, what the first has counts
            watched &= self._scan(path, present)
        for uid in [uid for uid, path in self.pods.items() if present.get(uid) != path]:
            self._remove(uid)
        for uid, path in present.items():
            self._add(uid, path)
            # Other programs of the user may have given watches back; before the look, so that nothing falls between
            if path in self._unwatched and self._watch(path, "cgroups of pods"):
                self._unwatched.discard(path)
            self._count_containers(uid)
        self.events = "Inotify" if watched and not self._unwatched else "Scan"
        if self._complaint is not None and self._complaint != complaint:
            log.warning("%s; pod cgroups are read every %g s instead", self._complaint, self._scan_seconds)

    def drain(self) -> None:
        """Take the events that the kernel has queued."""
        if self._inotify is None:
            return
        stale = False
        for event in self._inotify.read():
            if event.mask & IN_Q_OVERFLOW:
                log.warning("the kernel dropped events about pod cgroups; reading the tree")
                stale = True
                continue
            directory = self._directories.get(event.watch)
            if directory is None:
                continue
            if event.mask & IN_IGNORED:  # the directory itself is gone: a QoS class, kubepods, the whole node
                del self._directories[event.watch]
                stale |= directory not in self._pod_directories
                self._pod_directories.discard(directory)
            elif event.mask & IN_ISDIR:
                stale |= self._take(directory, event.name, event.mask)
        if stale:
            self.refresh()

    def close(self) -> None:
        """Stop watching."""
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None
        self._directories.clear()
        self._pod_directories.clear()
        self._unwatched.clear()

    def _take(self, directory: str, name: str, mask: int) -> bool:
        """One event within a watched directory; True if the tree has to be read."""
        if directory in self._pod_directories:
            if directory in self._uid_of:
                self._count_containers(self._uid_of[directory])
            return False
        uid = pod_uid(name) if directory != self._scope else None
        if uid is None:
            first_parts = {path.split("/")[0] for path in KUBEPODS_PATHS}
            return is_qos_directory(name) if directory != self._scope else name in first_parts
        if mask & (IN_CREATE | IN_MOVED_TO):
            self._add(uid, f"{directory}/{name}")
        elif mask & (IN_DELETE | IN_MOVED_FROM) and self.pods.get(uid) == f"{directory}/{name}":
            self._remove(uid)
        return False

    def _watch(self, directory: str, name: str | None = None, *, complain: bool = True) -> bool:
        """Watch a directory; False if no events come from it. One that is gone needs none.

        Args:
            directory: its path, relative to the hierarchy's root.
            name: what the log calls it.
            complain: whether to log that there is no watch.
        """
        if self._inotify is None:
            return False
        try:
            self._directories[self._inotify.watch(self._root / directory)] = directory
        except OSError as error:
            if error.errno in GONE:
                return True
            if complain and (name is None or self._complaint is None):
                self._complaint = f"no watch on {name or directory}: {error}"
            return False
        return True

    def _scan(self, directory: str, present: dict[str, str]) -> bool:
        """Watch, then read, a directory of pods and the QoS directories in it; False if events are missing."""
        watched = self._watch(directory)
        try:
            names = subdirectories(self._root / directory)
        except OSError:
            return watched  # gone since it was found: its end is an event, or the next scan's
        for name in names:
            uid = pod_uid(name)
            if uid is not None:
                present[uid] = f"{directory}/{name}"
            elif is_qos_directory(name):
                watched &= self._scan(f"{directory}/{name}", present)
        return watched

    def _add(self, uid: str, path: str) -> None:
        if uid not in self.pods:
            self.pods[uid] = path
            self._uid_of[path] = uid
            self._on_change(uid, True)
            self._pod_directories.add(path)
            if not self._watch(path, complain=False):
                self._unwatched.add(path)
                self._wake.set()  # containers come and go unseen: from now on the tree is read often
            self._count_containers(uid)

    def _remove(self, uid: str) -> None:
        path = self.pods.pop(uid, None)
        if path is not None:
            self._uid_of.pop(path, None)
            if path in self._unwatched:  # no event will tell that it is gone
                self._unwatched.discard(path)
                self._pod_directories.discard(path)
            self.working.discard(uid)
            self._names.pop(uid, None)
            self._seen.pop(uid, None)
            self._on_change(uid, False)

    def _count_containers(self, uid: str) -> None:
        """Whether containers of the pod have come or gone."""
        try:
            # conmon is CRI-O's, not the pod's
            names = {name for name in subdirectories(self._root / self.pods[uid]) if "conmon" not in name}
        except OSError:
            return  # gone already
        new = names - self._names.get(uid, set())
        if self._exits is not None:
            for name in new:
                self._exits.add(uid, f"{self.pods[uid]}/{name}")
        self._names[uid] = names
        seen = self._seen[uid] = self._seen.get(uid, 0) + len(new)
        if len(names) >= _SANDBOX_AND_CONTAINER:
            if uid not in self.working:
                self.working.add(uid)
                self._on_working(uid)
        elif seen > len(names) and (uid in self.working or not names):
            self.working.discard(uid)
            ids = frozenset(identity for name in names if (identity := container_id(name)))
            # One cgroup is the sandbox's, unless nothing is left of a runtime that gives sandboxes none
            self._on_containers_gone(uid, Containers(max(seen - 1, 1), ids))
