"""Pauses of namespaces after a search for nodes for one of their gangs took too long. Pure; time is passed in.

Each change of a gang's pods or of its ``minCount`` would otherwise start another such search. So a person who may
create pods could slow the placement of all other pods.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SlowGangsSettings:
    """How long a namespace waits.

    Attributes:
        first_wait_seconds: after the first search that took too long; doubles with each further one.
        max_wait_seconds: the doubling ends there. As long after the end of a wait, the next wait is the first again.
    """

    first_wait_seconds: float = 1.0
    max_wait_seconds: float = 300.0


@dataclass(slots=True)
class _Wait:
    times: int
    until: float
    pods: int


class SlowGangs:
    """Waits by namespace, for gangs with at least as many pods as the smallest whose search took too long."""

    def __init__(self, settings: SlowGangsSettings | None = None) -> None:
        self._settings = settings or SlowGangsSettings()
        self._waits: dict[str, _Wait] = {}

    def waits(self, namespace: str, pods: int, now: float) -> bool:
        """Whether a gang of so many pods has to wait."""
        wait = self._waits.get(namespace)
        return wait is not None and pods >= wait.pods and now < wait.until

    def took_too_long(self, namespace: str, pods: int, now: float) -> float:
        """Note a search for a gang of so many pods; returns when the next one may begin, in seconds since the epoch."""
        settings = self._settings
        self._waits = {each: wait for each, wait in self._waits.items() if now < wait.until + settings.max_wait_seconds}
        wait = self._waits.setdefault(namespace, _Wait(0, now, pods))
        seconds = settings.first_wait_seconds * 2.0 ** min(wait.times, 32)
        wait.times += 1
        wait.until = now + min(seconds, settings.max_wait_seconds)
        wait.pods = min(wait.pods, pods)
        return wait.until
