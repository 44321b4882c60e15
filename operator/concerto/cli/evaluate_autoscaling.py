"""`concerto evaluate-autoscaling`: every figure of docs/autoscaling.md's evaluation, from seeds, with plots.

Writes JSON to build/autoscaling and prints the tables.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from concerto.api.arguments import number, whole_number
from concerto.autoscaling.forecast_influence import ActionSettings
from concerto.simulation.autoscaling.cross_validation import (
    GRID,
    Judged,
    Totals,
    Trial,
    candidates,
    cross_validate,
    judge,
    loss,
    measure,
    total,
)
from concerto.simulation.autoscaling.evaluation import (
    EXEMPT_SECONDS,
    Cell,
    Plan,
    Verdict,
    cells,
    figures,
    read_traces,
    verdict,
)
from concerto.simulation.autoscaling.policies import Forecasting, Reactive, all_policies
from concerto.simulation.autoscaling.traffic import PHASES, STEADY, Traffic
from concerto.simulation.scheduling.experiments import machine

_FOLD_MEMBERS = 4
"""Members of each family that settings are chosen by: each of the grid is tried on all of them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.description = (
        "Compare autoscaling policies over traffic patterns and start-up times in virtual time, with production's code."
    )
    parser.add_argument("--seeds", type=whole_number(2, 10_000, "20"), default=20, help="replicates (default 20)")
    parser.add_argument(
        "--startup",
        type=number(0.0, 86400.0, "30"),
        action="append",
        metavar="SECONDS",
        help="start-up time; default 5, 30, 135 and 300",
    )
    parser.add_argument("--pattern", action="append", choices=sorted({*PHASES, *STEADY}), help="only these patterns")
    parser.add_argument(
        "--trace",
        type=Path,
        action="append",
        default=[],
        metavar="CSV",
        help="also this trace (time, value), or a folder of them; docs/autoscaling.md says what is understood",
    )
    parser.add_argument("--trace-only", action="store_true", help="no patterns")
    parser.add_argument(
        "--trace-hours", type=number(0.1, 672.0, "3"), default=3.0, help="length of a trace's windows (default 3)"
    )
    parser.add_argument(
        "--trace-windows", type=whole_number(1, 1000, "20"), default=20, help="windows of each trace (default 20)"
    )
    parser.add_argument(
        "--trace-history",
        type=number(0.0, 365.0, "3"),
        default=Plan.trace_history_days,
        metavar="DAYS",
        help="of a trace before its first window, where it is long enough (default 3; 0: none is needed)",
    )
    parser.add_argument("--policy", action="append", help="only these, beside HPA v2; of families: instead of Auto")
    parser.add_argument(
        "--target", type=whole_number(1, 100, "50"), default=50, help="CPU utilisation target in percent (default 50)"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("build/autoscaling"), help="where JSON and plots go (default: %(default)s)"
    )
    families = parser.add_mutually_exclusive_group()
    families.add_argument(
        "--cross-validate",
        action="store_true",
        help="choose how forecasts act by leave-one-out cross-validation over families of traffic, and print the folds "
        f"(at most {_FOLD_MEMBERS} members of each)",
    )
    families.add_argument(
        "--families",
        action="store_true",
        help="show the settings in use on each family of traffic, without choosing any (a tenth of the time)",
    )
    parser.add_argument("--plots", action="store_true", help="plot load, forecast, replicas and latency of each cell")


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit status: 0 whether or not the goals hold, which the table says."""
    traces = [p for given in args.trace for p in (sorted(given.glob("*.csv")) if given.is_dir() else [given])]
    wrong = [f"{p} is not there" for p in traces if not p.is_file()]
    wrong += [f"{p} has no file *.csv in it" for p in args.trace if p.is_dir() and not sorted(p.glob("*.csv"))]
    if args.trace_only and not args.trace:
        wrong.append("--trace-only needs a trace")
    if wrong:
        print(f"--trace: {wrong[0]}", file=sys.stderr)
        return 2
    if (problem := _contradiction(args)) is not None:
        print(problem, file=sys.stderr)
        return 2
    if args.plots and importlib.util.find_spec("matplotlib") is None:
        print("--plots needs matplotlib: pip install '.[plots]' in Concerto's folder", file=sys.stderr)
        return 2
    names = [p.name for p in all_policies()]
    wanted = set(args.policy or names) | {"HPA v2"}
    if unknown := wanted - set(names):
        print(f"--policy: {sorted(unknown)[0]!r} is not a policy: choose one of {', '.join(names)}", file=sys.stderr)
        return 2
    plan = Plan(
        seeds=args.seeds,
        startups=tuple(args.startup) if args.startup else Plan.startups,
        traces=tuple(traces),
        trace_hours=args.trace_hours,
        trace_windows=args.trace_windows,
        trace_history_days=args.trace_history,
        patterns=() if args.trace_only else tuple(args.pattern or Plan.patterns),
        target_percent=args.target,
    )
    try:
        # Report what cannot be read or written now, not after an hour
        read = read_traces(plan)
        for windows in read:
            print(described(windows))
        args.output.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        print(f"concerto evaluate-autoscaling: {error}", file=sys.stderr)
        return 2
    if args.families:
        return run_families(plan, read, [p for p in all_policies() if p.name in (args.policy or ["Auto"])])
    if args.cross_validate:
        return run_cross_validation(plan, read)
    done = []
    for cell in cells(plan, lambda: [p for p in all_policies() if p.name in wanted], read):
        done.append(cell)
        print_cell(cell)
        if args.plots:
            from concerto.simulation.autoscaling.plots import plot_cell

            plot_cell(cell, args.output)
    verdicts = []
    if any(c.counts for c in done):
        verdicts = [verdict(done, name) for name in names if name in wanted and name != "HPA v2"]
        print_verdicts(verdicts)
    document = {
        "machine": machine(),
        "cells": [{"traffic": c.traffic, "startupSeconds": c.startup, "policies": figures(c)} for c in done],
        "verdicts": [asdict(v) for v in verdicts],
    }
    (args.output / "figures.json").write_text(json.dumps(_without_nonsense(document), indent=1, allow_nan=False))
    print(f"figures: {args.output / 'figures.json'}")
    return 0


def _contradiction(args: argparse.Namespace) -> str | None:
    """What is wrong with options that would have no effect; None if nothing is."""
    if args.trace_only and args.pattern:
        return "--pattern: with --trace-only there are no patterns: leave one of the two out"
    if not (args.families or args.cross_validate):
        return None
    if args.startup and max(args.startup) < EXEMPT_SECONDS:
        return f"--startup: families are judged by start-up times of {EXEMPT_SECONDS:g} s and more: give such a one"
    families_lack = {
        "--policy": args.policy and args.cross_validate,
        "--pattern": args.pattern,
        "--plots": args.plots,
        "--target": args.target != Plan.target_percent,
        "--trace-only": args.trace_only,
    }
    for option, given in families_lack.items():
        if given:
            return f"{option}: it has no effect with --families and --cross-validate: leave it out"
    return None


def trial_of(plan: Plan, traces: Sequence[tuple[Traffic, ...]], max_members: int | None = None) -> Trial:
    """As many members of each family as there are seeds, and all windows of the traces; at most ``max_members``."""
    startups = tuple(s for s in plan.startups if s >= EXEMPT_SECONDS)
    members = plan.seeds if max_members is None else min(plan.seeds, max_members)
    return Trial(startups, members, 3600.0, {w[0].name: w[:max_members] for w in traces})


def run_families(plan: Plan, traces: Sequence[tuple[Traffic, ...]], policies: Sequence[Reactive]) -> int:
    """Print each family under each policy, beside HPA v2."""
    trial = trial_of(plan, traces)
    for policy in policies:
        print_families(policy.name, judge(trial, policy), trial)
    return 0


def print_families(policy: str, judged: Sequence[Judged], trial: Trial) -> None:
    """A table of one policy."""
    print(f"\n{policy}; start-up {', '.join(f'{s:g}' for s in trial.startups)} s")
    print(
        f"  {'family':34}{'violations':>11}{'HPA v2':>8}{'pods':>7}{'rescales':>9}{'HPA v2':>8}{'z-sum':>8}{'± se':>7}"
    )
    for each in judged:
        ours, base = each.ours, each.reference
        worse = " worse in ERU+QoS" * each.worse + " worse in violations" * each.worse_violations
        print(
            f"  {each.family:34}{ours.violations:11.0f}{base.violations:8.0f}"
            f"{ours.pod_minutes / base.pod_minutes:7.3f}{ours.rescales:9.0f}{base.rescales:8.0f}"
            f"{each.z_sum.mean:8.3f}{each.z_sum.error:7.3f}{worse}"
        )
    for name, chosen in (("together", judged), ("traces", [j for j in judged if j.family in (trial.traces or {})])):
        if chosen:
            ours, base = total(chosen)
            print(f"{name}: {_ratios_in_words(ours, base)}", flush=True)


def _ratios_in_words(ours: Totals, base: Totals) -> str:
    return (
        f"violations {ours.violations / max(base.violations, 1.0):.2f} x, pod-minutes "
        f"{ours.pod_minutes / base.pod_minutes:.3f} x, rescales {ours.rescales / max(base.rescales, 1.0):.2f} x"
    )


def run_cross_validation(plan: Plan, traces: Sequence[tuple[Traffic, ...]]) -> int:
    """Measure the grid of settings on all families, and print each family with what the others choose."""
    trial = trial_of(plan, traces, _FOLD_MEMBERS)
    startups = trial.startups
    reference = measure(trial, Reactive())
    measured = {}
    for action in candidates():
        measured[action] = measure(trial, Forecasting(action=action))
        print(f"  loss {loss(measured[action], reference, list(reference)):.3f}: {_changed(action)}", flush=True)
    folds, chosen = cross_validate(reference, measured)
    print(f"\nleft out, judged with what all others choose; start-up {', '.join(f'{s:g}' for s in startups)} s")
    print(
        f"  {'family':26}{'violations':>11}{'HPA v2':>8}{'pod-min':>9}{'ratio':>7}{'rescales':>9}{'HPA v2':>8}  choice"
    )
    for fold in folds:
        ours, base = fold.ours, fold.reference
        print(
            f"  {fold.family:26}{ours.violations:11.0f}{base.violations:8.0f}{ours.pod_minutes:9.0f}"
            f"{ours.pod_minutes / base.pod_minutes:7.3f}{ours.rescales:9.0f}{base.rescales:8.0f}"
            f"  {_changed(fold.chosen)}"
        )
    ours, base = total(folds)
    print(f"together: {_ratios_in_words(ours, base)}; all families choose {_changed(chosen)}")
    return 0


def _changed(action: ActionSettings) -> str:
    return ", ".join(f"{name} {getattr(action, name):g}" for name in GRID)


def described(windows: Sequence[Traffic]) -> str:
    """A trace as it was understood, in a line, so that a reader can see whether that is right."""
    first, last = windows[0], windows[-1]
    step, span = float(first.times[1] - first.times[0]), float(first.times[-1]) / 3600
    before = " to ".join(dict.fromkeys(f"{w.start / 3600:.1f}" for w in (first, last)))
    distinct = len({w.start for w in windows})
    length = (first.end - first.start) / 3600
    what = f"{distinct} windows" if distinct > 1 else f"1 window, {len(windows)} times,"
    return f"{first.name}: {span:.1f} h, a value each {step:g} s; {what} of {length:.2g} h after {before} h of history"


def _without_nonsense(value: Any) -> Any:
    """JSON knows no infinity and no NaN: null, where a ratio or an error has no value."""
    if isinstance(value, dict):
        return {k: _without_nonsense(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_without_nonsense(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_cell(cell: Cell) -> None:
    """A table of one cell."""
    print(f"\n{cell.traffic}, start-up {cell.startup:.0f} s{'' if cell.counts else ' (no goal)'}")
    print(f"  {'policy':24}{'violations':>11}{'ratio':>7}{'pod-min':>9}{'ratio':>7}{'rescales':>9}{'ratio':>7}{'mean s':>8}{'p99 s':>8}{'z-sum':>8}{'± se':>7}{'p':>9}")  # fmt: skip # noqa: E501
    for name, f in figures(cell).items():
        print(
            f"  {name:24}{f['violationMinutes']:11.1f}{f['violationsRatio']:7.2f}{f['podMinutes']:9.0f}"
            f"{f['podMinutesRatio']:7.3f}{f['rescales']:9.1f}{f['rescalesRatio']:7.2f}"
            f"{f['meanLatencySeconds']:8.2f}{f['p99LatencySeconds']:8.2f}"
            f"{f['zSum']:8.3f}{f['zSumError']:7.3f}{f['pBetter']:9.2g}"
        )
    sys.stdout.flush()


def print_verdicts(verdicts: list[Verdict]) -> None:
    """How each policy stands against the goals, over all cells that count."""
    print(
        "\nagainst HPA v2, over all cells with a goal (violations at most 0.50 x, pod-minutes "
        "at most 1.10 x, rescales at most 1.20 x; on steady loads rescales alone)"
    )
    for v in verdicts:
        worse = f", significantly worse on {', '.join(v.worse)}" if v.worse else ""
        print(
            f"  {v.policy:24} violations {v.violations_ratio:.2f} x, pod-minutes {v.pod_minutes_ratio:.3f} x, "
            f"rescales {v.rescales_ratio:.2f} x, "
            f"pooled p {v.p_pooled:.2g}{worse}; {len(v.short)} cells short"
        )
        if v.policy.startswith("Auto"):
            for miss in v.short:
                bounds = "; ".join(f"{name} {a:.2f} x, {b:.3f} x" for name, (a, b) in miss.bounds.items())
                print(
                    f"    {miss.traffic}, {miss.startup:.0f} s: violations {miss.violations:.2f} x, "
                    f"pod-minutes {miss.pod_minutes:.3f} x, rescales {miss.rescales:.2f} x"
                    f"{f' ({bounds})' if bounds else ''}"
                )
