"""The cgroups of real nodes, as the machine sees them: one directory per node and hierarchy.

Three layouts exist: v1 controllers each in a hierarchy of their own, the same beside a controller-less v2 hierarchy
(``hybrid``: it carries pressure files and ``cgroup.kill``), and v2 alone.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from e2e.testbed.waiting import PATIENCE_SECONDS

# In a v2-only node no process may live beside kubepods: what is not a pod lives in this leaf.
LEAF = "node"
V2_CONTROLLERS = ("cpuset", "cpu", "io", "memory", "pids")


@dataclass(frozen=True)
class Hierarchy:
    """A mounted cgroup hierarchy.

    Attributes:
        path: where the machine has it.
        kind: the file system's type, ``cgroup`` or ``cgroup2``.
        options: what to mount it with inside a node: its controllers or its name; empty for cgroup2.
    """

    path: Path
    kind: str
    options: tuple[str, ...]


def parse_hierarchies(mounts: str) -> list[Hierarchy]:
    """The hierarchies in the text of /proc/self/mounts; a second mount of the same one is left out."""
    noise = {"rw", "ro", "nosuid", "nodev", "noexec", "relatime", "clone_children", "xattr", "nsdelegate"}
    found: dict[tuple[str, tuple[str, ...]], Hierarchy] = {}
    for line in mounts.splitlines():
        _, path, kind, options, *_ = line.split()
        if kind == "cgroup":
            wanted = tuple(o for o in options.split(",") if o not in noise and not o.startswith("release_agent="))
            found.setdefault((kind, wanted), Hierarchy(Path(path), kind, wanted))
        elif kind == "cgroup2":
            found.setdefault((kind, ()), Hierarchy(Path(path), kind, ()))
    return list(found.values())


class Machine:
    """The machine's hierarchies, and the nodes' directories in them."""

    def __init__(self, hierarchies: Sequence[Hierarchy] | None = None) -> None:
        self.hierarchies = (
            list(hierarchies) if hierarchies is not None else parse_hierarchies(Path("/proc/self/mounts").read_text())
        )
        self.v2_only = bool(self.hierarchies) and all(h.kind == "cgroup2" for h in self.hierarchies)

    def complaint(self) -> str | None:
        """Why nodes cannot have cgroups here, or None."""
        if not self.hierarchies:
            return "no cgroup hierarchy is mounted"
        for hierarchy in self.hierarchies:
            if not os.access(hierarchy.path, os.W_OK) or os.statvfs(hierarchy.path).f_flag & os.ST_RDONLY:
                return f"{hierarchy.path} is not writable"
        if self.v2_only:
            missing = set(V2_CONTROLLERS) - set((self.hierarchies[0].path / "cgroup.controllers").read_text().split())
            return f"the cgroup v2 hierarchy lacks {', '.join(sorted(missing))}" if missing else None
        controllers = {option for h in self.hierarchies for option in h.options}
        missing = {"cpu", "cpuacct", "cpuset", "memory", "devices", "pids"} - controllers
        return f"no cgroup v1 hierarchy for {', '.join(sorted(missing))}" if missing else None

    def paths(self, name: str) -> list[Path]:
        """The directories of ``name``, one in each hierarchy."""
        return [h.path / name for h in self.hierarchies]

    def controller_path(self, name: str, controller: str) -> Path:
        """The directory of ``name`` where ``controller`` (``cpuacct``, ``memory``, ...; ``unified``) is found."""
        for hierarchy in self.hierarchies:
            unified = hierarchy.kind == "cgroup2" and (self.v2_only or controller == "unified")
            if unified or controller in hierarchy.options:
                return hierarchy.path / name
        raise KeyError(f"no cgroup hierarchy for {controller!r} on this machine")

    def create(self, name: str, cpus: str) -> None:
        """Makes the directories of ``name``, bound to the CPUs of the list ``cpus`` (as ``0-1,3``)."""
        if self.v2_only:
            # The controllers must be on in the root before the node's directory has their files.
            root = self.hierarchies[0].path
            (root / "cgroup.subtree_control").write_text(" ".join(f"+{c}" for c in V2_CONTROLLERS))
        for path in self.paths(name):
            path.mkdir(exist_ok=True)
        cpuset = self.controller_path(name, "cpuset")
        # v1 takes no process before both are set.
        (cpuset / "cpuset.mems").write_text((cpuset.parent / self._effective("mems")).read_text())
        (cpuset / "cpuset.cpus").write_text(cpus)

    def _effective(self, what: str) -> str:
        return f"cpuset.{what}.effective" if self.v2_only else f"cpuset.{what}"

    def join_files(self, name: str) -> list[Path]:
        """Files that a process writes its PID to in order to live in the node, beside its pods."""
        leaf = self.paths(name)[0] / LEAF
        return [leaf / "cgroup.procs"] if leaf.is_dir() else [p / "cgroup.procs" for p in self.paths(name)]

    def delegate(self, name: str, pids: Sequence[int]) -> None:
        """On v2, moves ``pids`` to the node's leaf and hands the controllers down, so that kubelet can make kubepods.

        The cgroup namespace must have been made before: its root is where its maker was at that moment.
        """
        if not self.v2_only:
            return
        directory = self.paths(name)[0]
        (directory / LEAF).mkdir(exist_ok=True)
        for pid in pids:
            (directory / LEAF / "cgroup.procs").write_text(str(pid))
        (directory / "cgroup.subtree_control").write_text(" ".join(f"+{c}" for c in V2_CONTROLLERS))

    def named(self, prefix: str) -> list[str]:
        """Names of top-level cgroups that begin with ``prefix``."""
        return sorted({p.name for h in self.hierarchies for p in h.path.glob(f"{prefix}*") if p.is_dir()})

    def processes(self, name: str) -> set[int]:
        """PIDs in ``name`` and below it, in any hierarchy."""
        pids: set[int] = set()
        for path in self.paths(name):
            for directory, _, _ in os.walk(path):
                # A directory may go, or be threaded, while we look.
                with suppress(OSError):
                    pids.update(int(pid) for pid in (Path(directory) / "cgroup.procs").read_text().split())
        return pids - {0}

    def kill(self, name: str, *, timeout: float = PATIENCE_SECONDS) -> None:
        """Kills every process in ``name`` and returns when they are gone.

        Raises:
            TimeoutError: one would not go.
        """
        deadline = time.monotonic() + timeout
        while True:
            for path in self.paths(name):
                # The kernel's own way, where there is a v2 hierarchy: no child can slip through.
                with suppress(OSError):
                    (path / "cgroup.kill").write_text("1")
            pids = self.processes(name)
            if not pids:
                return
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise TimeoutError(f"processes of cgroup {name} will not go: {sorted(pids)}")
            time.sleep(0.02)

    def remove(self, name: str, *, timeout: float = PATIENCE_SECONDS) -> None:
        """Kills what is left in ``name`` and removes its directories.

        Raises:
            TimeoutError: a process or a directory would not go.
        """
        deadline = time.monotonic() + timeout
        while any(path.is_dir() for path in self.paths(name)):
            self.kill(name, timeout=timeout)
            for path in self.paths(name):
                for directory, _, _ in os.walk(path, topdown=False):
                    # Busy for a moment longer than its processes are there.
                    with suppress(OSError):
                        Path(directory).rmdir()
            if time.monotonic() > deadline:
                raise TimeoutError(f"the directories of cgroup {name} will not go")
            time.sleep(0.02)
