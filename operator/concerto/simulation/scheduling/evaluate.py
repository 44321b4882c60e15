"""`python -m concerto.simulation.scheduling.evaluate`: every figure on scheduling in docs/evaluation.md, from seeds.

Writes JSON to build/evaluation and the tables into docs/evaluation.md, between their markers. What was ended goes on
where it was: the figures of each run stay in build/evaluation/runs until the simulated code changes.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from concerto.api.capacity_settings import CapacitySettings, SlotSettings
from concerto.simulation.scheduling import scenario
from concerto.simulation.scheduling.evaluate_gangs import gang_lines, run_gangs
from concerto.simulation.scheduling.evaluate_grid import GRID_COLUMNS, Cell, cells, grid_lines, run_grid
from concerto.simulation.scheduling.evaluate_kinds import ablation_lines as kind_ablation_lines
from concerto.simulation.scheduling.evaluate_kinds import kinds_table, run_kinds
from concerto.simulation.scheduling.experiments import (
    Task,
    machine,
    medians,
    run_task,
    tasks_of,
    trade,
)
from concerto.simulation.scheduling.kept_runs import KeptRuns, RunTasks, run_tasks
from concerto.simulation.scheduling.policies.registry import REQUEST_SWEEP
from concerto.simulation.studies import openb_replay

COMMAND = "make evaluate"
_ONE_PART = "python -m concerto.simulation.scheduling.evaluate --only"
_PARTS = ("main", "gangs", "kinds", "kinds-ablation", "openb", "grid", "faults", "ablation", "scale")
_SEEDS = 5
_FAULTS = ("agent-death", "node-loss", "api-outage", "frozen", "idle", "full")

Figures = dict[str, Any]
_YES = {True: "yes", False: "**no**"}


def _run(name: str, seeds: int, run: RunTasks) -> dict[str, list[Figures]]:
    tasks = tasks_of(scenario.load(name), seeds=seeds)
    by_policy: dict[str, list[Figures]] = {}
    for task, figures in zip(tasks, run(tasks)):
        by_policy.setdefault(task.policy, []).append(figures)
    return by_policy


def _medians(by_policy: dict[str, list[Figures]]) -> dict[str, Figures]:
    return {name: medians(runs) for name, runs in by_policy.items()}


@dataclass(frozen=True)
class Row:
    """One line of the main table: what was asked, what came out, and whether it holds."""

    experiment: str
    asked: str
    found: str
    holds: bool


def _row(experiment: str, asked: str, value: float, limit: float, unit: str = "") -> Row:
    return Row(experiment, asked, f"{value:.2f}{unit} against {limit:.2f}{unit}", value <= limit)


def main_rows(seeds: int, run: RunTasks = run_tasks) -> tuple[list[Row], dict[str, dict[str, Figures]]]:
    """The experiments of the evaluation's table that concern scheduling."""
    rows: list[Row] = []
    all_figures: dict[str, dict[str, Figures]] = {}

    pi = all_figures["pi-2000"] = _medians(_run("pi-2000", seeds, run))
    best, ours = trade(pi), pi["concerto"]
    rows.append(_row("pi-2000", "job ≤ 1.10 × best of the sweep", ours["jct_s"], 1.10 * best.best_jct_s, " s"))
    limit = pi["kube-scheduler@500m"]["pct_s"]["mean"]
    rows.append(_row("pi-2000", "pod mean ≤ kube-scheduler's at 500m", ours["pct_s"]["mean"], limit, " s"))
    for name, asked, ratio in (
        ("sklearn-100", "pod mean over kube-scheduler's ≤ Carico's ratio", 59.0 / 127.4),
        ("sklearn-200", "pod mean over kube-scheduler's ≤ 0.6", 0.6),
    ):
        figures = all_figures[name] = _medians(_run(name, seeds, run))
        best, ours = trade(figures), figures["concerto"]
        rows.append(_row(name, "job ≤ 1.10 × best of the sweep", ours["jct_s"], 1.10 * best.best_jct_s, " s"))
        kube = figures["kube-scheduler@100m"]["pct_s"]["mean"]
        rows.append(_row(name, asked, ours["pct_s"]["mean"] / kube, ratio))
        rows.append(_row(name, "no OOM kill", ours["oom_kills"], 0.0))
    mixed = all_figures["mixed"] = _medians(_run("mixed", seeds, run))
    for job, ratio in (("pi", 7.40 / 28.78), ("sklearn", 34.50 / 65.25)):
        kube, ours_mean = (mixed[p]["jobs"][job]["pct_s"]["mean"] for p in ("kube-scheduler", "concerto"))
        rows.append(_row("mixed", f"{job}: pod mean over kube-scheduler's ≤ Carico's ratio", ours_mean / kube, ratio))
        kube, ours_job = (mixed[p]["jobs"][job]["jct_s"] or float("inf") for p in ("kube-scheduler", "concerto"))
        rows.append(_row("mixed", f"{job}: job ≤ 1.10 × kube-scheduler's", ours_job, 1.10 * kube, " s"))
    # Its latencies are a formula's that is fitted to one of them: `make compare-server` measures a real server's
    all_figures["isolation"] = _medians(_run("isolation", seeds, run))
    low = all_figures["low-then-high"] = _medians(_run("low-then-high", seeds, run))
    ours, best_possible = (low[name]["jobs"]["high"] for name in ("concerto", "oracle"))
    rows.append(
        _row(
            "low-then-high",
            "pods of the second job on a node ≤ 2 × the oracle's",
            ours["pods_per_node_max"],
            2 * best_possible["pods_per_node_max"],
        )
    )
    limit = 1.5 * best_possible["pct_s"]["mean"]
    rows.append(_row("low-then-high", "second job: pod mean ≤ 1.5 × the oracle's", ours["pct_s"]["mean"], limit, " s"))
    limit = 1.25 * (best_possible["jct_s"] or float("inf"))
    rows.append(_row("low-then-high", "second job ≤ 1.25 × the oracle's", ours["jct_s"] or float("inf"), limit, " s"))
    return rows, all_figures


def fault_rows(seeds: int, run: RunTasks = run_tasks) -> list[tuple[str, Figures, Figures]]:
    """Each fault: name, medians, and the worst over seeds of what must not happen."""
    found = []
    for name in _FAULTS:
        runs = _run(f"fault-{name}", seeds, run)["concerto"]
        worst = {key: max(each[key] for each in runs) for key in ("lost_pods", "double_binds", "overcommits")}
        found.append((name, medians(runs), worst))
    return found


ABLATIONS: dict[str, SlotSettings] = {
    "the law as it is": SlotSettings(),
    "no pace: starts as fast as slots come free": SlotSettings(pace=100.0, burst=1.0),
    "no blind start: the first guess of the cost is filled at once": SlotSettings(
        first_share=1.0, blind_per_second=50.0
    ),
    "no bound on growth": SlotSettings(growth=1000.0),
    "no adaptive head room": SlotSettings(adaptation=0.0),
    "no head room": SlotSettings(head_room=1.0, extra_pods=0.0, adaptation=0.0),
    "pods on their way take slots of their own": SlotSettings(turnaround_seconds=0.0),
    "memory of a minute": SlotSettings(memory_seconds=60.0, memory_lives=6.0),
    "the whole window filled at once": SlotSettings(burst=1.0),
}
"""What each part of the law is worth: the same runs without it."""
_ABLATION_CELLS = (Cell(0.3, 2.0, 4), Cell(2.0, 10.0, 4), Cell(2.0, 60.0, 1), Cell(5.0, 2.0, 1), Cell(5.0, 2.0, 4))


def ablation_lines(seeds: int, run: RunTasks = run_tasks) -> list[str]:
    """A row for each ablation: job and pod seconds of the named scenarios, ratios (see the grid) of some cells."""
    setups = {name: scenario.load(name).setup for name in ("pi-2000", "sklearn-100")}
    setups |= {str(cell): cell.setup() for cell in _ABLATION_CELLS}
    plain = CapacitySettings()
    sweep = [
        Task(setup, f"kube-scheduler@{m}m", seed, plain)
        for setup in setups.values()
        for m in REQUEST_SWEEP
        for seed in range(1, seeds + 1)
    ]
    ours = [
        Task(setup, "concerto", seed, CapacitySettings(slots=slots))
        for slots in ABLATIONS.values()
        for setup in setups.values()
        for seed in range(1, seeds + 1)
    ]
    figures = iter(run(sweep + ours))
    best = {}
    for name in setups:
        by_policy = {f"kube-scheduler@{m}m": medians([next(figures) for _ in range(seeds)]) for m in REQUEST_SWEEP}
        best[name] = trade(by_policy)
    lines = [
        "Job completion over the best of the request sweep / mean pod completion over the best trade's. Cells are "
        "waiting s / core-s / threads.",
        "",
        f"| law | {' | '.join(setups)} |",
        "| --- |" + " ---: |" * len(setups),
    ]
    for label in ABLATIONS:
        row = []
        for name in setups:
            found = medians([next(figures) for _ in range(seeds)])
            jct = "never" if found["jct_s"] is None else f"{found['jct_s'] / best[name].best_jct_s:.2f}"
            row.append(f"{jct} / {found['pct_s']['mean'] / best[name].trade_pct_s:.2f}")
        lines.append(f"| {label} | {' | '.join(row)} |")
    return lines


def scale() -> Figures:
    """1,000 nodes and 100,000 pods: wall time and memory of the simulation itself."""
    started = time.perf_counter()
    figures = run_task(tasks_of(scenario.load("scale"))[0]).figures
    figures["wall_s"] = round(time.perf_counter() - started, 1)
    figures["peak_memory_gib"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)
    return figures


def _main_table(rows: Sequence[Row]) -> list[str]:
    lines = ["| experiment | asked | found | holds |", "| --- | --- | --- | --- |"]
    return lines + [f"| {r.experiment} | {r.asked} | {r.found} | {_YES[r.holds]} |" for r in rows]


def _policy_table(figures: dict[str, Figures]) -> list[str]:
    lines = ["| scheduler | job | job s | pod s mean | std | p50 | p99 | pods/node max | CPU % |"]
    lines.append("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, f in figures.items():
        for job, j in f["jobs"].items():
            p = j["pct_s"]
            jct = "never" if j["jct_s"] is None else f"{j['jct_s']:.1f}"
            cells_ = [name, job, jct, *(f"{p[k]:.2f}" if p else "-" for k in ("mean", "std", "p50", "p99"))]
            lines.append(f"| {' | '.join(cells_)} | {j['pods_per_node_max']:.0f} | {100 * f['utilisation']:.0f} |")
    return lines


def _fault_table(rows: Sequence[tuple[str, Figures, Figures]]) -> list[str]:
    lines = ["| fault | job s | pod s mean | pods lost | bound twice | decisions beyond the ledger |"]
    lines.append("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name, f, worst in rows:
        jct = "never" if f["jct_s"] is None else f"{f['jct_s']:.1f}"
        worst_text = f"{worst['lost_pods']} | {worst['double_binds']} | {worst['overcommits']}"
        lines.append(f"| {name} | {jct} | {f['pct_s']['mean']:.2f} | {worst_text} |")
    return lines


def write_section(path: Path, name: str, lines: Sequence[str]) -> None:
    """Put lines between the markers of that name, which are added at the end of the file if it lacks them."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    text = path.read_text() if path.exists() else "# Evaluation\n"
    block = "\n".join([begin, *lines, end])
    if begin in text:
        head, rest = text.split(begin, 1)
        text = head + block + rest.split(end, 1)[1]
    else:
        text = text.rstrip("\n") + "\n\n" + block + "\n"
    path.write_text(text)


def main() -> None:
    """Run all or parts of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=_SEEDS)
    parser.add_argument("--only", action="append", choices=_PARTS, default=[])
    parser.add_argument("--cell", action="append", choices=[*map(str, cells())], help="of the grid; printed only")
    parser.add_argument("--column", action="append", choices=GRID_COLUMNS, help="of the grid; printed only")
    parser.add_argument("--openb-pods", type=Path, help="the public trace openb-pods.csv; without it, no replay")
    parser.add_argument("--out", type=Path, default=Path("build/evaluation"))
    parser.add_argument("--docs", type=Path, default=Path("docs/evaluation.md"))
    args = parser.parse_args()
    parts = args.only or _PARTS
    args.out.mkdir(parents=True, exist_ok=True)
    run = KeptRuns(args.out / "runs")
    on = f"{machine()['cpus']} CPUs, Python {machine()['python']}"

    def keep(name: str, value: Any, lines: Sequence[str]) -> None:
        text = json.dumps(
            {"machine": machine(), "seeds": args.seeds, name: value}, default=lambda o: o.__dict__, indent=1
        )
        (args.out / f"{name}.json").write_text(text + "\n")
        command = COMMAND if args.seeds == _SEEDS else f"{_ONE_PART} {name} --seeds {args.seeds}"
        seeds = "1 seed" if args.seeds == 1 else f"{args.seeds} seeds, medians"
        where = f"`{command}` ({seeds}; {on})."
        write_section(args.docs, name, [where, "", *lines])
        print("\n".join(lines), "\n", flush=True)

    if "main" in parts:
        rows, figures = main_rows(args.seeds, run)
        lines = _main_table(rows)
        for name, by_policy in figures.items():
            lines += ["", f"### {name}", "", *_policy_table(by_policy)]
        keep("main", {"rows": rows, "figures": figures}, lines)
    if "gangs" in parts:
        gangs = run_gangs(args.seeds, run=run)
        keep("gangs", gangs, gang_lines(gangs))
    if "kinds" in parts:
        kinds = run_kinds(seeds=args.seeds, run=run)
        keep("kinds", kinds, kinds_table(kinds))
    if "kinds-ablation" in parts:
        lines = kind_ablation_lines(min(args.seeds, 3), run=run)
        keep("kinds-ablation", lines, lines)
    if "openb" in parts and args.openb_pods is None:
        print(openb_replay.SKIPPED, "\n", flush=True)
    elif "openb" in parts:
        replayed = openb_replay.study(
            openb_replay.read_pods(args.openb_pods), openb_replay.ReplaySettings(), args.seeds
        )
        keep("openb", replayed, openb_replay.table(replayed))
    if "grid" in parts:
        which = [cell for cell in cells() if args.cell is None or str(cell) in args.cell]
        columns = {name: way for name, way in GRID_COLUMNS.items() if args.column is None or name in args.column}
        results = run_grid(which, columns, args.seeds, run)
        if args.cell or args.column:
            print("\n".join(grid_lines(results)))
        else:
            keep("grid", results, grid_lines(results))
    if "faults" in parts:
        faults = fault_rows(args.seeds, run)
        keep("faults", faults, _fault_table(faults))
    if "ablation" in parts:
        lines = ablation_lines(min(args.seeds, 3), run)
        keep("ablation", lines, lines)
    if "scale" in parts:
        figures_ = scale()
        text = (
            f"1,000 nodes, 100,000 pods of pi-2000: {figures_['jct_s']:.0f} virtual s in {figures_['wall_s']:.0f} s "
            f"of wall time, {figures_['peak_memory_gib']:.2f} GiB at most; pod mean {figures_['pct_s']['mean']:.2f} s."
        )
        keep("scale", figures_, [text])


if __name__ == "__main__":
    main()
