"""Reads and writes the cpusets of a node's pods, and watches them for changes."""

from __future__ import annotations

import itertools
import json
import logging
import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from concerto.api.cpulist import parse_cpu_list
from concerto.linux.cpu_manager_state import assigned_sets
from concerto_agent.cpusets import Cpuset, KubeletRule, PodCgroups, Refusal, Write
from concerto_agent.files import GONE, subdirectories, write_file
from concerto_agent.inotify import IN_CREATE, IN_IGNORED, IN_MOVED_TO, IN_Q_OVERFLOW, Inotify

log = logging.getLogger(__name__)

_WATCHED_FILES = ("cgroup.procs", "cgroup.events", "cpuset.cpus")
"""What changes when a process enters (v1: it is written to; v2: a cgroup comes to life), and when somebody writes."""
MAX_CGROUPS, MAX_LEVELS = 1000, 32
"""Cgroups of one pod that are read. A container with a delegated cgroup can make any number of them."""
_MAX_WATCHES = 300
"""Of one pod, from which the cgroups that a container makes for itself are no longer watched."""


class CpusetFiles:
    """The cpusets of one hierarchy."""

    def __init__(self, root: Path, version: int, write: Callable[[Path, str], None] = write_file) -> None:
        """Nothing is read yet.

        Args:
            root: of the hierarchy that has the cpusets.
            version: of the cgroups, 1 or 2.
            write: writes a text to a file as the kernel would have it, raising its OSError.
        """
        self.root = root
        self.version = version
        self._write = write
        self._with_unread: set[str] = set()  # pods' paths, so that each is logged once

    def read(self, path: str) -> Cpuset | None:
        """A cgroup's cpuset; None if it is gone, or has none."""
        directory = self.root / path
        try:
            cpus, mems = (parse_cpu_list((directory / f"cpuset.{what}").read_text()) for what in ("cpus", "mems"))
            if self.version == 1:
                return Cpuset(cpus, mems, cpus, mems)
            effective = (parse_cpu_list((directory / f"cpuset.{w}.effective").read_text()) for w in ("cpus", "mems"))
            return Cpuset(cpus, mems, *effective)
        except OSError as error:
            if error.errno in GONE:
                return None
            raise

    def pod(self, path: str) -> PodCgroups | None:
        """The cgroups of a pod, level by level; None if it is gone.

        One that can't be read is taken to have what the one above it has: it may run there.
        """
        limit = self._limit(path.rpartition("/")[0])
        own = None if limit is None else self._read_below(path, limit)
        if limit is None or own is None:
            self._with_unread.discard(path)
            return None
        found = {path: own}
        if self._walk(path, found):
            self._with_unread.discard(path)
            return PodCgroups(path, limit, found)
        unread = f"those beyond the first {MAX_CGROUPS} or below level {MAX_LEVELS}"
        if path not in self._with_unread:
            self._with_unread.add(path)
            log.warning("of the cgroups below %s %s are not read", path, unread)
        return PodCgroups(path, limit, found, unread=unread)

    def forget_all_but(self, paths: Collection[str]) -> None:
        """Take note that there are no pods but those whose cgroups these are."""
        self._with_unread.intersection_update(paths)

    def lacks_cpuset(self, path: str) -> bool:
        """Whether the cgroup has processes and no cpuset (v2: the controller is not enabled above it).

        One without processes has to be kept off nothing: systemd makes a pod's before the controller is enabled there.
        """
        directory = self.root / path
        if (directory / "cpuset.cpus").exists() or not directory.is_dir():
            return False
        try:
            return "populated 0" not in (directory / "cgroup.events").read_text()
        except OSError:
            return directory.is_dir()

    def _walk(self, path: str, found: dict[str, Cpuset]) -> bool:
        """Add the cgroups below one that was found; False if there are more than are read.

        Containers come before what they made for themselves, so that none is left out for another's cgroups.
        """
        left, complete = MAX_CGROUPS, True
        waiting = deque([(path, 1)])
        while waiting:
            path, level = waiting.popleft()
            names = self._children(path, left + 1 if level <= MAX_LEVELS else 1)
            if names and (len(names) > left or level > MAX_LEVELS):
                complete = False
                names = names[:left] if level <= MAX_LEVELS else []
            left -= len(names)
            for name in names:
                child = f"{path}/{name}"
                cpuset = self._read_below(child, found[path])
                if cpuset is not None:
                    found[child] = cpuset
                    waiting.append((child, level + 1))
        return complete

    def _children(self, path: str, most: int) -> list[str]:
        """Names of the cgroups directly below one, of which no more than ``most`` are listed."""
        try:
            with os.scandir(self.root / path) as entries:
                names = (entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
                return sorted(itertools.islice(names, most))
        except OSError:
            return []

    def _read_below(self, path: str, above: Cpuset) -> Cpuset | None:
        try:
            return self.read(path)
        except (OSError, ValueError):
            # The agent has no capability, so a container can lock it out of a delegated cgroup. That must not stop
            # pinning on the node: the cgroup is taken to have what the one above it has
            return Cpuset(frozenset(), frozenset(), above.effective_cpus, above.effective_mems)

    def _limit(self, path: str) -> Cpuset | None:
        """What pods below a cgroup can have at most: its cpuset, or that of the first above it that can be read."""
        try:
            return self.read(path)
        except (OSError, ValueError):
            above = self._limit(path.rpartition("/")[0]) if path else None
            if above is None:
                raise
            return above

    def apply(self, writes: Iterable[Write]) -> OSError | None:
        """Write one after the other, up to the first that the kernel refuses; a cgroup that is gone needs none."""
        for write in writes:
            try:
                self._write(self.root / write.path / write.file, write.value + "\n")
            except OSError as error:
                if error.errno not in GONE:
                    error.filename = f"{write.path}/{write.file} = {write.value}"
                    return error
        return None


def find_obstacle(
    files: CpusetFiles, paths: Mapping[str, str] | None, found: Mapping[str, PodCgroups]
) -> Refusal | None:
    """Why no CPU can be kept from anybody: pods whose cgroups are not found, or that have no cpuset.

    Args:
        files: the node's.
        paths: of the pods' cgroups by UID; None where it is unknown which there are.
        found: those of them that have cpusets.
    """
    if paths is None:
        text = (
            "No kubepods cgroup is found, so it is unknown which pods run on the CPUs: start the agent with "
            "--cgroup as kubelet's cgroupRoot says."
        )
        return Refusal("PodCgroupsNotFound", text)
    lacking = next((path for uid, path in paths.items() if uid not in found and files.lacks_cpuset(path)), None)
    if lacking is None:
        return None
    text = (
        f"cgroup {lacking} has no cpuset, so its pod can't be kept off any CPU: the cpuset controller is missing "
        f"in cgroup.subtree_control of cgroup {lacking.rpartition('/')[0]} or of one above it."
    )
    return Refusal("NoCpusetController", text)


class ContainerWatcher:
    """Tells of containers that appear in pods' cgroups, of processes that enter them, and of foreign writes.

    Each thing is watched first and looked at then: a process that enters between the two is seen by the look. If the
    kernel refuses an inotify instance, no changes are reported. The pinner still checks all pods every few seconds.
    """

    def __init__(self, root: Path, on_change: Callable[[str], None], open_inotify: Callable[[], Inotify]) -> None:
        """Nothing is watched yet.

        Args:
            root: of the hierarchy.
            on_change: called with the UID of a pod that has to be looked at now.
            open_inotify: gives an inotify instance.
        """
        self._root = root
        self._on_change = on_change
        self._open_inotify = open_inotify
        self._inotify: Inotify | None = None
        self._has_complained = False
        self._watched: dict[int, tuple[str, str]] = {}  # the pod's UID, and the path of the cgroup
        self._of_pod: dict[str, set[int]] = {}
        self._paths: dict[str, str] = {}  # of the pods' cgroups, by UID
        self._open()

    def _open(self) -> None:
        """Other programs of root may have taken all instances (fs.inotify.max_user_instances), and give some back."""
        if self._inotify is not None:
            return
        try:
            self._inotify = self._open_inotify()
        except OSError as error:
            self._complain("inotify", error)

    def _complain(self, what: str, error: OSError) -> None:
        if not self._has_complained:
            log.warning("no %s: %s; what changes in cpusets is looked for every few seconds", what, error)
        self._has_complained = True

    def fileno(self) -> int | None:
        """Readable when something happened; None while there is no inotify instance."""
        return None if self._inotify is None else self._inotify.fileno()

    def follow(self, uid: str, path: str) -> None:
        """Watch a pod's cgroup, and the containers that are there."""
        self._paths[uid] = path
        self._watch(uid, path)
        self._look_for_containers(uid, path)

    def renew(self) -> Iterator[None]:
        """Watch again what was away, one pod a step.

        Whoever switches the controller cpuset off and on makes the files anew, which the kernel does not report.
        """
        self._open()
        for uid, path in list(self._paths.items()):
            if uid in self._paths:
                self.follow(uid, path)
            yield

    def forget(self, uid: str) -> None:
        """The pod's cgroup is gone, and the kernel's watches with it."""
        self._paths.pop(uid, None)
        for number in self._of_pod.pop(uid, ()):
            self._watched.pop(number, None)

    def drain(self) -> None:
        """Take what has happened."""
        if self._inotify is None:
            return
        changed: dict[str, None] = {}
        for event in self._inotify.read():
            if event.mask & IN_Q_OVERFLOW:
                changed |= dict.fromkeys(self._of_pod)
                continue
            uid, path = self._watched.get(event.watch, ("", ""))
            if not uid:
                continue
            if event.mask & IN_IGNORED:
                del self._watched[event.watch]
                self._of_pod[uid].discard(event.watch)
                continue
            if event.mask & (IN_CREATE | IN_MOVED_TO) and event.name:
                is_container = path == self._paths.get(uid)
                if is_container or len(self._of_pod.get(uid, ())) < _MAX_WATCHES:
                    self._watch(uid, f"{path}/{event.name}")
            changed[uid] = None
        for uid in changed:
            self._on_change(uid)

    def close(self) -> None:
        """Stop watching."""
        if self._inotify is not None:
            self._inotify.close()

    def _look_for_containers(self, uid: str, path: str) -> None:
        try:
            names = subdirectories(self._root / path)
        except OSError:
            return
        for name in names:
            self._watch(uid, f"{path}/{name}")

    def _watch(self, uid: str, path: str) -> None:
        if self._inotify is None:
            return
        try:
            self._note(self._inotify.watch(self._root / path), uid, path)
        except OSError as error:
            if error.errno not in GONE:  # no watches left: the look every few seconds finds what changes
                self._complain("inotify watch", error)
            return
        for name in _WATCHED_FILES:
            try:
                self._note(self._inotify.watch_file(self._root / path / name), uid, path)
            except OSError:
                continue  # v1 has no cgroup.events

    def _note(self, number: int, uid: str, path: str) -> None:
        self._watched[number] = (uid, path)
        self._of_pod.setdefault(uid, set()).add(number)


def read_rule(cpu_state: Path, memory_state: Path) -> KubeletRule:
    """What kubelet's managers decide, from their state files. What can't be read may be anything.

    Args:
        cpu_state: ``cpu_manager_state``.
        memory_state: ``memory_manager_state``.
    """
    cpu, memory = _state(cpu_state), _state(memory_state)
    if memory is None and cpu is not None and not memory_state.exists():
        memory = {}  # a kubelet without a memory manager
    ruled = memory is None or memory.get("policyName", "None") != "None"
    if cpu is None or not isinstance(policy := cpu.get("policyName"), str):
        return KubeletRule(mems=ruled, known=False)
    if policy == "none":
        return KubeletRule(mems=ruled)
    try:
        exclusive = assigned_sets(cpu)
        default = parse_cpu_list(cpu.get("defaultCpuSet") or "")
    except (AttributeError, ValueError):
        return KubeletRule(mems=ruled, known=False)
    return KubeletRule(True, default or None, exclusive, ruled)


def _state(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
