"""What the guest's kernel shows of pods: cgroup v2, made by systemd for kubelet and containerd."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from e2e.testbed.guest.machine import Guest
from e2e.testbed.waiting import eventually

ROOT = "/sys/fs/cgroup"
_FILES = ("cpuset.cpus", "cpuset.cpus.effective", "cpuset.mems", "cpuset.mems.effective", "cpu.max", "cgroup.procs")
# Few processes: each costs the guest some 30 ms
_READ = f"""
cd {ROOT}/kubepods.slice || exit 0
find . -path "*pod$1*" \\( {" -o ".join(f"-name {name}" for name in _FILES)} \\) -exec grep -sH '' {{}} +
pids=$(find . -path "*pod$1*" -name cgroup.procs -exec cat {{}} + 2>/dev/null)
[ -n "$pids" ] || exit 0
grep -saH Cpus_allowed_list: $(printf '/proc/%s/status ' $pids)
grep -saH '' $(printf '/proc/%s/cmdline ' $pids)
exit 0
"""


@dataclass
class PodSets:
    """One pod as the kernel shows it at a moment.

    Attributes:
        pod: contents of its own cgroup's files, by name.
        containers: the same of each cgroup below it, by path.
        programs: CPUs that each process may run on, and its command line.
    """

    pod: dict[str, str] = field(default_factory=dict)
    containers: dict[str, dict[str, str]] = field(default_factory=dict)
    programs: list[tuple[str, str]] = field(default_factory=list)

    def effective(self, what: str = "cpus") -> set[str]:
        """The different sets that its containers' tasks get, of CPUs or memory nodes (``mems``)."""
        return {files.get(f"cpuset.{what}.effective", "") for files in self.containers.values()}

    def program(self) -> set[str]:
        """The CPUs that its own command may run on: of every ``sleep 1000`` of it."""
        return {cpus for cpus, command in self.programs if command.startswith("sleep 1000")}


def parse_sets(output: str) -> PodSets:
    """A pod from lines of ``path:text``, as grep prints them."""
    found = PodSets()
    allowed: dict[str, str] = {}
    commands: dict[str, str] = {}
    for line in output.splitlines():
        path, _, text = line.partition(":")
        directory, _, file = path.rpartition("/")
        if file == "status":
            allowed[directory] = text.split()[-1]
        elif file == "cmdline":
            commands[directory] = commands.get(directory, "") + text.replace("\0", " ")
        elif directory.endswith(".slice"):
            found.pod[file] = text
        elif file in _FILES:
            found.containers.setdefault(directory, {})[file] = text
    found.programs = [(cpus, commands.get(process, "")) for process, cpus in allowed.items()]
    return found


class PodCgroups:
    """The pods of a guest."""

    def __init__(self, machine: Guest) -> None:
        self._machine = machine

    def path(self, uid: str) -> str:
        """A pod's cgroup, absolute; empty if it has none."""
        name = uid.replace("-", "_")
        return self._machine.shell(f"find {ROOT}/kubepods.slice -type d -name '*pod{name}.slice'").strip()

    def containers(self, uid: str) -> list[str]:
        """The cgroups directly below a pod's, absolute."""
        return self._machine.shell(f"find {self.path(uid)} -mindepth 1 -maxdepth 1 -type d").split()

    def end_program(self, uid: str) -> None:
        """SIGKILL for every ``sleep 1000`` of a pod."""
        path = self.path(uid)
        script = (
            "for p in $(cat $1/*/cgroup.procs); do grep -qa '^sleep.1000' /proc/$p/cmdline && kill -9 $p; done; exit 0"
        )
        self._machine.run("sh", "-c", script, "sh", path)

    def read(self, uid: str) -> PodSets:
        """A pod as it is now; empty if its cgroups are gone."""
        return parse_sets(self._machine.run("sh", "-c", _READ, "sh", uid.replace("-", "_")).output)

    def until(self, uid: str, cpus: str) -> float:
        """Wait until all containers and the program of a pod have these CPUs; how long that took, seconds."""
        began = time.monotonic()

        def look() -> bool:
            found = self.read(uid)
            return found.effective() == {cpus} == found.program()

        eventually(lambda: f"pod {uid} has CPUs {cpus}: {self.read(uid)}", look)
        return time.monotonic() - began

    def until_it_runs(self, uid: str) -> None:
        """Wait for the pod's own command."""
        eventually(f"pod {uid} runs", lambda: self.read(uid).program())
