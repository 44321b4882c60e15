"""Builds /proc and /sys/fs/cgroup trees with the layouts and contents recorded from real nodes."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

Layout = Literal["v1", "v1-joined", "v2", "hybrid"]
Driver = Literal["cgroupfs", "systemd", "kind"]

STAT = "cpu  {times} 0 0\n{cpus}intr 12345 0 0\nctxt 99\nbtime 1700000000\n"
MEMINFO = (
    "MemTotal:       24684092 kB\nMemFree:        20752632 kB\nMemAvailable:   24187124 kB\n"
    "Buffers:          296696 kB\nCached:          3067380 kB\nSwapCached:            0 kB\n"
)
PSI = "some avg10=5.32 avg60=6.45 avg300=19.83 total={some}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total={full}\n"
V1_MEMORY_STAT = "inactive_file 11\nhierarchical_memory_limit 9223372036854771712\ntotal_inactive_file {inactive}\n"
V2_MEMORY_STAT = "anon 1\nfile 2\ninactive_file {inactive}\nactive_file 0\n"
V2_CPU_STAT = "usage_usec {usage}\nuser_usec 1\nsystem_usec 2\nnice_usec 0\n"
UIDS = ("6a0b1f52-7c0e-4d6b-9d6e-2d1c2c8b9f10", "f00dcafe-0000-4000-8000-000000000001")
STATIC_UID = "c47b4f1d8ad6ce2b5e0e2d5fbe5de7c1"


def write(path: Path, text: str) -> None:
    """Write a file as the kernel shows it: the inode stays the same when the content changes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("r+" if path.exists() else "w") as file:
        file.truncate()
        file.write(text)


class Machine:
    """A fake /proc and /sys below one directory."""

    def __init__(self, root: Path, layout: Layout = "v1", cpus: str = "0-3") -> None:
        self.proc = root / "proc"
        self.sys = root / "sys"
        self.cgroups = self.sys / "fs" / "cgroup"
        self.layout = layout
        write(self.sys / "devices/system/cpu/online", cpus + "\n")
        self.stat()
        self.psi()
        write(self.proc / "meminfo", MEMINFO)
        if layout == "v2":
            write(self.cgroups / "cgroup.controllers", "cpuset cpu io memory pids\n")
        elif layout != "v1-joined":
            for name in ("cpu", "cpuacct", "cpuset", "memory"):
                (self.cgroups / name).mkdir(parents=True)
        else:
            for name in ("cpu,cpuacct", "cpuset", "memory"):
                (self.cgroups / name).mkdir(parents=True)
        if layout == "hybrid":
            write(self.cgroups / "unified" / "cgroup.controllers", "\n")

    def stat(
        self,
        times: str = "100 0 100 800 0 0 0 0",
        cpus: Mapping[int, str] | None = None,
        running: int | None = None,
    ) -> None:
        """user nice system idle iowait irq softirq steal, in ticks: of all and of single CPUs, and running tasks."""
        lines = "".join(f"cpu{cpu} {each} 0 0\n" for cpu, each in (cpus or {0: "1 2 3 4 5 6 7 8"}).items())
        tail = "" if running is None else f"processes 7\nprocs_running {running}\nprocs_blocked 0\n"
        write(self.proc / "stat", STAT.format(times=times, cpus=lines) + tail)

    def psi(self, some: int = 1000, kind: str = "cpu") -> None:
        """Microseconds for which some task waited."""
        write(self.proc / "pressure" / kind, PSI.format(some=some, full=7))

    def hierarchy(self, controller: str) -> Path:
        """Where a controller's tree is."""
        if self.layout == "v2":
            return self.cgroups
        joined = {"cpuacct": "cpu,cpuacct"} if self.layout == "v1-joined" else {}
        return self.cgroups / joined.get(controller, controller)

    def cpu(self, path: str, seconds: float) -> None:
        """CPU time that a cgroup has used."""
        if self.layout == "v2":
            write(self.cgroups / path / "cpu.stat", V2_CPU_STAT.format(usage=round(seconds * 1e6)))
        else:
            write(self.hierarchy("cpuacct") / path / "cpuacct.usage", f"{round(seconds * 1e9)}\n")

    def memory(self, path: str, usage: int, inactive: int = 0) -> None:
        """Memory that a cgroup holds, and the part of it in unused file pages."""
        directory = self.hierarchy("memory") / path
        v2 = self.layout == "v2"
        write(directory / ("memory.current" if v2 else "memory.usage_in_bytes"), f"{usage}\n")
        write(directory / "memory.stat", (V2_MEMORY_STAT if v2 else V1_MEMORY_STAT).format(inactive=inactive))

    def cpuset(self, path: str, cpus: str) -> None:
        """CPUs that a cgroup may use."""
        name = "cpuset.cpus.effective" if self.layout == "v2" else "cpuset.effective_cpus"
        write(self.hierarchy("cpuset") / path / name, cpus + "\n")

    def cgroup_psi(self, path: str, some: int, kind: str = "cpu", full: int = 7) -> None:
        """Microseconds for which some task of a cgroup waited, and all of them."""
        root = self.cgroups if self.layout == "v2" else self.cgroups / "unified"
        write(root / path / f"{kind}.pressure", PSI.format(some=some, full=full))

    def remove(self, controller: str, path: str) -> None:
        """A cgroup is removed."""
        shutil.rmtree(self.hierarchy(controller) / path)


def pod_paths(driver: Driver, pods: Mapping[str, str], below: str = "") -> dict[str, str]:
    """Paths of pod cgroups as kubelet names them.

    Args:
        driver: kubelet's cgroup driver; ``kind``: systemd with --cgroup-root=/kubelet.
        pods: UID -> QoS class (guaranteed, burstable, besteffort).
        below: the node's cgroup.
    """
    paths = {}
    for uid, qos in pods.items():
        part = "" if qos == "guaranteed" else qos
        if driver == "cgroupfs":
            path = "/".join(p for p in ("kubepods", part, f"pod{uid}") if p)
        else:
            prefix = "kubelet-kubepods" if driver == "kind" else "kubepods"
            slices = [f"{prefix}.slice", f"{prefix}-{part}.slice" if part else ""]
            name = "-".join(p for p in (prefix, part, f"pod{uid.replace('-', '_')}") if p) + ".slice"
            path = "/".join(p for p in (*slices, name) if p)
            path = f"kubelet.slice/{path}" if driver == "kind" else path
        paths[uid] = f"{below}/{path}".lstrip("/")
    return paths
