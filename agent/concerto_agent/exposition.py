"""Prometheus' text format for a few metrics: its client library would take 1.6 MiB of the agent's memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

NO_LABEL = ""
"""Key of the one value of a metric without a label."""


@dataclass(frozen=True)
class Metric:
    """One metric with its series.

    Attributes:
        name: with ``_total`` at the end of a counter's.
        type: counter or gauge.
        help: one sentence.
        values: by the label's value; of a metric without a label, by NO_LABEL.
        label: name of the one label; None: the metric has none.
    """

    name: str
    type: Literal["counter", "gauge"]
    help: str
    values: Mapping[str, float]
    label: str | None = None


def exposition(metrics: Iterable[Metric]) -> str:
    """The metrics in Prometheus' text format, version 0.0.4."""
    lines = []
    for metric in metrics:
        lines.append(f"# HELP {metric.name} {_escaped(metric.help)}")
        lines.append(f"# TYPE {metric.name} {metric.type}")
        for value, number in metric.values.items():
            labels = "" if metric.label is None else f'{{{metric.label}="{_escaped(value, quotes=True)}"}}'
            lines.append(f"{metric.name}{labels} {_number(number)}")
    return "\n".join(lines) + "\n" if lines else ""


def _escaped(text: str, *, quotes: bool = False) -> str:
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    return text.replace('"', r"\"") if quotes else text


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(float(value))
