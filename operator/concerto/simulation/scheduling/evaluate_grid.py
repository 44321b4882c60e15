"""The robustness grid: Concerto beside the sweep of requests on many kinds of pods, one kind at a time."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from concerto.api.capacity_settings import CapacitySettings
from concerto.simulation.scheduling.experiments import Task, medians, trade
from concerto.simulation.scheduling.kept_runs import RunTasks, run_tasks
from concerto.simulation.scheduling.node_model import PodLoad
from concerto.simulation.scheduling.policies.registry import REQUEST_SWEEP
from concerto.simulation.scheduling.setup import Setup
from concerto.simulation.scheduling.workloads import JobSpec

GRID_WAITS = (0.3, 2.0, 5.0)
GRID_WORKS = (2.0, 10.0, 60.0)
GRID_THREADS = (1, 4)
GRID_COLUMNS = {"first run": "concerto", "later run": "concerto-known", "pods as units": "concerto-without-kinds"}
"""Ways to run Concerto on the grid, by what the table calls them."""
RUNAWAY = 2.0
"""Pod completion over the best trade's from which a cell has run away (docs/references.md, "Evaluation")."""

Figures = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """One workload of the robustness grid."""

    wait: float
    work: float
    threads: int

    def setup(self) -> Setup:
        """19 nodes, and enough pods for several generations on each."""
        count = 1000 if self.work < 60 else 500
        load = PodLoad(wait_seconds=self.wait, core_seconds=self.work, threads=self.threads)
        return Setup(jobs=(JobSpec("grid", count, load),))

    def __str__(self) -> str:
        return f"{self.wait:g}/{self.work:g}/{self.threads}"


def cells() -> Iterator[Cell]:
    """All workloads of the grid."""
    return (Cell(*parts) for parts in itertools.product(GRID_WAITS, GRID_WORKS, GRID_THREADS))


@dataclass(frozen=True)
class CellResult:
    """A cell run in one way: ratios to the best of the request sweep, medians over seeds.

    Attributes:
        cell: the workload.
        column: the way (``GRID_COLUMNS``).
        jct: job completion over the best in the sweep.
        pct: mean pod completion over the best trade's.
        worst_pct: the same of the worst seed.
    """

    cell: Cell
    column: str
    jct: float
    pct: float
    worst_pct: float


def run_grid(
    which: Sequence[Cell], columns: Mapping[str, str], seeds: int, run: RunTasks = run_tasks
) -> list[CellResult]:
    """Concerto's defaults on grid cells, beside the request sweep of the same seeds."""
    sweep = [f"kube-scheduler@{millicores}m" for millicores in REQUEST_SWEEP]
    every = list(itertools.product(which, range(1, seeds + 1), (*sweep, *columns.values())))
    tasks = [Task(cell.setup(), policy, seed, CapacitySettings()) for cell, seed, policy in every]
    runs: dict[tuple[Cell, str], list[Figures]] = {}
    for (cell, _, policy), figures in zip(every, run(tasks), strict=True):
        runs.setdefault((cell, policy), []).append(figures)
    found = []
    for cell in which:
        best = trade({policy: medians(runs[cell, policy]) for policy in sweep})
        for column, policy in columns.items():
            ours = runs[cell, policy]
            jct = statistics.median(f["jct_s"] or float("inf") for f in ours)
            pct = [f["pct_s"]["mean"] / best.trade_pct_s for f in ours]
            found.append(CellResult(cell, column, jct / best.best_jct_s, statistics.median(pct), max(pct)))
    return found


def _summary(column: str, found: Sequence[CellResult]) -> str:
    jct, pct, worst = [r.jct for r in found], [r.pct for r in found], [r.worst_pct for r in found]
    jobs = f"{statistics.median(jct):.3f}, {max(jct):.2f}, {sum(ratio > 1.15 for ratio in jct)}"
    pods = f"{statistics.median(pct):.2f}, {max(pct):.2f}, {max(worst):.2f}"
    return f"| {column} | {jobs} | {pods} | {sum(ratio > RUNAWAY for ratio in worst)} |"


def grid_lines(results: Sequence[CellResult]) -> list[str]:
    """Tables of all ways, and of all cells."""
    by_cell: dict[Cell, list[CellResult]] = {}
    by_column: dict[str, list[CellResult]] = {}
    for r in results:
        by_cell.setdefault(r.cell, []).append(r)
        by_column.setdefault(r.column, []).append(r)
    lines = [
        f"| {len(by_cell)} cells | job over the best of the sweep: median, most, above 1.15 | pod mean over the best "
        f"trade's: median, most, worst seed | runaways (a seed above {RUNAWAY:g}) |",
        "| --- | ---: | ---: | ---: |",
        *(_summary(column, found) for column, found in by_column.items()),
        "",
        "| waiting s | core-s | threads | " + " | ".join(f"{column}: job / pod" for column in by_column) + " |",
        "| ---: | ---: | ---: |" + " ---: |" * len(by_column),
    ]
    for cell, found in by_cell.items():
        ratios = " | ".join(f"{r.jct:.2f} / {r.pct:.2f}" for r in found)
        lines.append(f"| {cell.wait:g} | {cell.work:g} | {cell.threads} | {ratios} |")
    return lines
