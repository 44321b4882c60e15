"""`python -m e2e.bench.corun`: what it costs programs to share, and what pinning them saves. Needs root.

Programs run in real cpusets, alone and beside others, in turn, several times; slowdowns are medians over what each
takes alone on one CPU. The noisy ones are endless loops. With ``--pairs``, three programs run in pairs: one computes,
one streams memory (as STREAM's triad), and one reads at random from an array that only the last-level cache holds.
"""

from __future__ import annotations

import argparse
import itertools
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
from e2e.testbed.clusters.process import ends_with_us
from e2e.testbed.system import REPOSITORY

RESULTS = REPOSITORY / "build" / "corun.json"
_COMPUTE = "n = 0\nfor i in range(10_000_000): n += i * i"
_STREAM = """
import numpy
a, b, c = (numpy.ones(8 << 20) for _ in range(3))  # 64 MiB each
for _ in range(40):
    numpy.multiply(c, 3.0, out=a)
    numpy.add(a, b, out=a)
"""
_CACHE = """
import numpy
values = numpy.arange(1 << 20)  # 8 MiB
order = numpy.random.default_rng(1).permutation(1 << 20)
out = numpy.empty_like(values)
for _ in range(150):
    numpy.take(values, order, out=out)
"""
PROGRAMS = {"computes": _COMPUTE, "streams": _STREAM, "reads at random": _CACHE}
NOISE = (sys.executable, "-c", "while True: pass")


@dataclass(frozen=True)
class Case:
    """Who runs where.

    Attributes:
        programs: CPUs of each program that is timed; all start at once.
        noisy: CPUs of each noisy one.
        names: of the programs (`PROGRAMS`); one that computes where there are fewer names than programs.
    """

    programs: Sequence[frozenset[int]]
    noisy: Sequence[frozenset[int]] = ()
    names: Sequence[str] = ()


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


def pairs(first: int, second: int) -> dict[str, Case]:
    """Each program alone on one CPU, and each pair with a CPU each, on one CPU, and unpinned."""
    one, other, both = frozenset({first}), frozenset({second}), frozenset({first, second})
    found = {name: Case([one], names=[name]) for name in PROGRAMS}
    for names in itertools.combinations_with_replacement(PROGRAMS, 2):
        pair = " + ".join(names)
        found[f"{pair}: a CPU each"] = Case([one, other], names=names)
        found[f"{pair}: one CPU"] = Case([one, one], names=names)
        found[f"{pair}: unpinned"] = Case([both, both], names=names)
    return found


def _timed(number: int, name: str, cpus: frozenset[int], together: Barrier, times: Queue[tuple[int, float]]) -> None:
    with Cpuset() as cpuset:
        together.wait()
        times.put((number, cpuset.seconds((sys.executable, "-c", PROGRAMS[name]), cpus, {0})))


def run(case: Case) -> list[float]:
    """Seconds that each program took."""
    noisy = [
        subprocess.Popen(ends_with_us(*NOISE), preexec_fn=lambda cpus=cpus: os.sched_setaffinity(0, cpus))
        for cpus in case.noisy
    ]
    try:
        times: Queue[tuple[int, float]] = multiprocessing.Queue()
        together = multiprocessing.Barrier(len(case.programs))
        names = [*case.names, *["computes"] * (len(case.programs) - len(case.names))]
        timed = [
            multiprocessing.Process(target=_timed, args=(number, name, cpus, together, times))
            for number, (name, cpus) in enumerate(zip(names, case.programs, strict=True))
        ]
        for process in timed:
            process.start()
        took = dict(times.get(timeout=120) for _ in timed)
        for process in timed:
            process.join()
        return [took[number] for number in range(len(timed))]
    finally:
        for process in noisy:
            process.kill()
            process.wait()


def _pairs(available: Sequence[int], repeat: int) -> int:
    """Measure the pairs, and print their mean slowdowns against each program alone on one CPU."""
    chosen = pairs(*available[:2])
    took: dict[str, list[list[float]]] = {name: [] for name in chosen}
    for _ in range(repeat):
        for name, case in chosen.items():
            took[name].append(run(case))
    alone = {name: statistics.median(each[0] for each in took[name]) for name in PROGRAMS}
    print(", ".join(f"{name} alone {seconds:.2f} s" for name, seconds in alone.items()) + f"; {repeat} rounds")
    for name, case in chosen.items():
        if len(case.programs) == 2:
            slowdowns = [statistics.mean(t / alone[n] for t, n in zip(each, case.names)) for each in took[name]]
            print(f"{name:<50} {statistics.median(slowdowns):.2f}  ({min(slowdowns):.2f} to {max(slowdowns):.2f})")
    return 0


def main() -> int:
    """Measure, print, and write build/corun.json."""
    parser = argparse.ArgumentParser(prog="python -m e2e.bench.corun", description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--pairs", action="store_true", help="run three programs in pairs instead")
    arguments = parser.parse_args()
    with Cpuset() as cpuset:
        available = sorted(cpuset.available())
    if len(available) < 2:
        print("this takes two CPUs", file=sys.stderr)
        return 2
    if arguments.pairs:
        return _pairs(available, arguments.repeat)
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
