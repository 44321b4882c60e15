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
from concerto.simulation.autoscaling.traffic import PHASES, STEADY, Traffic, from_phases

GRID = {
    "rise_room": (3.0, 4.0),
    "min_rise": (1.0, 2.0),
    "hold_room": (1.5, 3.0),
}
"""Values of `ActionSettings` that are tried."""
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


def total(folds: Iterable[Fold]) -> tuple[Totals, Totals]:
    """Ours and the reference's over all folds."""
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
