"""Choose how forecasts act by leave-one-out cross-validation: each family is judged with what the others would choose.

Families are traffic patterns, public traces and drawn traffic (`families`). All members of all families with the same
start-up time run side by side.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from concerto.autoscaling.forecast_influence import ActionSettings
from concerto.simulation.autoscaling.families import FAMILIES, member
from concerto.simulation.autoscaling.plant import Floats, PlantSettings
from concerto.simulation.autoscaling.policies import Reactive
from concerto.simulation.autoscaling.run import Experiment, Result, run
from concerto.simulation.autoscaling.statistics import Difference, holm, tested, z_sum_differences
from concerto.simulation.autoscaling.traffic import PHASES, STEADY, Traffic, from_phases

GRID = {
    "expected_room": (0.0, 1.0),
    "rise_room": (3.0, 4.0),
    "min_drop_replicas": (1.0, 2.0),
}
"""Values of `ActionSettings` that are tried."""
_BY_MINUTE = ("p95", "mean", "idle", "pods", "demand", "forecast")
_POD_WEIGHT, _RESCALE_WEIGHT, _RESCALES_GOAL = 4.0, 1.0, 1.2


@dataclass(frozen=True)
class Trial:
    """What is run.

    Attributes:
        startups: seconds.
        members: of each family.
        seconds: length of each traffic.
        traces: windows of public traces, by name.
    """

    startups: tuple[float, ...] = (30.0, 135.0)
    members: int = 4
    seconds: float = 3600.0
    traces: Mapping[str, Sequence[Traffic]] | None = None


@dataclass(frozen=True)
class Totals:
    """Sums over a family's members: violation minutes, pod-minutes, rescales."""

    violations: float = 0.0
    pod_minutes: float = 0.0
    rescales: float = 0.0

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            self.violations + other.violations,
            self.pod_minutes + other.pod_minutes,
            self.rescales + other.rescales,
        )


@dataclass(frozen=True)
class Fold:
    """One family, judged with the settings that all others choose."""

    family: str
    chosen: ActionSettings
    ours: Totals
    reference: Totals


def candidates() -> list[ActionSettings]:
    """The whole grid."""
    return [replace(ActionSettings(), **dict(zip(GRID, values, strict=True))) for values in product(*GRID.values())]


def measure(trial: Trial, policy: Reactive) -> dict[str, Totals]:
    """Totals of one policy, by family."""
    rows = list(_rows(trial))
    totals: dict[str, Totals] = {}
    for startup in trial.startups:
        experiment = Experiment(tuple(t for _, t, _ in rows), PlantSettings(startup_seconds=startup))
        result = run(experiment, policy)
        for row, (family, _, minutes) in enumerate(rows):
            totals[family] = totals.get(family, Totals()) + _of_row(result, row, minutes)
    return totals


@dataclass(frozen=True)
class Judged:
    """One family under the settings in use, beside autoscaling/v2.

    Attributes:
        family: its name.
        ours: totals of the policy.
        reference: totals of autoscaling/v2.
        z_sum: difference of ERU+QoS, paired over members; above 0 the policy is better.
        worse: whether it is significantly worse in ERU+QoS after Holm's correction over all families.
        worse_violations: the same in violations.
    """

    family: str
    ours: Totals
    reference: Totals
    z_sum: Difference
    worse: bool
    worse_violations: bool


def judge(trial: Trial, policy: Reactive) -> list[Judged]:
    """One policy on every family, over all start-up times together."""
    rows = list(_rows(trial))
    families = list(dict.fromkeys(family for family, _, _ in rows))
    totals = {family: [Totals(), Totals()] for family in families}
    z_sums: dict[str, list[Floats]] = {family: [] for family in families}
    violations: dict[str, list[Floats]] = {family: [] for family in families}
    for startup in trial.startups:
        experiment = Experiment(tuple(t for _, t, _ in rows), PlantSettings(startup_seconds=startup))
        results = [run(experiment, each) for each in (policy, Reactive())]
        for family in families:
            members = [i for i, row in enumerate(rows) if row[0] == family]
            minutes = rows[members[0]][2]
            ours, theirs = (_part(result, members, minutes) for result in results)
            for index, part in enumerate((ours, theirs)):
                for row in range(len(members)):
                    totals[family][index] += _of_row(part, row, minutes)
            z_sums[family].append(z_sum_differences(ours, theirs))
            violations[family].append(theirs.violations - ours.violations)
    tests = [[tested(np.mean(found[f], axis=0)) for f in families] for found in (z_sums, violations)]
    corrected = [holm([d.p_worse for d in found]) for found in tests]
    return [
        Judged(f, totals[f][0], totals[f][1], tests[0][i], corrected[0][i] < 0.05, corrected[1][i] < 0.05)
        for i, f in enumerate(families)
    ]


def _part(result: Result, rows: Sequence[int], minutes: int) -> Result:
    """Some replicates of a run, up to a minute; values of whole runs stay those of the whole run."""
    chosen = list(rows)
    by_minute = {name: getattr(result, name)[chosen, :minutes] for name in _BY_MINUTE}
    return replace(result, **by_minute, p99=result.p99[chosen], rescales=result.rescales[chosen])


def cross_validate(
    reference: Mapping[str, Totals], measured: Mapping[ActionSettings, Mapping[str, Totals]]
) -> tuple[list[Fold], ActionSettings]:
    """Leave each family out once.

    Args:
        reference: totals of autoscaling/v2, by family.
        measured: totals of each of the settings to choose from.

    Returns:
        A fold for each family, and the settings that all families together choose.
    """
    grid, folds = list(measured), []
    for family in reference:
        others = [f for f in reference if f != family]
        chosen = min(grid, key=lambda a: loss(measured[a], reference, others))
        folds.append(Fold(family, chosen, measured[chosen][family], reference[family]))
    return folds, min(grid, key=lambda a: loss(measured[a], reference, list(reference)))


def loss(ours: Mapping[str, Totals], reference: Mapping[str, Totals], families: Sequence[str]) -> float:
    """Mean over families: ratio of violations, and what pods and rescales are above those of autoscaling/v2.

    One violation minute is added on both sides, so that a family without any is not a division by zero.
    """
    losses = []
    for family in families:
        a, b = ours[family], reference[family]
        violations = (a.violations + 1.0) / (b.violations + 1.0)
        pods = max(a.pod_minutes / b.pod_minutes - 1.0, 0.0)
        rescales = max((a.rescales + 1.0) / (b.rescales + 1.0) - _RESCALES_GOAL, 0.0)
        losses.append(violations + _POD_WEIGHT * pods + _RESCALE_WEIGHT * rescales)
    return float(np.mean(losses))


def total(folds: Iterable[Fold | Judged]) -> tuple[Totals, Totals]:
    """Ours and the reference's over all folds, or families."""
    ours, reference = Totals(), Totals()
    for fold in folds:
        ours, reference = ours + fold.ours, reference + fold.reference
    return ours, reference


def _rows(trial: Trial) -> Iterable[tuple[str, Traffic, int]]:
    """Family, traffic and the minutes of it that count; all traffics are made equally long."""
    for name, phases in PHASES.items():
        traffic = from_phases(name, phases)
        yield from [(name, _lasting(traffic, trial.seconds), int(traffic.end // 60))] * trial.members
    whole = int(trial.seconds // 60)
    for name, traffic in STEADY.items():
        yield from [(name, _lasting(traffic, trial.seconds), whole)] * trial.members
    for name in FAMILIES:
        for number in range(trial.members):
            yield name, member(name, number, seconds=trial.seconds), whole
    for name, windows in (trial.traces or {}).items():
        for window in windows:
            yield name, _lasting(window, trial.seconds), whole


def _lasting(traffic: Traffic, seconds: float) -> Traffic:
    return replace(traffic, end=traffic.start + seconds)


def _of_row(result: Result, row: int, minutes: int) -> Totals:
    p95: Floats = result.p95[row, :minutes]
    return Totals(float((p95 > 3.0).sum()), float(result.pods[row, :minutes].sum()), float(result.rescales[row]))
