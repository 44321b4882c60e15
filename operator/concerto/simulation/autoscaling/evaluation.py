"""All cells of the autoscaling evaluation: patterns and traces x start-up times x policies, and the verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from concerto.simulation.autoscaling.plant import PlantSettings
from concerto.simulation.autoscaling.policies import Reactive, all_policies
from concerto.simulation.autoscaling.run import Experiment, Result, run
from concerto.simulation.autoscaling.statistics import Floats, holm, tested, z_sum_differences
from concerto.simulation.autoscaling.traffic import PHASES, STEADY, Traffic, from_phases, from_trace

STARTUPS_SECONDS = (5.0, 30.0, 135.0, 300.0)
EXEMPT_SECONDS = 30.0
"""Start-ups up to this are exempt on traces of five minutes, and shorter ones on all."""
VIOLATIONS_GOAL = 0.5
POD_MINUTES_GOAL = 1.10
RESCALES_GOAL = 1.2
BOUNDS = ("exact trend", "perfect forecast")
"""Policies that know what no forecast can know."""


@dataclass(frozen=True)
class Plan:
    """What is run.

    Attributes:
        seeds: replicates of a pattern.
        startups: seconds.
        traces: CSV files.
        trace_hours: length of a window of a trace.
        trace_windows: windows of a trace; they are its replicates (one window twice would not count twice).
        trace_history_days: of a trace before its first window, where it is long enough.
        patterns: names in `PHASES` and `STEADY`.
        target_percent: CPU utilisation target.
    """

    seeds: int = 20
    startups: tuple[float, ...] = STARTUPS_SECONDS
    traces: tuple[Path, ...] = ()
    trace_hours: float = 3.0
    trace_windows: int = 20
    trace_history_days: float = 3.0
    patterns: tuple[str, ...] = (*PHASES, *STEADY)
    target_percent: int = 50


@dataclass(frozen=True)
class Cell:
    """One traffic at one start-up time: each policy's figures, and what is needed to test them."""

    traffic: str
    startup: float
    step_seconds: float
    results: dict[str, Result] = field(default_factory=dict)

    @property
    def steady(self) -> bool:
        """Whether the load is steady: there only the goal for rescales counts."""
        return self.traffic in STEADY

    @property
    def counts(self) -> bool:
        """Whether the goals are about it."""
        if self.steady:
            return True
        if self.step_seconds >= 300 and self.startup <= EXEMPT_SECONDS:
            return False
        return self.startup >= EXEMPT_SECONDS


def cells(
    plan: Plan,
    policies: Callable[[], Sequence[Reactive]] = all_policies,
    traces: Sequence[tuple[Traffic, ...]] | None = None,
) -> Iterable[Cell]:
    """Run everything, a cell at a time; ``traces``: the plan's, where they have been read already."""
    for traffics, step in _traffics(plan, read_traces(plan) if traces is None else traces):
        for startup in plan.startups:
            cell = Cell(traffics[0].name, startup, step)
            for policy in policies():
                experiment = Experiment(traffics, PlantSettings(startup_seconds=startup), plan.target_percent)
                cell.results[policy.name] = run(experiment, policy)
            yield cell


def _traffics(plan: Plan, traces: Sequence[tuple[Traffic, ...]]) -> Iterable[tuple[tuple[Traffic, ...], float]]:
    for name in plan.patterns:
        traffic = STEADY[name] if name in STEADY else from_phases(name, PHASES[name])
        yield (traffic,) * plan.seeds, 0.0
    for traffics in traces:
        yield traffics, float(np.median(np.diff(traffics[0].times)))


def read_traces(plan: Plan) -> list[tuple[Traffic, ...]]:
    """The windows of each trace; traces of the same name are distinguished by a number.

    Raises:
        ValueError: one cannot be understood.
        OSError: or not be read.
    """
    taken, found = set(plan.patterns), []
    for path in plan.traces:
        windows = from_trace(
            path, hours=plan.trace_hours, history_days=plan.trace_history_days, windows=plan.trace_windows
        )
        names = (windows[0].name, *(f"{windows[0].name}-{n}" for n in range(2, len(plan.traces) + 2)))
        name = next(n for n in names if n not in taken)
        taken.add(name)
        found.append(tuple(replace(w, name=name) for w in windows))
    return found


def figures(cell: Cell, reference: str = "HPA v2") -> dict[str, dict[str, Any]]:
    """Figures of each policy in one cell, beside the reference's."""
    base = cell.results[reference]
    table: dict[str, dict[str, Any]] = {}
    for name, result in cell.results.items():
        difference = tested(z_sum_differences(result, base))
        table[name] = {
            "violationMinutes": float(result.violations.mean()),
            "violationsRatio": _ratio(result.violations.mean(), base.violations.mean()),
            "podMinutes": float(result.pod_minutes.mean()),
            "podMinutesRatio": _ratio(result.pod_minutes.mean(), base.pod_minutes.mean()),
            "rescales": float(result.rescales.mean()),
            "rescalesRatio": _ratio(result.rescales.mean(), base.rescales.mean()),
            "meanLatencySeconds": float(result.mean.mean()),
            "p99LatencySeconds": float(result.p99.mean()),
            "zSum": difference.mean,
            "zSumError": difference.error,
            "pBetter": difference.p_better,
            "pWorse": difference.p_worse,
        }
    return table


@dataclass(frozen=True)
class Shortfall:
    """A cell that misses a goal: the policy's ratios to the reference, and what the bounds for forecasts get there.

    Attributes:
        traffic: name.
        startup: seconds.
        violations: ratio.
        pod_minutes: ratio.
        rescales: ratio.
        bounds: the first two ratios of policies that know more than any forecast can, by name.
    """

    traffic: str
    startup: float
    violations: float
    pod_minutes: float
    rescales: float
    bounds: dict[str, tuple[float, float]]


@dataclass(frozen=True)
class Verdict:
    """How a policy stands against the goals.

    Attributes:
        policy: its name.
        short: cells that count and miss a goal.
        p_pooled: probability of its pooled gain by chance.
        worse: patterns on which it is significantly worse after Holm's correction.
        violations_ratio: over all cells that count together.
        pod_minutes_ratio: the same.
        rescales_ratio: the same.
    """

    policy: str
    short: list[Shortfall]
    p_pooled: float
    worse: list[str]
    violations_ratio: float
    pod_minutes_ratio: float
    rescales_ratio: float


def verdict(done: Sequence[Cell], policy: str, reference: str = "HPA v2") -> Verdict:
    """Judge one policy over all cells that count."""
    counted = [c for c in done if c.counts]
    short, by_traffic = [], dict[str, list[Floats]]()
    totals = np.zeros(6)
    for cell in counted:
        ours, base = cell.results[policy], cell.results[reference]
        for index, each in enumerate((ours, base)):
            totals[index::2] += [each.violations.mean(), each.pod_minutes.mean(), each.rescales.mean()]
        violations, pods, rescales = _ratios(ours, base)
        # Without any, nothing is left to halve
        missed = ours.violations.mean() > VIOLATIONS_GOAL * base.violations.mean() or pods > POD_MINUTES_GOAL
        if (missed and not cell.steady) or rescales > RESCALES_GOAL:
            bounds = {n: _ratios(cell.results[n], base)[:2] for n in BOUNDS if n in cell.results}
            short.append(Shortfall(cell.traffic, cell.startup, violations, pods, rescales, bounds))
        by_traffic.setdefault(cell.traffic, []).append(z_sum_differences(ours, base))
    patterns = {name: tested(np.mean(list(d), axis=0)) for name, d in by_traffic.items()}
    corrected = holm([d.p_worse for d in patterns.values()])
    pooled = tested(np.concatenate([np.mean(list(d), axis=0) for d in by_traffic.values()]))
    return Verdict(
        policy,
        short,
        pooled.p_better,
        [name for name, p in zip(patterns, corrected, strict=True) if p < 0.05],
        _ratio(totals[0], totals[1]),
        _ratio(totals[2], totals[3]),
        _ratio(totals[4], totals[5]),
    )


def _ratios(ours: Result, base: Result) -> tuple[float, float, float]:
    """Of violations, pod-minutes and rescales."""
    violations = _ratio(ours.violations.mean(), base.violations.mean())
    pods = _ratio(ours.pod_minutes.mean(), base.pod_minutes.mean())
    return violations, pods, _ratio(ours.rescales.mean(), base.rescales.mean())


def _ratio(value: float, base: float) -> float:
    """Nothing over nothing is no change; something over nothing has no ratio."""
    if base > 0:
        return float(value / base)
    return 1.0 if value <= 0 else float("inf")
