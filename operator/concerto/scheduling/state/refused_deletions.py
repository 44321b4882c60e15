"""Pods that the API server refuses to delete: nobody is evicted together with them in vain. Pure; time is passed in."""

from __future__ import annotations

from dataclasses import dataclass

from concerto.scheduling.state.doubling_waits import DoublingWaits


@dataclass(frozen=True)
class RefusedDeletionsSettings:
    """How long such a pod is not evicted.

    Attributes:
        first_wait_seconds: after the first refusal; doubles with each further one.
        max_wait_seconds: the doubling ends there. As long after the end of a wait, the refusals are forgotten.
    """

    first_wait_seconds: float = 5.0
    max_wait_seconds: float = 3600.0


class RefusedDeletions:
    """Pods by UID, and until when each is not evicted."""

    def __init__(self, settings: RefusedDeletionsSettings | None = None) -> None:
        settings = settings or RefusedDeletionsSettings()
        self._waits: DoublingWaits[str] = DoublingWaits(settings.first_wait_seconds, settings.max_wait_seconds)

    def __bool__(self) -> bool:
        """Whether a deletion was refused lately."""
        return bool(self._waits)

    def refused(self, uid: str, now: float) -> None:
        """The API server has refused to delete the pod."""
        self._waits.begin(uid, now)

    def times(self, uid: str) -> int:
        """How often its deletion was refused."""
        return self._waits.times(uid)

    def waits(self, uid: str, now: float) -> bool:
        """Whether the pod is not to be evicted now."""
        return self._waits.waits(uid, now)
