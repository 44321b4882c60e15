"""What the metrics API says. A test replaces whole readings at once, so that no reader sees half of a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Labels = Mapping[str, str]


@dataclass(frozen=True)
class PodReading:
    """One pod: its labels (the real API selects by them), and usage of each container, as quantities."""

    labels: Labels
    containers: Mapping[str, Mapping[str, str]]
    window: str = "30s"
    custom: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Readings:
    """All there is at one moment.

    Attributes:
        pods: by namespace and name.
        objects: custom metrics, by namespace, resource (``targets.e2e.concerto.dev``), name and metric.
        external: values of the series of a metric, by namespace and metric.
        broken: API groups that answer 500.
        hanging: API groups that never answer.
    """

    pods: Mapping[tuple[str, str], PodReading] = field(default_factory=dict)
    objects: Mapping[tuple[str, str, str, str], str] = field(default_factory=dict)
    external: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    broken: frozenset[str] = frozenset()
    hanging: frozenset[str] = frozenset()
