"""`python -m e2e.bench.corun`: what it costs a CPU-heavy program to share, and what pinning it saves. Needs root.

The program runs in real cpusets, alone and beside others, in turn, several times; slowdowns are medians over what it
takes alone on one CPU. The noisy ones are endless loops.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier

from concerto.api.cpulist import format_cpu_list
from concerto.cli.timed_runs import Cpuset
from e2e.bench.__main__ import machine
from e2e.testbed.system import REPOSITORY

RESULTS = REPOSITORY / "build" / "corun.json"
PROGRAM = (sys.executable, "-c", "n = 0\nfor i in range(10_000_000): n += i * i")
NOISE = (sys.executable, "-c", "while True: pass")


@dataclass(frozen=True)
class Case:
    """Who runs where.

    Attributes:
        programs: CPUs of each program that is timed; all start at once.
        noisy: CPUs of each noisy one.
    """

    programs: Sequence[frozenset[int]]
    noisy: Sequence[frozenset[int]] = ()


def cases(first: int, second: int) -> dict[str, Case]:
    """The cases, on two CPUs."""
    one, other, both = frozenset({first}), frozenset({second}), frozenset({first, second})
    return {
        "alone on one CPU": Case([one]),
        "two, each on a CPU of its own": Case([one, other]),
        "two on one CPU": Case([one, one]),
        "two, wherever the kernel likes": Case([both, both]),
        "one on a CPU of its own, 3 noisy ones on the other": Case([one], [other] * 3),
        "one, and 3 noisy ones, wherever the kernel likes": Case([both], [both] * 3),
    }


def _timed(cpus: frozenset[int], together: Barrier, times: Queue[float]) -> None:
    with Cpuset() as cpuset:
        together.wait()
        times.put(cpuset.seconds(PROGRAM, cpus, {0}))


def run(case: Case) -> list[float]:
    """Seconds that each program took."""
    noisy = [subprocess.Popen(NOISE, preexec_fn=lambda cpus=cpus: os.sched_setaffinity(0, cpus)) for cpus in case.noisy]
    try:
        times: Queue[float] = multiprocessing.Queue()
        together = multiprocessing.Barrier(len(case.programs))
        timed = [multiprocessing.Process(target=_timed, args=(cpus, together, times)) for cpus in case.programs]
        for process in timed:
            process.start()
        took = [times.get(timeout=120) for _ in timed]
        for process in timed:
            process.join()
        return took
    finally:
        for process in noisy:
            process.kill()
            process.wait()


def main() -> int:
    """Measure, print, and write build/corun.json."""
    parser = argparse.ArgumentParser(prog="python -m e2e.bench.corun", description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    with Cpuset() as cpuset:
        available = sorted(cpuset.available())
    if len(available) < 2:
        print("this takes two CPUs", file=sys.stderr)
        return 2
    chosen = cases(*available[:2])
    run(chosen["two, each on a CPU of its own"])  # warm-up
    took: dict[str, list[float]] = {name: [] for name in chosen}
    for _ in range(arguments.repeat):
        for name, case in chosen.items():
            took[name] += run(case)
    alone = statistics.median(took["alone on one CPU"])
    found = {
        name: {
            "slowdown": round(statistics.median(each) / alone, 2),
            "least": round(min(each) / alone, 2),
            "most": round(max(each) / alone, 2),
        }
        for name, each in took.items()
    }
    print(f"CPUs {format_cpu_list(available[:2])}; alone {alone:.2f} s; {arguments.repeat} rounds")
    for name, row in found.items():
        print(f"{name:<52} {row['slowdown']:.2f}  ({row['least']:.2f} to {row['most']:.2f})")
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"machine": machine(), "alone seconds": alone, "slowdowns": found}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
