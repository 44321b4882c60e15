"""A picture for each workload: how long its Job took, and how long its pods, by scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from e2e.compare.report import Cell, Figures
from e2e.compare.workloads import WORKLOADS


def draw(found: Sequence[Cell], directory: Path) -> list[Path]:
    """Draw one picture for each workload of the cells, a panel for each number of pods; returns their paths."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    paths = []
    for name in dict.fromkeys(cell.workload for cell in found):
        own = [cell for cell in found if cell.workload == name]
        figure, panels = plt.subplots(1, len(own), figsize=(4.2 * len(own), 3.6), layout="constrained", squeeze=False)
        for panel, cell in zip(panels[0], own):
            _panel(panel, cell)
        panels[0][0].set_ylabel("a pod: PodScheduled to its end, mean (s)")
        figure.suptitle(WORKLOADS[name].title, fontsize=10)
        directory.mkdir(parents=True, exist_ok=True)
        paths.append(directory / f"compare-{name}.png")
        figure.savefig(paths[-1], dpi=100)
        plt.close(figure)
    return paths


def _panel(panel: Any, cell: Cell) -> None:
    sweep = sorted(cell.sweep, key=lambda figures: int(figures.scheduler.removesuffix("m")))
    panel.plot([f.job for f in sweep], [f.pod for f in sweep], color="tab:gray", linewidth=1)
    for figures in sweep:
        _point(panel, figures, "tab:gray")
        panel.annotate(figures.scheduler, (figures.job, figures.pod), xytext=(4, 4), textcoords="offset points")
    _point(panel, cell.concerto, "tab:blue")
    panel.annotate("Concerto", (cell.concerto.job, cell.concerto.pod), xytext=(4, 4), textcoords="offset points")
    panel.set_title(f"{cell.pods} pods", fontsize=9)
    panel.margins(0.2)
    panel.set(xlabel="the Job (s)", xlim=(0, None), ylim=(0, None))
    panel.grid(alpha=0.3)


def _point(panel: Any, figures: Figures, colour: str) -> None:
    """The median, with lines from the least to the greatest of the rounds."""
    panel.errorbar(
        figures.job,
        figures.pod,
        xerr=[[figures.job - min(figures.jobs)], [max(figures.jobs) - figures.job]],
        yerr=[[figures.pod - min(figures.pods)], [max(figures.pods) - figures.pod]],
        fmt="o",
        color=colour,
        markersize=5,
        linewidth=1,
    )
