"""Results of runs: a table on the terminal, and plots."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from concerto.simulation.scheduling.experiments import Outcome


def print_table(document: dict[str, Any]) -> None:
    """Print medians over seeds, a row for each policy and job."""
    from rich.console import Console
    from rich.table import Table

    seeds = max(len(runs) for runs in document["policies"].values())
    table = Table(title=f"{document['scenario']}: medians over {seeds} seed{'s' if seeds > 1 else ''}")
    table.add_column("policy")
    table.add_column("job")
    headings = ("job s", "pod s mean", "std", "p50", "p99", "pods/node max", "CPU %", "OOM", "double", "lost")
    for heading in headings:
        table.add_column(heading, justify="right")
    latency = any("latency_ms" in m for m in document["medians"].values())
    if latency:
        table.add_column("server p99 ms", justify="right")
    for name, figures in document["medians"].items():
        for index, (job, numbers) in enumerate(figures["jobs"].items()):
            pct = numbers["pct_s"]
            row = [name if index == 0 else "", job, _one(numbers["jct_s"])]
            row += [_two(pct.get(key)) for key in ("mean", "std", "p50", "p99")]
            row.append(_whole(numbers["pods_per_node_max"]))
            if index == 0:
                row.append(_one(100 * figures["utilisation"]))
                row += [_whole(figures[key]) for key in ("oom_kills", "double_binds", "lost_pods")]
                if latency:
                    row.append(_two(figures.get("latency_ms", {}).get("p99")))
            table.add_row(*row)
    console = Console()
    console = console if console.is_terminal else Console(width=150)
    console.print(table)
    if any("gangs" in figures for figures in document["medians"].values()):
        console.print(_gangs_table(document))


def _gangs_table(document: dict[str, Any]) -> Any:
    """A row for each policy: how long its gangs took, and what was wasted (``Gangs.summary``)."""
    from rich.table import Table

    table = Table(title=f"{document['scenario']}: gangs and evictions")
    table.add_column("policy")
    for heading in ("gangs", "done", "median s", "worst s", "waiting core-s", "lost core-s", "evictions"):
        table.add_column(heading, justify="right")
    for name, figures in document["medians"].items():
        gangs = figures["gangs"]
        seconds = [_one(gangs[key]) for key in ("median_s", "worst_s")]
        wasted = [_whole(gangs[key]) for key in ("waiting_core_s", "lost_core_s", "evictions")]
        table.add_row(name, _whole(gangs["count"]), _whole(gangs["complete"]), *seconds, *wasted)
    return table


def _one(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f}"


def _two(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _whole(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def write_plots(directory: Path, title: str, outcomes: Sequence[Outcome]) -> list[Path]:
    """Write a PNG each of pod completion times, pods on nodes and CPU use; over time only the first seed is shown.

    Raises:
        ModuleNotFoundError: matplotlib is missing (install the extra `plots`).
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    directory.mkdir(parents=True, exist_ok=True)
    names = list(dict.fromkeys(outcome.policy for outcome in outcomes))
    firsts = [next(o for o in outcomes if o.policy == name) for name in names]
    figures = {
        "pod-completion": _plot_completion(plt, title, outcomes, names),
        "pods-per-node": _plot_pods(plt, title, firsts),
        "cpu": _plot_cpu(plt, title, firsts),
    }
    written = []
    for kind, figure in figures.items():
        path = directory / f"{title}-{kind}.png"
        figure.savefig(path, dpi=110, bbox_inches="tight")
        plt.close(figure)
        written.append(path)
    return written


def _plot_completion(plt: Any, title: str, outcomes: Sequence[Outcome], names: Sequence[str]) -> Any:
    """The share of pods that have ended, over the time since their start."""
    figure, axes = plt.subplots(figsize=(8, 5))
    for name in names:
        times = np.sort(np.concatenate([o.recorder.completion_seconds() for o in outcomes if o.policy == name]))
        if times.size:
            axes.step(times, np.arange(1, times.size + 1) / times.size * 100, where="post", label=name)
    axes.set(
        title=f"{title}: how long pods take from start to end (further left is better)",
        xlabel="seconds from a pod's start to its end",
        ylabel="share of pods that are done by then (%)",
        ylim=(0, 100),
        xlim=(0, None),
    )
    axes.grid(alpha=0.3)
    axes.legend(title="scheduler")
    return figure


def _plot_pods(plt: Any, title: str, outcomes: Sequence[Outcome]) -> Any:
    """Running pods of each node over time, a panel for each policy."""
    figure, panels = plt.subplots(
        len(outcomes), 1, figsize=(9, 1.9 * len(outcomes) + 1), sharex=True, squeeze=False, layout="constrained"
    )
    highest = max((float(np.max(o.recorder.trace_pods)) for o in outcomes if o.recorder.trace_pods), default=1.0)
    for panel, outcome in zip(panels[:, 0], outcomes):
        pods = np.array(outcome.recorder.trace_pods)
        seconds = np.array(outcome.recorder.trace_times)
        shown = seconds >= 0
        if pods.size:
            panel.plot(seconds[shown], pods[shown], color="tab:blue", alpha=0.25, linewidth=0.8)
            panel.plot(seconds[shown], pods[shown].mean(axis=1), color="black", linewidth=1.6)
        panel.set(ylabel="pods on a node", ylim=(0, highest * 1.05))
        panel.set_title(outcome.policy, loc="left", fontsize=10)
        panel.grid(alpha=0.3)
    panels[-1, 0].set_xlabel("seconds since the jobs were created")
    figure.suptitle(f"{title}: running pods, a thin line for each node, the thick one is their mean")
    return figure


def _plot_cpu(plt: Any, title: str, outcomes: Sequence[Outcome]) -> Any:
    """The cluster's CPU use over time."""
    figure, axes = plt.subplots(figsize=(9, 4.5))
    for outcome in outcomes:
        seconds = np.array(outcome.recorder.trace_times)
        shown = seconds >= 0
        axes.plot(seconds[shown], 100 * np.array(outcome.recorder.trace_utilisation)[shown], label=outcome.policy)
    axes.set(
        title=f"{title}: how busy the cluster's CPUs are (each line ends when its jobs do)",
        xlabel="seconds since the jobs were created",
        ylabel="CPU in use, all nodes (%)",
        ylim=(0, 103),
    )
    axes.grid(alpha=0.3)
    axes.legend(title="scheduler")
    return figure
