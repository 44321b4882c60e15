"""Figures of the run at scale, kept size by size in build/scale.json, and the goals that they are compared with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from concerto.controllers.runtime.loop_watchdog import MAX_HELD_SECONDS
from concerto.simulation.scheduling.evaluate import write_section
from e2e.bench.scale import Size
from e2e.testbed.system import REPOSITORY

RESULTS = REPOSITORY / "build" / "scale.json"
DOCS = REPOSITORY / "docs" / "architecture.md"
SECTION = "scale"

Figures = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        what: is measured.
        key: of the figure.
        unit: that it is shown in.
        digits: after the decimal point.
        factor: from the figure to the unit.
        limit: the goal, in the unit: no more than that; None: there is no goal.
    """

    what: str
    key: str
    unit: str = ""
    digits: int = 0
    factor: float = 1.0
    limit: float | None = None

    def shown(self, figures: Figures) -> str:
        """The figure with its unit; a dash if it was not measured."""
        if self.key not in figures:
            return "–"
        return f"{self.factor * figures[self.key]:.{self.digits}f} {self.unit}".rstrip()

    @property
    def goal(self) -> str:
        """The goal with its unit; nothing without one."""
        return "" if self.limit is None else f"≤ {self.limit:g} {self.unit}".rstrip()

    def is_met(self, figures: Figures) -> bool | None:
        """Whether the goal is met; None without goal or figure."""
        if self.limit is None or self.key not in figures:
            return None
        return bool(self.factor * figures[self.key] <= self.limit)


_HELD = 1000 * MAX_HELD_SECONDS
ROWS = (
    Row("start of the process until the first pod is bound", "first_decision_s", "s", 1, limit=30),
    Row("CPU until then", "first_decision_cpu_s", "s", 1),
    Row("the other pods that waited (2 a node), until the last is bound", "placing_s", "s", 1),
    Row("CPU for each of them", "placing_cpu_ms_per_pod", "ms", 2),
    Row("memory of the leader afterwards", "leader_rss_mib_started", "MiB", limit=1536),
    Row("memory of the leader, at most, in the whole run", "leader_peak_mib_after", "MiB", limit=1536),
    Row("memory of the standby, at most, in the whole run", "standby_peak_mib_after", "MiB", limit=1536),
    Row("CPU of the leader with nothing to do but reading what agents publish", "steady_cpu_cores", "cores", 3, 1, 0.5),
    Row("the same of the standby", "standby_steady_cpu_cores", "cores", 3, 1, 0.5),
    Row("writes of all agents meanwhile", "telemetry_writes_per_s", "/s"),
    Row("changes of running pods that the standby takes in for each second of its CPU", "events_per_cpu_s"),
    Row("rate at which pods are created next", "arrivals_per_s", "/s"),
    Row("creation until bound, median", "p50_ms", "ms"),
    Row("creation until bound, 99th percentile", "p99_ms", "ms"),
    Row("placements that the recorder has recomputed", "judged"),
    Row("of these, not allowed", "not_allowed", limit=0),
    Row("pods that come, are placed and go (two thirds of the pods)", "churn_per_s", "/s"),
    Row("CPU of the leader for each", "churn_cpu_ms_per_pod", "ms", 2),
    Row("memory of the leader afterwards, against before", "leader_growth", "%", 1, 100, 10),
    Row("memory of the standby afterwards, against before", "standby_growth", "%", 1, 100, 10),
    Row(
        "longest time that the leader's event loop was held, in the whole run",
        "leader_max_held_s_after",
        "ms",
        0,
        1000,
        _HELD,
    ),
    Row("the same of the standby", "standby_max_held_s_after", "ms", 0, 1000, _HELD),
)


def load(path: Path = RESULTS) -> dict[str, Figures]:
    """What was measured before, by size; nothing if there is no such file."""
    found: dict[str, Figures] = json.loads(path.read_text()) if path.exists() else {}
    return found


def keep(size: Size, figures: Figures, machine: Figures, path: Path = RESULTS) -> None:
    """Store the figures of one size beside those of the others."""
    path.parent.mkdir(exist_ok=True)
    name = f"{size.nodes} nodes, {size.pods} pods"
    path.write_text(json.dumps({**load(path), name: {**figures, "size": asdict(size), "machine": machine}}, indent=2))


def verdicts(figures: Figures) -> list[str]:
    """A line for each goal."""
    return [
        f"{'met' if met else 'MISSED'}: {row.what}: {row.shown(figures)} (goal {row.goal})"
        for row in ROWS
        if (met := row.is_met(figures)) is not None
    ]


def table(by_size: Mapping[str, Figures]) -> list[str]:
    """The figures of all sizes as a table in Markdown."""
    sizes = sorted(by_size, key=lambda name: int(name.split(" ", 1)[0]))
    lines = [f"| | goal | {' | '.join(sizes)} |", f"| --- | ---: |{' ---: |' * len(sizes)}"]
    for row in ROWS:
        shown = [row.shown(by_size[size]) + (" (missed)" * (row.is_met(by_size[size]) is False)) for size in sizes]
        lines.append(f"| {row.what} | {row.goal} | {' | '.join(shown)} |")
    return lines


def write_docs(by_size: Mapping[str, Figures], path: Path = DOCS) -> None:
    """Put the table into the page, if anything was measured."""
    if by_size:
        write_section(path, SECTION, table(by_size))
