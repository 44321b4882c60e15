"""`make compare`: Concerto beside the real kube-scheduler, on real kubelets, in alternation.

Each run is one workload with a number of pods, placed by one scheduler: Concerto (pods without requests), or
kube-scheduler at one CPU request. Writes build/compare.json after each run, a table, and a picture for each workload.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from concerto.simulation.scheduling.evaluate import write_section
from concerto.simulation.scheduling.experiments import Task, run_all
from concerto.simulation.scheduling.recorder import Recorder
from e2e.compare import calibrate, report
from e2e.compare.commands import load, origin, save
from e2e.compare.measure import Bench
from e2e.compare.observation import Run
from e2e.compare.plots import draw
from e2e.compare.workloads import CONCERTO, WORKLOADS, Workload
from e2e.testbed import REPOSITORY
from e2e.testbed.clusters import LocalControlPlane, find_binaries
from e2e.testbed.system import can_run_real_nodes, install, real_system

RESULTS = REPOSITORY / "build" / "compare.json"
PLANT = REPOSITORY / "build" / "compare-plant.json"
PICTURES = REPOSITORY / "build"
DOCS = REPOSITORY / "docs" / "evaluation.md"
# What a run takes beside its pods, and a pod on two nodes of one CPU: for the estimate before anything is measured
_RUN_SECONDS, _POD_SECONDS = 25.0, 1.5
_began = time.monotonic()


def say(text: str) -> None:
    """A line with the time since the start."""
    print(f"{time.monotonic() - _began:7.1f} s  {text}", flush=True)


@dataclass(frozen=True)
class Planned:
    """One run to be made."""

    workload: Workload
    pods: int
    scheduler: str
    round: int

    @property
    def expected_seconds(self) -> float:
        """A rough guess of its time."""
        return _RUN_SECONDS + self.pods * _POD_SECONDS

    def __str__(self) -> str:
        name = "Concerto" if self.scheduler == CONCERTO else f"kube-scheduler at {self.scheduler}"
        return f"{self.workload.name}, {self.pods} pods, {name}"

    @property
    def key(self) -> tuple[str, int, str, int]:
        """What identifies its run."""
        return self.workload.name, self.pods, self.scheduler, self.round


def plan(workloads: Sequence[str], sizes: Sequence[int], requests: Sequence[str], rounds: range) -> Iterator[Planned]:
    """All runs in their order: every round goes through all cells, and begins each with another scheduler."""
    for number in rounds:
        for workload in (WORKLOADS[name] for name in workloads):
            for pods in sizes:
                schedulers = [CONCERTO, *(requests or workload.requests)]
                turn = (number - 1) % len(schedulers)
                for scheduler in schedulers[turn:] + schedulers[:turn]:
                    yield Planned(workload, pods, scheduler, number)


def missing(planned: Iterable[Planned], runs: list[Run]) -> list[Planned]:
    """What is planned and was not measured to its end yet, in its order. Runs that are made again leave ``runs``."""
    complete = {_key(run) for run in runs if run.job_seconds is not None}
    left = [p for p in planned if p.key not in complete]
    again = {p.key for p in left}
    runs[:] = [run for run in runs if _key(run) not in again]
    return left


def _key(run: Run) -> tuple[str, int, str, int]:
    return run.workload, run.pods, run.scheduler, run.round


def within(planned: Iterable[Planned], minutes: float) -> list[Planned]:
    """The first of them that take no longer together, by the estimate, and one at least."""
    seconds = itertools.accumulate(p.expected_seconds for p in planned)
    return [p for p, end in zip(planned, seconds) if end <= 60 * minutes] or [*planned][:1]


def measure(planned: Sequence[Planned], runs: list[Run]) -> list[str]:
    """Make the runs, adding each to ``runs`` and to build/compare.json; returns what went wrong."""
    wrong: list[str] = []
    control_plane = LocalControlPlane(find_binaries(say), scheduler=True)
    possible, reason = can_run_real_nodes(control_plane)
    if not possible:
        return [f"real nodes are needed: {reason}"]
    say("control plane with kube-scheduler, two real nodes of one CPU, operator and agents (20 s)")
    with control_plane:
        install(control_plane)
        with real_system(control_plane, say) as system:
            bench = Bench(system, say)
            left = sum(p.expected_seconds for p in planned)
            pace = 1.0
            for index, each in enumerate(planned, start=1):
                say(f"[{index}/{len(planned)}] {each} (round {each.round}; about {left * pace / 60:.0f} min left)")
                began = time.monotonic()
                run = bench.run(each.workload, each.pods, each.scheduler, each.round)
                left -= each.expected_seconds
                pace += 0.3 * ((time.monotonic() - began) / each.expected_seconds - pace)
                say(f"    {run}")
                runs.append(run)
                save(RESULTS, runs)
                if run.job_seconds is None:
                    wrong.append(f"{each}: {run}")
                wrong += [f"{each}: {violation}" for violation in run.wrong]
    return wrong


def conclude(runs: Sequence[Run], docs: Path | None) -> None:
    """Print the table and the goals, draw the pictures, and put the table into the docs if asked to."""
    found = report.cells(runs)
    if not found:
        say("no cell has runs of both Concerto and kube-scheduler yet: no table")
        return
    lines = report.table(found)
    print("\n".join(["", *lines, ""]))
    verdicts = report.goals(found)
    for sentence, holds in verdicts:
        say(f"{'holds ' if holds else 'MISSED'} {sentence}")
    speed = report.at_one_speed(found)
    say(f"{speed[0].upper()}{speed[1:]}.")
    for path in draw(found, PICTURES):
        say(f"picture: {path.relative_to(REPOSITORY)}")
    say(f"all runs: {RESULTS.relative_to(REPOSITORY)}")
    if docs is not None:
        held = [f"- {sentence}{'' if holds else ': **missed**'}" for sentence, holds in verdicts]
        held.append(f"- {speed}")
        write_section(docs, "compare", [origin("make compare", RESULTS) + ".", "", *lines, "", *held])
        say(f"table: {docs}")


def calibrate_simulator(runs: Sequence[Run], docs: Path | None) -> int:
    """Fit the simulator's nodes to the runs, and print its figures beside the real ones; the exit status."""
    real = calibrate.real_figures(runs)
    try:
        plant, error = calibrate.fit(real, simulate, calibrate.plant_of(runs))
    except ValueError as error:
        say(str(error))
        return 1
    figures = calibrate.compare(real, plant, simulate)
    lines = [*calibrate.table(figures), "", *calibrate.summary(plant, figures)]
    print("\n".join(["", *lines, ""]))
    PLANT.write_text(json.dumps(asdict(plant), indent=1))
    say(f"typical error over kube-scheduler's runs {math.expm1(error):.0%}; fitted: {PLANT.relative_to(REPOSITORY)}")
    if docs is not None:
        where = f"`python -m e2e.compare --calibrate`, of {len(runs)} real runs."
        write_section(docs, "calibrated", [where, "", *lines])
    return 0


def simulate(tasks: Sequence[Task]) -> Iterator[Recorder]:
    """Run the simulator on all CPUs."""
    return (outcome.recorder for outcome in run_all(tasks))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m e2e.compare", description=(__doc__ or "").splitlines()[0])
    names = ",".join(WORKLOADS)
    parser.add_argument("--workloads", default=names, help=f"a comma-separated choice of {names}")
    parser.add_argument("--pods", default="20,60,150", help="numbers of pods, comma-separated")
    parser.add_argument(
        "--requests", default="", help="CPU requests for kube-scheduler; by default each workload's own"
    )
    parser.add_argument("--rounds", type=int, default=3, help="runs of each scheduler in each cell (default: 3)")
    parser.add_argument(
        "--quick", action="store_true", help="a sample of 10 minutes: waiting and burst, 20 pods, one round"
    )
    parser.add_argument(
        "--append",
        action="store_true",
        help="keep the runs that build/compare.json has, and make those that it lacks: a comparison may be interrupted",
    )
    parser.add_argument("--minutes", type=float, default=math.inf, help="with --append: about so much of it now")
    parser.add_argument(
        "--report", action="store_true", help="measure nothing: table and pictures of build/compare.json"
    )
    parser.add_argument(
        "--calibrate",
        action="store_true",
        help="measure nothing: fit the simulator's nodes to build/compare.json, and compare its figures with the real",
    )
    parser.add_argument("--docs", nargs="?", type=Path, const=DOCS, help="put the table into docs/evaluation.md")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.workloads, chosen.pods, chosen.rounds = "waiting,burst", "20", 1
        chosen.requests = chosen.requests or "200m,300m"
    unknown = set(chosen.workloads.split(",")) - set(WORKLOADS)
    if unknown:
        parser.error(f"--workloads: {', '.join(sorted(unknown))} is not one of {names}")
    return chosen


def main() -> int:
    """Measure and report; the exit status."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    chosen = arguments()
    runs = load(RESULTS, Run) if chosen.append or chosen.report or chosen.calibrate else []
    wrong: list[str] = []
    if chosen.calibrate:
        return calibrate_simulator(runs, chosen.docs)
    if not chosen.report:
        requests = [request for request in chosen.requests.split(",") if request]
        sizes = [int(size) for size in chosen.pods.split(",")]
        rounds = range(1, 1 + chosen.rounds)
        left = missing(plan(chosen.workloads.split(","), sizes, requests, rounds), runs)
        planned = within(left, chosen.minutes)
        minutes = sum(p.expected_seconds for p in planned) / 60
        say(f"{len(planned)} of {len(left)} runs, about {minutes:.0f} minutes on two idle CPUs (--quick: a sample)")
        try:
            wrong = measure(planned, runs) if planned else []
        except KeyboardInterrupt:
            say("interrupted: nodes and control plane have been stopped; what was measured is reported")
            wrong = ["interrupted"]
    conclude(runs, chosen.docs)
    for sentence in wrong:
        say(f"wrong: {sentence}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
