"""Load, forecast, replicas and latency over time, as a person reads them without a caption."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from concerto.simulation.autoscaling.evaluation import Cell

SHOWN = ("HPA v2", "Auto", "perfect forecast")


def plot_cell(cell: Cell, directory: Path) -> Path:
    """Plot the first replicate of a cell; returns the file."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [name for name in SHOWN if name in cell.results]
    figure, (load, latency) = pyplot.subplots(2, 1, figsize=(12, 7), sharex=True, layout="constrained")
    bad = ", ".join(f"{name} {cell.results[name].violations[0]:.0f}" for name in shown)
    figure.suptitle(f"{cell.traffic}: pods need {cell.startup:.0f} s to start\nminutes above the objective: {bad}")
    minutes = np.arange(cell.results[shown[0]].demand.shape[1])
    load.plot(minutes, cell.results[shown[0]].demand[0], color="black", linewidth=2, label="replicas the load needs")
    for name, colour in zip(shown, ("tab:red", "tab:blue", "tab:gray"), strict=False):
        result = cell.results[name]
        load.step(minutes, result.pods[0], where="mid", color=colour, label=f"{name}: pods")
        if name == "Auto":
            load.plot(minutes, result.forecast[0], color=colour, linestyle=":", label="Auto: forecast asks for")
        latency.plot(minutes, result.p95[0], color=colour, label=name)
    latency.axhline(3.0, color="black", linestyle="--", linewidth=1, label="objective: 3 x unloaded")
    load.set_ylabel("replicas")
    latency.set_ylabel("p95 latency, times the unloaded one")
    latency.set_yscale("log")
    latency.set_yticks([1, 2, 3, 5, 10], labels=["1", "2", "3", "5", "10"])
    latency.minorticks_off()
    latency.set_xlabel("minutes")
    for axis in (load, latency):
        axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small")
        axis.grid(alpha=0.3)
    path = directory / f"{cell.traffic}-{cell.startup:.0f}s.png"
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path
