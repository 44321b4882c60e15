"""`concerto top node NAME`: what the kinds of pods on a node cost, and with --trace the laws' numbers over time."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from concerto.capacity.kinds.cost import Cost, cpu_in_words, memory_in_words, significant
from concerto.cli.node_traces import NodeTrace
from concerto.scheduling.state.cluster import ClusterState

_UNITS = "PODS AS UNITS, by the node's agent"
_KINDS = "BY KIND, by the operator"


def kinds_table(cluster: ClusterState, node: str) -> str:
    """One line for each kind of pods on the node: how many there are, and what one of them costs."""
    row = cluster.row_of.get(node)
    found = [] if row is None else cluster.kinds.on_row(row)
    if not found:
        return f"No pods that count are on node {node}."
    rows = [["KIND", "PODS", "CPU", "CORE-SECONDS", "MEMORY", "KNOWN FROM"]]
    for key, cost, pods in found:
        known = "nothing" if not cost.known else _evidence(cost)
        work = "-" if cost.work is None else f"{significant(cost.work):g}"
        memory = memory_in_words(cluster.kinds.loads.memory_of(cost))
        rows.append([key, str(pods), cpu_in_words(cost.share), work, memory, known])
    return aligned(rows)


def _evidence(cost: Cost) -> str:
    pods = max(1, round(cost.pods))
    one, many = ("has ended", "have ended") if cost.basis == "Ended" else ("runs", "run")
    return f"1 pod that {one}" if pods == 1 else f"{pods} pods that {many}"


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells as a table for a terminal."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


def trace_tables(agent: NodeTrace, operator: NodeTrace) -> str:
    """Both laws, a line for each moment of the traces."""
    parts = []
    for title, trace in ((_UNITS, agent), (_KINDS, operator)):
        rows = [["AT", *(heading(name) for name in trace.names)]]
        for at, values in zip(trace.times, trace.values):
            clock = time.strftime("%H:%M:%S", time.localtime(at))
            rows.append([clock, *(cell(value, unit) for value, unit in zip(values, trace.units))])
        parts.append(f"{title}\n{aligned(rows) if len(rows) > 1 else 'Nothing has been kept yet.'}")
    return "\n\n".join(parts)


def heading(name: str) -> str:
    """``headRoom`` as HEAD ROOM."""
    return "".join(f" {c}" if c.isupper() else c.upper() for c in name)


def cell(value: float, unit: str) -> str:
    """A number in its unit; - where it is unknown."""
    if not math.isfinite(value):
        return "-"
    if unit == "share":
        return f"{value:.0%}"
    if unit == "bytes":
        return ("-" if value < 0 else "") + memory_in_words(abs(value))
    return f"{value:.2f}" if value != int(value) else f"{value:.0f}"


def plot_traces(path: Path, node: str, agent: NodeTrace, operator: NodeTrace) -> None:
    """Draw both laws over time: pods and the window, demand, and what is committed by kind.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: it draws no files with such an ending.
        OSError: the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 8), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(4, 1, sharex=True)
    end = max([*agent.times[-1:], *operator.times[-1:]], default=0.0)
    lines: Sequence[tuple[NodeTrace, str, Sequence[str]]] = (
        (agent, "pods", ("pods", "window", "published")),
        (agent, "tasks per CPU; pods", ("demand", "cpu", "tokens")),
        (operator, "cores", ("committed", "left", "system")),
        (operator, "core-seconds", ("tokens",)),
    )
    for panel, (trace, unit, names) in zip(panels, lines):
        _panel(panel, trace, names, end)
        panel.set_ylabel(unit)
    panels[0].set_title(f"node {node}: {_UNITS}", loc="left", fontsize=9)
    panels[2].set_title(_KINDS, loc="left", fontsize=9)
    panels[-1].set_xlabel("seconds before the last moment")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format=path.suffix[1:] or "png", dpi=100)


def _panel(panel: Any, trace: NodeTrace, names: Sequence[str], end: float) -> None:
    at = [t - end for t in trace.times]
    for name in names:
        panel.step(at, trace.column(name), where="post", linewidth=1, label=heading(name).lower())
    panel.grid(alpha=0.3)
    panel.axhline(0.0, color="grey", linewidth=0.5)
    panel.legend(loc="upper left", fontsize=8)
