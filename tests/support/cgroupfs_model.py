"""A directory that behaves as the kernel's cpuset hierarchy does: what the kernel refuses, writing to it refuses, too.

The rules are those of the kernel's ``cpuset.c`` and ``cpuset-v1.c``: v1 refuses a set that is not within the parent's
(EACCES), that does not contain a child's (EBUSY), that is empty (ENOSPC), or that names CPUs which do not exist
(EINVAL); v2 takes any set of CPUs that exist, and grants what the parent has of it, or all that the parent has if that
is nothing. But v2, too, refuses to empty a set below which there are processes (ENOSPC). Runtimes fill an empty v1
cpuset from the parent's.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from concerto.api.cpulist import format_cpu_list, parse_cpu_list

Numbers = frozenset[int]
_FILES = ("cpuset.cpus", "cpuset.mems")


class CgroupfsModel:
    """One cpuset hierarchy with the root's CPUs and memory nodes.

    Attributes:
        root: its directory.
        version: 1 or 2.
        writes: (path of the cgroup, file, text) of every write that was taken, in order.
        after_write: called after each of them.
        populated: paths of cgroups that have processes.
    """

    def __init__(self, root: Path, version: int, cpus: Numbers, mems: Numbers = frozenset({0})) -> None:
        self.root = root
        self.version = version
        self.writes: list[tuple[str, str, str]] = []
        self.after_write: Callable[[], None] = lambda: None
        self.populated: set[str] = set()
        self._all = dict(zip(_FILES, (cpus, mems)))
        root.mkdir(parents=True, exist_ok=True)
        for file in _FILES:
            self._put(root, file, self._all[file])
        if version == 2:
            (root / "cgroup.controllers").write_text("cpuset cpu memory\n")
            self._refresh(root)

    def make(self, path: str, *, filled: bool = True) -> None:
        """A cgroup is made, by kubelet or a runtime (which fills it on v1), or by a container of its own."""
        directory = self.root / path
        directory.mkdir()
        for file in (*_FILES, "cgroup.procs"):
            (directory / file).write_text("\n")
        if self.version == 2:
            self._refresh(directory)
        elif filled:
            for file in _FILES:
                self._put(directory, file, self.read(directory.parent, file))

    def remove(self, path: str) -> None:
        """A cgroup goes, with all below it."""
        shutil.rmtree(self.root / path)
        self.populated = {each for each in self.populated if not self._is_below(each, path)}

    def read(self, directory: Path, file: str) -> Numbers:
        """What a file says."""
        return parse_cpu_list((directory / file).read_text())

    def effective(self, path: str, file: str = "cpuset.cpus") -> Numbers:
        """What tasks of a cgroup get."""
        return self.read(self.root / path, file if self.version == 1 else f"{file}.effective")

    def write(self, path: Path, text: str) -> None:
        """What the kernel does with a write."""
        directory, file = path.parent, path.name
        if not path.exists():
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        wanted = parse_cpu_list(text)
        number = self._refusal(directory, file, wanted)
        if number:
            raise OSError(number, os.strerror(number))
        self._put(directory, file, wanted)
        if self.version == 2:
            self._refresh(directory)
        self.writes.append((directory.relative_to(self.root).as_posix(), file, text.strip()))
        self.after_write()

    def _refusal(self, directory: Path, file: str, wanted: Numbers) -> int:
        if not wanted <= self._all[file]:
            return errno.EINVAL
        own = directory.relative_to(self.root).as_posix()
        if self.version == 2:
            emptied = not wanted and self.read(directory, file)
            return errno.ENOSPC if emptied and any(self._is_below(each, own) for each in self.populated) else 0
        if not wanted:
            return errno.ENOSPC
        if not wanted <= self.read(directory.parent, file):
            return errno.EACCES
        if any(not self.read(child, file) <= wanted for child in directory.iterdir() if child.is_dir()):
            return errno.EBUSY
        return 0

    @staticmethod
    def _is_below(path: str, above: str) -> bool:
        return f"{path}/".startswith(f"{above}/")

    def _put(self, directory: Path, file: str, numbers: Numbers) -> None:
        (directory / file).write_text(format_cpu_list(numbers) + "\n")

    def _refresh(self, directory: Path) -> None:
        """Effective sets of a v2 cgroup and all below it."""
        for file in _FILES:
            above = self._all[file] if directory == self.root else self.read(directory.parent, f"{file}.effective")
            self._put(directory, f"{file}.effective", self.read(directory, file) & above or above)
        for child in directory.iterdir():
            if child.is_dir():
                self._refresh(child)


DRIVERS = {
    # kubepods, then the pod's, the container's as containerd, CRI-O and docker name them
    "cgroupfs": ("kubepods", "kubepods/{qos}", "pod{uid}", "{id}"),
    "systemd": (
        "kubepods.slice", "kubepods.slice/kubepods-{qos}.slice", "kubepods-{qos}-pod{uid_}.slice",
        "cri-containerd-{id}.scope",
    ),
    "crio": (
        "kubepods.slice", "kubepods.slice/kubepods-{qos}.slice", "kubepods-{qos}-pod{uid_}.slice", "crio-{id}.scope",
    ),
    "docker": (
        "kubepods.slice", "kubepods.slice/kubepods-{qos}.slice", "kubepods-{qos}-pod{uid_}.slice", "docker-{id}.scope",
    ),
}  # fmt: skip


class NodeModel:
    """What kubelet and a runtime do in a hierarchy: pods of a QoS class with their containers."""

    def __init__(self, cgroups: CgroupfsModel, driver: str) -> None:
        self.cgroups = cgroups
        self._qos_path, self._pod, self._container = DRIVERS[driver][1:]
        cgroups.make(DRIVERS[driver][0])
        self.qos = ("burstable", "besteffort")
        for qos in self.qos:
            cgroups.make(self._qos_path.format(qos=qos))
        self.pods: dict[str, str] = {}

    def start(self, uid: str, qos: str, containers: int = 2) -> None:
        """A pod with its sandbox and containers."""
        parent = self._qos_path.format(qos=qos)
        path = f"{parent}/{self._pod.format(qos=qos, uid=uid, uid_=uid.replace('-', '_'))}"
        self.cgroups.make(path)
        self.pods[uid] = path
        for number in range(containers):
            self.start_container(uid, f"{number:x}" * 8)

    def start_container(self, uid: str, name: str) -> str:
        """One more container; its path."""
        path = f"{self.pods[uid]}/{self._container.format(id=name)}"
        self.cgroups.make(path)
        self.cgroups.populated.add(path)
        return path

    def stop(self, uid: str) -> None:
        """A pod ends."""
        self.cgroups.remove(self.pods.pop(uid))

    def below(self, uid: str) -> list[str]:
        """The pod's cgroups."""
        root = self.cgroups.root / self.pods[uid]
        paths = [root, *(p for p in root.rglob("*") if p.is_dir())]
        return [path.relative_to(self.cgroups.root).as_posix() for path in paths]
