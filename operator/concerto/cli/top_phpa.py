"""`concerto top phpa NAMESPACE/NAME`: remembered load and the forecast, as a table and a plot."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from concerto.api.predictivehpa import PredictiveHPA
from concerto.api.timestamps import parse_timestamp
from concerto.autoscaling.history import Floats, Ring
from concerto.cli.top_node import aligned
from concerto.controllers.autoscaling.state import State, read_state
from concerto.kube import Object

_ROWS = 12
_EVERY = 20
"""Samples of 15 s between two lines of the table: five minutes."""


def load_table(obj: Object) -> str:
    """Load of the last hour and the recommendations, in replicas, newest last; the forecast is the last line.

    Raises:
        ValueError: spec or status cannot be read.
    """
    state, shown = _state(obj), (obj.get("status") or {}).get("forecast")
    if not state.fine.values:
        return "No load is remembered yet."
    times, values = series(state.fine)
    rows = [["AT", "LOAD", "RECOMMENDED"]]
    for end in range(len(times) - (min(_ROWS, len(times) // _EVERY or 1) - 1) * _EVERY - 1, len(times), _EVERY):
        part = values[max(0, end - _EVERY + 1) : end + 1]
        load = "-" if np.isnan(part).all() else f"{np.nanmean(part):.2f}"
        recommended = [r.replicas for r in state.memory.recommendations if abs(r.at - times[end]) <= 15.0]
        rows.append([_clock(times[end]), load, str(recommended[-1]) if recommended else "-"])
    if shown is not None:
        text = f"{shown['demand']:.2f} to {shown['upper']:.2f}"
        rows.append([_clock(parse_timestamp(shown["at"])), text, str(shown.get("replicas", "-"))])
    return aligned(rows) + ("" if shown is None else f"\nThe last line is what {shown['model']} expects by then.")


def plot_load(path: Path, obj: Object) -> None:
    """Draw the load of the last hour with the forecast, and of the last days.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: it draws no files with such an ending, or spec or status cannot be read.
        OSError: the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    state, status = _state(obj), obj.get("status") or {}
    figure = Figure(figsize=(8, 6), layout="constrained")
    FigureCanvasAgg(figure)
    hour, days = figure.subplots(2, 1)
    end = (state.fine.last + 0.5) * state.fine.step
    _draw(hour, state.fine, end, 60.0)
    recommended = state.memory.recommendations
    at = [(r.at - end) / 60.0 for r in recommended]
    hour.step(at, [r.replicas for r in recommended], where="post", linewidth=1, label="recommended")
    if (shown := status.get("forecast")) is not None:
        ahead = (parse_timestamp(shown["at"]) - end) / 60.0
        hour.plot([ahead] * 2, [shown["demand"], shown["upper"]], marker="_", color="C3", label="expected, upper end")
    _draw(days, state.coarse, end, 3600.0)
    meta = obj["metadata"]
    hour.set_title(f"PredictiveHPA {meta['namespace']}/{meta['name']}: load in replicas", loc="left", fontsize=9)
    hour.set_xlabel("minutes from the newest sample")
    days.set_xlabel("hours from the newest sample")
    for panel in (hour, days):
        panel.grid(alpha=0.3)
        panel.set_ylim(bottom=0.0)
    hour.legend(loc="upper left", fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format=path.suffix[1:] or "png", dpi=100)


def series(ring: Ring) -> tuple[Floats, Floats]:
    """Middles of a ring's buckets, seconds, and their load in replicas; NaN where nothing was seen."""
    last = (ring.last + 0.5) * ring.step
    values = ring.until(last, len(ring.values))
    return last - ring.step * np.arange(len(values), dtype=float)[::-1], values


def _state(obj: Object) -> State:
    return read_state(PredictiveHPA.from_raw(obj), obj.get("status") or {})


def _draw(panel: Any, ring: Ring, end: float, unit_seconds: float) -> None:
    if ring.values:
        times, values = series(ring)
        panel.plot((times - end) / unit_seconds, values, linewidth=1, label="load")


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))
