"""Write the statuses of PredictiveHPAs, so that none replaces one that was made later.

An attempt that the API server takes its time for may be carried out after a later one, when nobody waits for it any
more. So each names the resourceVersion that it was made for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from concerto.controllers.autoscaling.settings import PredictiveHPASettings
from concerto.controllers.autoscaling.status import merge_patch
from concerto.controllers.autoscaling.tracked import TrackedObject
from concerto.kube import Conflict, KubeError, NotFound, Object, Session
from concerto.kube.resources import PREDICTIVE_HPAS

logger = logging.getLogger(__name__)

_REMEMBERED = frozenset({"history", "recommendations", "initialization", "forecast", "downscaleWindow"})
"""Members of the status that change at every sync. A change of these alone is written once a status interval."""


class StatusWriter:
    """Writes what has changed in a status. An error is logged: the next sync writes it again."""

    def __init__(self, session: Session, settings: PredictiveHPASettings, may_write: Callable[[], bool]) -> None:
        """``may_write``: whether this process leads."""
        self._session = session
        self._interval = settings.status_interval_seconds
        self._may_write = may_write

    async def write(self, tracked: TrackedObject, status: Mapping[str, Any], now: float) -> None:
        """Write what has changed; a change of remembered members alone waits for the status interval."""
        patch = merge_patch(tracked.status, status)
        if set(patch) - _REMEMBERED or not 0.0 <= now - tracked.written_at < self._interval:
            await self.patch(tracked, patch, now)

    async def patch(self, tracked: TrackedObject, patch: Mapping[str, Any], now: float) -> None:
        """Write a merge patch at once; ``now`` is when the status was made, seconds."""
        try:
            written = await self._sent(tracked, patch)
        except NotFound:
            return
        except KubeError as error:
            logger.warning("PredictiveHPA %s/%s: status: %s", *tracked.key, error)
            return
        tracked.status = written.get("status") or {}
        tracked.version = written["metadata"]["resourceVersion"]
        tracked.written_at = now

    async def _sent(self, tracked: TrackedObject, patch: Mapping[str, Any]) -> Object:
        try:
            return await self._attempt(tracked, patch)
        except Conflict:
            # Somebody else has changed the object, or an earlier attempt was carried out after all. One who has led
            # since is not written over
            seen = await self._session.get(PREDICTIVE_HPAS.path(*tracked.key))
            if seen["metadata"]["uid"] != tracked.obj["metadata"]["uid"] or not self._may_write():
                raise
            tracked.version = seen["metadata"]["resourceVersion"]
            return await self._attempt(tracked, patch)

    async def _attempt(self, tracked: TrackedObject, patch: Mapping[str, Any]) -> Object:
        named = {"uid": tracked.obj["metadata"]["uid"], "resourceVersion": tracked.version}
        path = PREDICTIVE_HPAS.path(*tracked.key, "status")
        return await self._session.patch(path, {"metadata": named, "status": patch})
