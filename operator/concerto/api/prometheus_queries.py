"""PromQL for nodes, as the usual exporters name their metrics.

``$window`` stands for ``spec.load.window``, and ``$nodeLabel`` for the label that holds the node's name or address.
"""

from __future__ import annotations

import re
from typing import Literal

Exporter = Literal["NodeExporter", "CAdvisor"]
Statistic = Literal["average", "deviation", "latest"]

_STEP = "30s"
"""Distance of the points that a deviation is computed from."""
_RATE = "2m"
"""Time over which a point of a rate is taken: two scrapes, where the interval is Prometheus's default of a minute."""

_ROOT_CPU = 'rate(container_cpu_usage_seconds_total{id="/"}[%s])'
_ROOT_MEMORY = 'container_memory_working_set_bytes{id="/"}'


def default_queries(exporter: Exporter) -> dict[tuple[str, Statistic], str]:
    """Queries by resource and statistic; each returns one series for each node, a fraction of the machine.

    NodeExporter: ``node_cpu_seconds_total`` without idle and iowait, and ``node_memory_MemAvailable_bytes``. CAdvisor:
    what kubelet's ``/metrics/cadvisor`` has of the root cgroup.
    """
    if exporter == "NodeExporter":
        idle = _sum('rate(node_cpu_seconds_total{mode=~"idle|iowait"}[%s])')
        cpu = f"1 - {idle} / {_sum('rate(node_cpu_seconds_total[%s])')}"
        left, there = _sum("node_memory_MemAvailable_bytes"), _sum("node_memory_MemTotal_bytes")
        memory = f"1 - {left} / {there}"
    else:
        cpu = f"{_sum(_ROOT_CPU)} / {_sum('machine_cpu_cores')}"
        memory = f"{_sum(_ROOT_MEMORY)} / {_sum('machine_memory_bytes')}"
    recent = cpu.replace("%s", _RATE)
    return {
        ("cpu", "average"): cpu.replace("%s", "$window"),
        ("cpu", "deviation"): f"stddev_over_time(({recent})[$window:{_STEP}])",
        ("cpu", "latest"): recent,
        ("memory", "average"): f"avg_over_time(({memory})[$window:{_STEP}])",
        ("memory", "deviation"): f"stddev_over_time(({memory})[$window:{_STEP}])",
        ("memory", "latest"): memory,
    }


def ranges(expression: str) -> tuple[str, ...]:
    """The ranges that an expression names, without steps of subqueries: ``5m`` of ``x[5m]`` and of ``x[5m:30s]``."""
    without_text = re.sub(r"\"[^\"]*\"|'[^']*'|`[^`]*`", "", expression)
    return tuple(re.findall(r"\[\s*([0-9a-z$]+)\s*(?::[^\]]*)?\]", without_text))


def _sum(vector: str) -> str:
    return f"sum by ($nodeLabel) ({vector})"
