"""Ratios of Concerto to the best that requests can do, cell by cell, and whether the goals hold. Pure.

A cell is a workload with a number of pods. Of the sweep of requests, *the fastest* has the shortest Job, and *the best
trade* the shortest pods among those whose Job takes no more than 1.10 times the fastest's.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from e2e.compare.observation import Run
from e2e.compare.workloads import CONCERTO, WORKLOADS

TRADE = 1.10
# medians over all cells, then limits for each
JOB_GOAL, POD_GOAL = 1.0, 0.6
JOB_LIMIT, POD_LIMIT, NODE_LIMIT = 1.15, 1.1, 2.0


@dataclass(frozen=True)
class Figures:
    """One scheduler in one cell, over its rounds.

    Attributes:
        scheduler: ``concerto``, or a request.
        jobs: seconds, by round.
        pods: mean seconds of a pod, by round.
        deviation: of a pod's seconds within a round, its median over the rounds.
        max_on_node: over all rounds.
        core_seconds: CPU time that a pod took, by round. All rounds have the same work, so that it shows how fast the
            machine was.
    """

    scheduler: str
    jobs: Sequence[float]
    pods: Sequence[float]
    deviation: float
    max_on_node: int
    core_seconds: Sequence[float]

    @property
    def job(self) -> float:
        """Median of the Job's seconds."""
        return statistics.median(self.jobs)

    @property
    def pod(self) -> float:
        """Median of the pods' mean seconds."""
        return statistics.median(self.pods)

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Figures:
        """Figures of all runs of one scheduler in one cell."""
        deviations = [statistics.pstdev(run.pod_seconds) for run in runs if run.pod_seconds]
        return cls(
            runs[0].scheduler,
            [run.job for run in runs],
            [run.pod_mean for run in runs],
            statistics.median(deviations) if deviations else math.inf,
            max(run.max_on_node for run in runs),
            [run.core_seconds_per_pod for run in runs],
        )

    @property
    def at_one_speed(self) -> Figures:
        """The same in times of the CPU time that a pod took in that round."""
        jobs, pods = (
            [seconds / max(core_seconds, 1e-3) for seconds, core_seconds in zip(of, self.core_seconds, strict=True)]
            for of in (self.jobs, self.pods)
        )
        return replace(self, jobs=jobs, pods=pods)


@dataclass(frozen=True)
class Cell:
    """Concerto beside the sweep, for one workload and number of pods.

    Attributes:
        workload: its name.
        pods: how many.
        concerto: its figures.
        sweep: kube-scheduler's, by request.
    """

    workload: str
    pods: int
    concerto: Figures
    sweep: Sequence[Figures]

    @property
    def fastest(self) -> Figures:
        """Of the sweep, the one with the shortest Job."""
        return min(self.sweep, key=lambda figures: figures.job)

    @property
    def trade(self) -> Figures:
        """Of the sweep, the best trade."""
        limit = TRADE * self.fastest.job
        return min((f for f in self.sweep if f.job <= limit), key=lambda figures: figures.pod)

    @property
    def job_ratio(self) -> float:
        """Concerto's Job to the fastest's."""
        return self.concerto.job / self.fastest.job

    @property
    def pod_ratio(self) -> float:
        """Concerto's pods to the best trade's."""
        return self.concerto.pod / self.trade.pod

    @property
    def node_ratio(self) -> float:
        """Concerto's containers on one node, at most, to the best trade's."""
        return self.concerto.max_on_node / max(1, self.trade.max_on_node)


def cells(runs: Iterable[Run]) -> list[Cell]:
    """All cells in which both Concerto and at least one request have been run, in the order of `WORKLOADS`."""
    by_cell: dict[tuple[str, int], dict[str, list[Run]]] = {}
    for run in runs:
        by_cell.setdefault((run.workload, run.pods), {}).setdefault(run.scheduler, []).append(run)
    order = list(WORKLOADS)
    found = []
    for (workload, pods), by_scheduler in sorted(
        by_cell.items(), key=lambda item: (order.index(item[0][0]), item[0][1])
    ):
        sweep = [Figures.of(of) for name, of in by_scheduler.items() if name != CONCERTO]
        if CONCERTO in by_scheduler and sweep:
            found.append(Cell(workload, pods, Figures.of(by_scheduler[CONCERTO]), sweep))
    return found


def table(found: Sequence[Cell]) -> list[str]:
    """The cells as a Markdown table: medians over rounds, the least and the greatest of them in brackets."""
    ours, requests = ("job s: Concerto", "pod s: Concerto"), ("fastest request", "best trade")
    heads = [
        "workload",
        "pods",
        "rounds",
        ours[0],
        requests[0],
        "ratio",
        ours[1],
        requests[1],
        "ratio",
        "most on a node",
    ]
    lines = [f"| {' | '.join(heads)} |", f"| --- {'| ---: ' * (len(heads) - 1)}|"]
    for cell in found:
        figures, fastest, trade = cell.concerto, cell.fastest, cell.trade
        lines.append(
            f"| {cell.workload} | {cell.pods} | {len(figures.jobs)} | {_spread(figures.jobs)} "
            f"| {_spread(fastest.jobs)} at {fastest.scheduler} | **{cell.job_ratio:.2f}** "
            f"| {_spread(figures.pods)} ± {figures.deviation:.1f} "
            f"| {_spread(trade.pods)} ± {trade.deviation:.1f} at {trade.scheduler} | **{cell.pod_ratio:.2f}** "
            f"| {figures.max_on_node} / {trade.max_on_node} |"
        )
    return lines


def _spread(values: Sequence[float]) -> str:
    median = statistics.median(values)
    if len(values) == 1:
        return f"{median:.1f}"
    return f"{median:.1f} ({min(values):.1f} to {max(values):.1f})"


def goals(found: Sequence[Cell]) -> list[tuple[str, bool]]:
    """Each goal in words with its figure, and whether it holds."""
    job, pod = [cell.job_ratio for cell in found], [cell.pod_ratio for cell in found]
    node = [cell.node_ratio for cell in found]
    return [
        _goal("job, median over all cells", statistics.median(job), JOB_GOAL),
        _goal("pods, median over all cells", statistics.median(pod), POD_GOAL),
        _goal("job, greatest of all cells", max(job), JOB_LIMIT),
        _goal("pods, greatest of all cells", max(pod), POD_LIMIT),
        _goal("containers on a node, greatest of all cells", max(node), NODE_LIMIT),
    ]


def at_one_speed(found: Sequence[Cell]) -> str:
    """How the medians are if each run's seconds are divided by what a pod's work took in it, in words.

    Other machines on the same hardware make this one slower at times, for minutes. Pods that are many at a time may
    take more CPU time for their work, and that is taken for a slow machine here, too.
    """
    same = [
        Cell(cell.workload, cell.pods, cell.concerto.at_one_speed, [each.at_one_speed for each in cell.sweep])
        for cell in found
    ]
    job, pod = ([getattr(cell, ratio) for cell in same] for ratio in ("job_ratio", "pod_ratio"))
    speeds = [max(f.core_seconds) / max(min(f.core_seconds), 1e-3) for c in found for f in (c.concerto, *c.sweep)]
    return (
        f"the machine's speed differed by up to {max(speeds) - 1:.0%} between runs of the same pods; with each run's "
        f"seconds divided by the CPU time that a pod took in it, the medians are {statistics.median(job):.2f} (job) "
        f"and {statistics.median(pod):.2f} (pods), the greatest {max(job):.2f} and {max(pod):.2f}"
    )


def _goal(what: str, figure: float, limit: float) -> tuple[str, bool]:
    return f"{what}: {figure:.2f} x kube-scheduler's (goal: at most {limit:.2f})", figure <= limit
