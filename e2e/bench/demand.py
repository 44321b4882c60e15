"""Compares ways to count the tasks that want a CPU, by accuracy and cost: `python -m e2e.bench.demand` (root, cgroups).

n processes that never stop computing share one CPU, each in a cgroup of its own, as n pods would. Known: n tasks. Read
with the agent's own code: utilisation and cpu.pressure of each cgroup, procs_running of /proc/stat and the fourth field
of /proc/loadavg at 10 Hz (what runs on the machine before and after is taken off), and the machine's cpu.pressure.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from concerto_agent.cgroups import Cgroup, Hierarchies
from concerto_agent.files import KeptFile, parse_field, parse_pressure
from e2e.testbed.clusters.process import ends_with_us

SYS = Path("/sys")
_SPIN = "while True: pass"
_PERIOD_SECONDS = 0.1
_TIMES = 2000


@contextmanager
def pods(count: int, cpu: int, hierarchies: Hierarchies) -> Iterator[list[Cgroup]]:
    """That many processes, each in a cgroup of its own, all on one CPU."""
    roots = {root for root in (hierarchies.cpu, hierarchies.pressure) if root is not None}
    name = f"concerto-demand-{os.getpid()}"
    paths = [f"{name}/pod{i}" for i in range(count)]
    processes = []
    cgroups = [Cgroup(hierarchies, path) for path in paths]
    try:
        for path in paths:
            process = subprocess.Popen(
                ends_with_us(sys.executable, "-c", _SPIN), preexec_fn=lambda: os.sched_setaffinity(0, {cpu})
            )
            processes.append(process)
            for root in roots:
                (root / path).mkdir(parents=True, exist_ok=True)
                (root / path / "cgroup.procs").write_text(str(process.pid))
        time.sleep(1.0)
        yield cgroups
    finally:
        for cgroup in cgroups:
            cgroup.close()
        for process in processes:
            process.kill()
            process.wait()
        for root in roots:
            for path in [*paths, name]:
                if (root / path).is_dir():
                    (root / path).rmdir()


class MachineTasks:
    """The machine's readings, 10 times a second."""

    def __init__(self) -> None:
        self._stat, self._load = KeptFile(Path("/proc/stat")), KeptFile(Path("/proc/loadavg"))

    def running(self) -> float:
        """procs_running of /proc/stat."""
        return parse_field(self._stat.read(), b"procs_running") or 0.0

    def loadavg(self) -> float:
        """Running tasks by the fourth field of /proc/loadavg."""
        return float((self._load.read() or b"0 0 0 0/0").split()[3].partition(b"/")[0])

    def means(self, seconds: float) -> tuple[float, float]:
        """Means of both over so many seconds."""
        rows = []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            rows.append((self.running(), self.loadavg()))
            time.sleep(_PERIOD_SECONDS)
        return statistics.fmean(r for r, _ in rows), statistics.fmean(load for _, load in rows)


def microseconds(read: Callable[[], object]) -> float:
    """CPU time of one read."""
    begun = time.process_time()
    for _ in range(_TIMES):
        read()
    return (time.process_time() - begun) / _TIMES * 1e6


def waited(cgroup: Cgroup) -> float:
    """Seconds for which a task of the cgroup has waited for a CPU."""
    file = cgroup.pressure_file("cpu")
    return parse_pressure(file.read() if file else None) or 0.0


def measure(count: int, cpu: int, seconds: float, hierarchies: Hierarchies) -> str:
    """One line of the table."""
    machine, psi = MachineTasks(), KeptFile(Path("/proc/pressure/cpu"))
    before = machine.means(seconds / 2)
    with pods(count, cpu, hierarchies) as cgroups:
        begun = time.monotonic()
        first = [(c.cpu_seconds() or 0.0, waited(c)) for c in cgroups]
        pressed = parse_pressure(psi.read()) or 0.0
        running, load = machine.means(seconds)
        elapsed = time.monotonic() - begun
        last = [(c.cpu_seconds() or 0.0, waited(c)) for c in cgroups]
        pressure = ((parse_pressure(psi.read()) or 0.0) - pressed) / elapsed
    after = machine.means(seconds / 2)
    by_pods = sum((a[0] - b[0]) + (a[1] - b[1]) for a, b in zip(last, first)) / elapsed
    base = [statistics.fmean(pair) for pair in zip(before, after)]
    capped = 1.0 + min(1.0, pressure)
    return (
        f"| {count} | {by_pods:.2f} | {running - base[0]:.2f} | {load - base[1]:.2f} | {capped:.2f} | {base[0]:.1f} |"
    )


def main(argv: list[str] | None = None) -> int:
    """Print the table and the cost of each reading."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--seconds", type=float, default=10.0, help="for each row (default: %(default)s)")
    parser.add_argument("--cpu", type=int, default=max(os.sched_getaffinity(0)))
    args = parser.parse_args(argv)
    hierarchies = Hierarchies.detect(SYS)
    if hierarchies.cpu is None or hierarchies.pressure is None or not os.access(hierarchies.pressure, os.W_OK):
        print("this needs root, and cgroups that have cpu.pressure", file=sys.stderr)
        return 2
    print("| tasks | pods' CPU time and cpu.pressure | procs_running | loadavg | machine's PSI | others running |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    for count in args.pods:
        print(measure(count, args.cpu, args.seconds, hierarchies), flush=True)
    machine = MachineTasks()
    with pods(1, args.cpu, hierarchies) as (cgroup,):
        print(
            f"CPU time of a read: procs_running {microseconds(machine.running):.1f} us, "
            f"loadavg {microseconds(machine.loadavg):.1f} us, "
            f"one pod's cpu.pressure {microseconds(lambda: waited(cgroup)):.1f} us, "
            f"its CPU time {microseconds(cgroup.cpu_seconds):.1f} us, "
            f"its memory {microseconds(cgroup.memory_bytes):.1f} us"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
