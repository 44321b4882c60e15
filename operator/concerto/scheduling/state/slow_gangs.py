"""Pauses of namespaces after a search for nodes for one of their gangs took too long. Pure; time is passed in.

Each change of a gang's pods or of its ``minCount`` would otherwise start another such search. So a person who may
create pods could slow the placement of all other pods.
"""

from __future__ import annotations

from dataclasses import dataclass

from concerto.scheduling.state.doubling_waits import DoublingWaits


@dataclass(frozen=True)
class SlowGangsSettings:
    """How long a namespace waits.

    Attributes:
        first_wait_seconds: after the first search that took too long; doubles with each further one.
        max_wait_seconds: the doubling ends there. As long after the end of a wait, the next wait is the first again.
    """

    first_wait_seconds: float = 1.0
    max_wait_seconds: float = 300.0


class SlowGangs:
    """Waits by namespace, for gangs with at least as many pods as the smallest whose search took too long."""

    def __init__(self, settings: SlowGangsSettings | None = None) -> None:
        settings = settings or SlowGangsSettings()
        self._waits: DoublingWaits[str] = DoublingWaits(settings.first_wait_seconds, settings.max_wait_seconds)
        self._fewest_pods: dict[str, int] = {}  # of a gang whose search took too long

    def waits(self, namespace: str, pods: int, now: float) -> bool:
        """Whether a gang of so many pods has to wait."""
        return self._waits.waits(namespace, now) and pods >= self._fewest_pods[namespace]

    def took_too_long(self, namespace: str, pods: int, now: float) -> float:
        """Note a search for a gang of so many pods; returns when the next one may begin, in seconds since the epoch."""
        until = self._waits.begin(namespace, now)
        if self._waits.times(namespace) > 1:
            pods = min(pods, self._fewest_pods[namespace])
        self._fewest_pods[namespace] = pods
        self._fewest_pods = {each: fewest for each, fewest in self._fewest_pods.items() if each in self._waits}
        return until
