"""When the processes of containers end, from the kernel: the container runtime removes their cgroups later.

On a node whose CPUs are overloaded the runtime waits for a CPU, too, so that a cgroup may stay for seconds without a
process in it. The pod does nothing in that time, and is not stalled either.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from concerto_agent.files import GONE
from concerto_agent.inotify import IN_IGNORED, Inotify

log = logging.getLogger(__name__)

_FILE = "cgroup.events"
_MAX_TRIES = 60
"""About a minute."""


class ContainerExits:
    """Follows ``cgroup.events`` of containers, which the v2 (or ``unified``) hierarchy has.

    A sandbox is followed like a container: its process ends last, and that its pod's others had ended is known by then.
    """

    def __init__(
        self, root: Path | None, on_exit: Callable[[str], None], *, open_inotify: Callable[[], Inotify] = Inotify
    ) -> None:
        """Nothing is followed yet.

        Args:
            root: the root of that hierarchy; None without one, and no exit is ever reported then.
            on_exit: called with the UID of a pod when a container of it has no process any more.
            open_inotify: gives an inotify instance.
        """
        self._root = root
        self._on_exit = on_exit
        # UID and path of cgroups that are not followed yet, and how often that was tried
        self._pending: list[tuple[str, str, int]] = []
        self._followed: dict[int, tuple[str, Path]] = {}
        self._has_complained = False
        self._inotify: Inotify | None = None
        if root is not None:
            try:
                self._inotify = open_inotify()
            except OSError as error:
                log.warning("no inotify: %s; containers are taken to end when their cgroups are removed", error)

    def add(self, uid: str, path: str) -> None:
        """A container has its cgroup, at ``path`` relative to the hierarchy's root."""
        self._follow(uid, path, 1)

    def follow(self) -> None:
        """Begin to follow what was added; beside v1 hierarchies, a cgroup may come a moment later in this one."""
        pending, self._pending = self._pending, []
        for uid, path, tries in pending:
            self._follow(uid, path, tries + 1)

    def _follow(self, uid: str, path: str, tries: int) -> None:
        if self._inotify is None or self._root is None:
            return
        file = self._root / path / _FILE
        try:
            self._followed[self._inotify.watch_file(file)] = (uid, file)
        except FileNotFoundError:
            # A container that has ended before this never comes, and its pod may start others for months
            if tries < _MAX_TRIES and file.parent.parent.is_dir():
                self._pending.append((uid, path, tries))
        except OSError as error:
            # No watches are left: other programs of the user may give some back
            if error.errno not in GONE:
                self._pending.append((uid, path, tries))
            if not self._has_complained:
                log.warning("%s and perhaps others are not followed yet: %s", file, error)
            self._has_complained = True

    def drain(self) -> None:
        """Take the events that the kernel has queued."""
        if self._inotify is None:
            return
        for event in self._inotify.read():
            found = self._followed.get(event.watch)
            if found is None:
                continue
            uid, file = found
            if event.mask & IN_IGNORED:
                del self._followed[event.watch]
            elif not _is_populated(file):
                self._on_exit(uid)

    async def run(self) -> None:
        """Report exits until cancelled."""
        if self._inotify is None:
            return
        loop, descriptor = asyncio.get_running_loop(), self._inotify.fileno()
        loop.add_reader(descriptor, self.drain)
        try:
            await loop.create_future()
        finally:
            loop.remove_reader(descriptor)
            self._inotify.close()
            self._inotify = None


def _is_populated(file: Path) -> bool:
    """Whether there is a process in the cgroup; False if it is gone."""
    try:
        return b"populated 0" not in file.read_bytes()
    except OSError:
        return False
