"""`concerto evaluate-autoscaling`: every figure of docs/autoscaling.md's evaluation, from seeds, with plots.

Writes JSON to build/autoscaling and prints the tables.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from concerto.simulation.autoscaling_evaluation import Cell, Plan, Verdict, cells, figures, verdict
from concerto.simulation.autoscaling_policies import all_policies
from concerto.simulation.autoscaling_traffic import PHASES
from concerto.simulation.experiments import machine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.description = (
        "Compare autoscaling policies over traffic patterns and start-up times in virtual time, with production's code."
    )
    parser.add_argument("--seeds", type=int, default=20, help="replicates (default 20)")
    parser.add_argument(
        "--startup", type=float, action="append", metavar="SECONDS", help="start-up time; default 5, 30, 135 and 300"
    )
    parser.add_argument("--pattern", action="append", choices=sorted(PHASES), help="only these patterns")
    parser.add_argument(
        "--trace",
        type=Path,
        action="append",
        default=[],
        metavar="CSV",
        help="also this trace (time, value), or a folder",
    )
    parser.add_argument("--trace-only", action="store_true", help="no patterns")
    parser.add_argument("--trace-hours", type=float, default=3.0, help="length of a trace's windows (default 3)")
    parser.add_argument("--trace-windows", type=int, default=20, help="windows of each trace (default 20)")
    parser.add_argument("--policy", action="append", help="only these, beside HPA v2")
    parser.add_argument("--target", type=int, default=50, help="CPU utilisation target in percent (default 50)")
    parser.add_argument("--output", type=Path, default=Path("build/autoscaling"), help="where JSON and plots go")
    parser.add_argument("--plots", action="store_true", help="plot load, forecast, replicas and latency of each cell")


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit status: 0 whether or not the goals hold, which the table says."""
    if args.seeds < 2:
        print("--seeds: at least 2, or nothing can be tested", file=sys.stderr)
        return 2
    traces = [p for given in args.trace for p in (sorted(given.glob("*.csv")) if given.is_dir() else [given])]
    missing = [p for p in traces if not p.is_file()]
    if missing:
        print(f"--trace: {missing[0]} is not there", file=sys.stderr)
        return 2
    names = [p.name for p in all_policies()]
    wanted = set(args.policy or names) | {"HPA v2"}
    if unknown := wanted - set(names):
        print(f"--policy: {sorted(unknown)[0]!r} is none of {', '.join(names)}", file=sys.stderr)
        return 2
    plan = Plan(
        seeds=args.seeds,
        startups=tuple(args.startup) if args.startup else Plan.startups,
        traces=tuple(traces),
        trace_hours=args.trace_hours,
        trace_windows=args.trace_windows,
        patterns=() if args.trace_only else tuple(args.pattern or PHASES),
        target_percent=args.target,
    )
    args.output.mkdir(parents=True, exist_ok=True)
    done = []
    for cell in cells(plan, lambda: [p for p in all_policies() if p.name in wanted]):
        done.append(cell)
        print_cell(cell)
        if args.plots:
            from concerto.simulation.autoscaling_plots import plot_cell

            plot_cell(cell, args.output)
    verdicts = [verdict(done, name) for name in names if name in wanted and name != "HPA v2"]
    if any(c.counts for c in done):
        print_verdicts(verdicts)
    document = {
        "machine": machine(),
        "cells": [{"traffic": c.traffic, "startupSeconds": c.startup, "policies": figures(c)} for c in done],
        "verdicts": [asdict(v) for v in verdicts],
    }
    (args.output / "figures.json").write_text(json.dumps(document, indent=1))
    print(f"figures: {args.output / 'figures.json'}")
    return 0


def print_cell(cell: Cell) -> None:
    """A table of one cell."""
    print(f"\n{cell.traffic}, start-up {cell.startup:.0f} s{'' if cell.counts else ' (no goal)'}")
    print(f"  {'policy':24}{'violations':>11}{'ratio':>7}{'pod-min':>9}{'ratio':>7}{'mean s':>8}{'p99 s':>8}{'z-sum':>8}{'± se':>7}{'p':>9}")  # fmt: skip # noqa: E501
    for name, f in figures(cell).items():
        print(
            f"  {name:24}{f['violationMinutes']:11.1f}{f['violationsRatio']:7.2f}{f['podMinutes']:9.0f}"
            f"{f['podMinutesRatio']:7.3f}{f['meanLatencySeconds']:8.2f}{f['p99LatencySeconds']:8.2f}"
            f"{f['zSum']:8.3f}{f['zSumError']:7.3f}{f['pBetter']:9.2g}"
        )
    sys.stdout.flush()


def print_verdicts(verdicts: list[Verdict]) -> None:
    """How each policy stands against the goals, over all cells that count."""
    print("\nagainst HPA v2, over all cells with a goal (violations at most 0.50 x, pod-minutes at most 1.10 x)")
    for v in verdicts:
        worse = f", significantly worse on {', '.join(v.worse)}" if v.worse else ""
        print(
            f"  {v.policy:24} violations {v.violations_ratio:.2f} x, pod-minutes {v.pod_minutes_ratio:.3f} x, "
            f"pooled p {v.p_pooled:.2g}{worse}; {len(v.short)} cells short"
        )
        if v.policy.startswith("Auto"):
            for miss in v.short:
                bounds = "; ".join(f"{name} {a:.2f} x, {b:.3f} x" for name, (a, b) in miss.bounds.items())
                print(
                    f"    {miss.traffic}, {miss.startup:.0f} s: violations {miss.violations:.2f} x, "
                    f"pod-minutes {miss.pod_minutes:.3f} x ({bounds})"
                )
