"""Where a node's cgroups are: v1, v2 and hybrid hierarchies, the kubepods tree, and the names of pod cgroups.

Everything is found from the tree itself, because a process that only has /sys can ask nobody for the cgroup version or
the kubelet's cgroup driver.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from concerto_agent.files import (
    KeptFile,
    is_directory,
    parse_cpus,
    parse_field,
    parse_number,
    read_once,
    subdirectories,
)

# Where kubelets put their pods: cgroupfs and systemd drivers, and the two again below kind's --cgroup-root=/kubelet.
KUBEPODS_PATHS = (
    "kubepods",
    "kubepods.slice",
    "kubelet/kubepods",
    "kubelet.slice/kubelet-kubepods.slice",
)
_QOS = re.compile(r"^(?:burstable|besteffort|(?:.+-)?kubepods-(?:burstable|besteffort)\.slice)$")
_POD_CGROUPFS = re.compile(r"^pod([0-9A-Za-z-]+)$")
_CONTAINER = re.compile(r"^(?:(?:cri-containerd|crio|docker)-)?([0-9a-f]{64})(?:\.scope)?$")
_POD_SYSTEMD = re.compile(r"^(?:.+-)?kubepods(?:-burstable|-besteffort)?-pod([0-9A-Za-z_]+)\.slice$")


def pod_uid(directory_name: str) -> str | None:
    """The pod UID that a cgroup directory's name holds, or None if it is no pod's.

    The systemd driver cannot have ``-`` in the last part of a slice's name and writes ``_`` for it. A static pod's UID
    is the hash of its manifest (32 hexadecimal digits), not that of its mirror pod in the API.
    """
    match = _POD_CGROUPFS.match(directory_name)
    if match:
        return match[1]
    match = _POD_SYSTEMD.match(directory_name)
    return match[1].replace("_", "-") if match else None


def container_id(directory_name: str) -> str | None:
    """The container ID that a directory in a pod's cgroup names (a sandbox's looks the same), or None."""
    match = _CONTAINER.match(directory_name)
    return match[1] if match else None


def is_qos_directory(directory_name: str) -> bool:
    """Whether the directory holds the pods of a QoS class (guaranteed pods lie directly in kubepods)."""
    return _QOS.match(directory_name) is not None


@dataclass(frozen=True)
class Hierarchies:
    """Mount points of the cgroup hierarchies; None where a controller is in none.

    Attributes:
        cpu: holds ``cpuacct.usage`` (v1) or ``cpu.stat`` (v2).
        cpuset: holds the cpusets.
        memory: holds memory usage.
        pressure: the v2 or ``unified`` hierarchy, which has PSI per cgroup even where the controllers are v1.
        version: 1 where the controllers are v1 (hybrid included), 2 otherwise.
    """

    cpu: Path | None
    cpuset: Path | None
    memory: Path | None
    pressure: Path | None
    version: int

    @classmethod
    def detect(cls, sys: Path) -> Hierarchies:
        """What is mounted below ``sys``/fs/cgroup."""
        root = sys / "fs" / "cgroup"
        if (root / "cgroup.controllers").exists():
            return cls(root, root, root, root, version=2)
        unified = root / "unified" if (root / "unified" / "cgroup.controllers").exists() else None
        mounts = sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
        by_controller = {controller: path for path in mounts for controller in path.name.split(",")}
        return cls(
            cpu=by_controller.get("cpuacct", unified),
            cpuset=by_controller.get("cpuset"),
            memory=by_controller.get("memory"),
            pressure=unified,
            version=1,
        )


def find_cpusets(sys: Path) -> tuple[Hierarchies, Path]:
    """What is mounted below ``sys``/fs/cgroup, and the root of the hierarchy that has the cpusets.

    Raises:
        OSError: none has.
    """
    hierarchies = Hierarchies.detect(sys)
    if hierarchies.cpuset is None:
        raise OSError(f"no cpuset hierarchy below {sys}/fs/cgroup")
    return hierarchies, hierarchies.cpuset


def kubepods_below(root: Path, scope: str) -> list[str]:
    """The cgroups below the cgroup ``scope`` that kubelet has, or had, its pods in: the one with containers first.

    Kubelet leaves the cgroups of its former driver behind when that is changed, until the node is started anew.

    Args:
        root: a hierarchy's; all paths are relative to it.
        scope: path of the node's cgroup; "" is the root itself.
    """
    paths = [f"{scope}/{candidate}".lstrip("/") for candidate in KUBEPODS_PATHS]
    found = [path for path in paths if is_directory(_below(root, path))]
    return found if len(found) < 2 else sorted(found, key=lambda path: not _has_containers(root, path))


def _has_containers(root: Path, kubepods: str) -> bool:
    names = _directories(root, kubepods)
    parents = [kubepods, *(f"{kubepods}/{name}" for name in names if is_qos_directory(name))]
    pods = (f"{parent}/{name}" for parent in parents for name in _directories(root, parent) if pod_uid(name))
    return any(_directories(root, pod) for pod in pods)


def _directories(root: Path, path: str) -> list[str]:
    """Names of the cgroups directly below one; empty if it is gone."""
    try:
        return subdirectories(_below(root, path))
    except OSError:
        return []


class Cgroup:
    """The readings of one cgroup. It need not exist (yet): what can't be read is None.

    Attributes:
        path: where it is, relative to each hierarchy's root; "" is the root itself.
    """

    def __init__(self, hierarchies: Hierarchies, path: str) -> None:
        self.path = path.strip("/")
        self._hierarchies = hierarchies
        v1_cpu = hierarchies.version == 1 and hierarchies.cpu is not hierarchies.pressure
        self._v1_cpu = v1_cpu
        self._cpu = self._file(hierarchies.cpu, "cpuacct.usage" if v1_cpu else "cpu.stat")
        v1 = hierarchies.version == 1
        self._memory = self._file(hierarchies.memory, "memory.usage_in_bytes" if v1 else "memory.current")
        self._memory_stat = self._file(hierarchies.memory, "memory.stat")
        self._pressure = {
            resource: self._file(hierarchies.pressure, f"{resource}.pressure") for resource in ("cpu", "io")
        }

    def _file(self, root: Path | None, name: str) -> KeptFile | None:
        return None if root is None else KeptFile(_below(root, self.path, name))

    def cpu_files(self) -> list[KeptFile]:
        """What `cpu_seconds` reads."""
        return [self._cpu] if self._cpu else []

    def memory_files(self) -> list[KeptFile]:
        """What `memory_bytes` reads."""
        return [file for file in (self._memory, self._memory_stat) if file]

    def cpu_content(self) -> bytes | None:
        """What the file that `cpu_seconds` reads holds now."""
        return self._cpu.read() if self._cpu else None

    def cpu_seconds(self) -> float | None:
        """CPU time used since the cgroup was made, seconds."""
        return self.cpu_seconds_in(self.cpu_content())

    def cpu_seconds_in(self, data: bytes | None) -> float | None:
        """The same from the file's content."""
        if self._v1_cpu:
            nanoseconds = parse_number(data)
            return None if nanoseconds is None else nanoseconds / 1e9
        microseconds = parse_field(data, b"usage_usec")
        return None if microseconds is None else microseconds / 1e6

    def memory_bytes(self) -> float | None:
        """Memory that can't be given back by dropping unused file pages: usage - inactive_file, bytes."""
        usage = parse_number(self._memory.read() if self._memory else None)
        stat = self._memory_stat.read() if self._memory_stat else None
        inactive = parse_field(stat, b"total_inactive_file")  # v1: with the children's
        if inactive is None:
            inactive = parse_field(stat, b"inactive_file")
        return None if usage is None or inactive is None else max(usage - inactive, 0.0)

    def pressure_file(self, resource: str) -> KeptFile | None:
        """The PSI file of ``cpu`` or ``io``; None where no hierarchy has one."""
        return self._pressure[resource]

    def effective_cpus(self) -> frozenset[int] | None:
        """CPUs its tasks may run on; an ancestor's where the cgroup has no cpuset of its own, None where none has."""
        root = self._hierarchies.cpuset
        if root is None:
            return None
        path = self.path
        names = (
            ("cpuset.effective_cpus", "cpuset.cpus") if self._hierarchies.version == 1 else ("cpuset.cpus.effective",)
        )
        while True:
            for name in names:
                cpus = parse_cpus(read_once(_below(root, path, name)))
                if cpus:
                    return cpus
            if not path:
                return None
            path = path.rpartition("/")[0]

    def siblings(self) -> list[Cgroup]:
        """The cgroups beside it in the cpuset hierarchy; none of the root."""
        root = self._hierarchies.cpuset
        if root is None or not self.path:
            return []
        parent, slash, _ = self.path.rpartition("/")
        paths = [f"{parent}{slash}{name}" for name in _directories(root, parent)]
        return [Cgroup(self._hierarchies, path) for path in paths if path != self.path]

    def find_kubepods(self) -> str | None:
        """Path of the kubepods cgroup below this one, relative to the hierarchies' roots; None if missing."""
        root = self._hierarchies.cpu
        return None if root is None else next(iter(kubepods_below(root, self.path)), None)

    def close(self) -> None:
        """Give back every descriptor."""
        for file in (self._cpu, self._memory, self._memory_stat, *self._pressure.values()):
            if file:
                file.close()


def _below(root: Path, *parts: str) -> str:
    """A path as text: to join a ``Path`` takes as long as to read a file of the kernel's."""
    return "/".join([str(root), *filter(None, parts)])
