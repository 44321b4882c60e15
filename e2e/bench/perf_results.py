"""Figures of scheduler_perf, kept row by row in build/scheduler_perf.json: a run may be interrupted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from concerto.simulation.scheduling.evaluate import write_section
from e2e.testbed.system import REPOSITORY

RESULTS = REPOSITORY / "build" / "scheduler_perf.json"
DOCS = REPOSITORY / "docs" / "scheduling.md"
SECTION = "scheduler_perf"

Figures = dict[str, dict[str, Any]]
"""By number of nodes, as text, and by workload: figures of both schedulers and their ratio, or what went wrong."""


def load(path: Path = RESULTS) -> Figures:
    """What was measured before; nothing if there is no such file."""
    found: Figures = json.loads(path.read_text()) if path.exists() else {}
    return found


def keep(figures: Figures, path: Path = RESULTS) -> None:
    """Store what was measured so far."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(figures, indent=2))


def table(figures: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A line for each workload and number of nodes, as a table in Markdown."""
    lines = [
        "| workload | nodes | kube-scheduler, pods/s | Concerto, pods/s | ratio |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for nodes in sorted(figures, key=int):
        for name, found in figures[nodes].items():
            if "error" in found:
                lines.append(f"| {name} | {nodes} | {found['error']} | | |")
                continue
            kube, ours = (found[which]["pods_per_second"] for which in ("kube", "concerto"))
            lines.append(f"| {name} | {nodes} | {kube:.0f} | {ours:.0f} | {found['ratio']:.2f} |")
    return lines


def write_docs(figures: Figures, path: Path = DOCS) -> None:
    """Put the table into the page."""
    write_section(path, SECTION, table(figures))
