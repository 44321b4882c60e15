"""Which namespaces wait because looking for nodes for one of their gangs took too long. Pure; time is passed in.

Whoever may create pods could otherwise have such a gang looked at again and again, by a change of its pods or of its
``minCount``, and slow the placement of all other pods.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SlowGangsSettings:
    """How long a namespace waits.

    Attributes:
        first_wait_seconds: after the first gang for which looking took too long; doubles with each further one.
        max_wait_seconds: the doubling ends there. If none took too long for as long after a wait, all begins again.
    """

    first_wait_seconds: float = 1.0
    max_wait_seconds: float = 300.0


@dataclass(slots=True)
class _Wait:
    times: int
    until: float
    pods: int


class SlowGangs:
    """The waits of namespaces. They concern gangs that are as large as the smallest that took too long."""

    def __init__(self, settings: SlowGangsSettings | None = None) -> None:
        self._settings = settings or SlowGangsSettings()
        self._waits: dict[str, _Wait] = {}

    def waits(self, namespace: str, pods: int, now: float) -> bool:
        """Whether no nodes are looked for yet for a gang of so many pods."""
        wait = self._waits.get(namespace)
        return wait is not None and pods >= wait.pods and now < wait.until

    def took_too_long(self, namespace: str, pods: int, now: float) -> float:
        """Looking for nodes for a gang of so many pods did not end in time; returns when it may be looked at again."""
        settings = self._settings
        self._waits = {each: wait for each, wait in self._waits.items() if now < wait.until + settings.max_wait_seconds}
        wait = self._waits.setdefault(namespace, _Wait(0, now, pods))
        seconds = settings.first_wait_seconds * 2.0 ** min(wait.times, 32)
        wait.times += 1
        wait.until = now + min(seconds, settings.max_wait_seconds)
        wait.pods = min(wait.pods, pods)
        return wait.until
