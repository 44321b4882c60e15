"""CPU and memory of pods from metrics.k8s.io: one list per namespace and round for any number of objects."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from concerto.api.quantities import milli, parse_duration
from concerto.api.timestamps import parse_timestamp
from concerto.autoscaling.pods import MetricError, Sample
from concerto.controllers.autoscaling.sources.answers import NOT_OF_THIS_FORM, items_of, understanding
from concerto.kube import Resource, Session

_FORGOTTEN_SECONDS = 300.0
_TIDY_SECONDS = 30.0
"""How often namespaces are looked through for those that are to be forgotten: thousands may be listed in a round."""
_CONCURRENCY = 32
"""Lists at a time."""
POD_METRICS = Resource("metrics.k8s.io", "v1beta1", "pods", "PodMetrics", True)


@dataclass(frozen=True)
class PodUsage:
    """One pod's reading: usage of each container in thousandths.

    Attributes:
        timestamp: end of the window, seconds.
        window: its length, seconds.
        containers: usage by container and resource.
        wrong: why the reading cannot be understood; empty if it can.
    """

    timestamp: float
    window: float
    containers: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    wrong: str = ""

    def sample(self, resource: str, container: str | None) -> Sample | None:
        """Of one container, or of all together; None if any of them has no such reading.

        Raises:
            MetricError: its reading is malformed.
        """
        if self.wrong:
            raise MetricError(self.wrong)
        if container is not None:
            value = self.containers.get(container, {}).get(resource)
            return None if value is None else Sample(value, self.timestamp, self.window)
        values = [usage.get(resource) for usage in self.containers.values()]
        if not values or None in values:
            return None
        return Sample(sum(v for v in values if v is not None), self.timestamp, self.window)


class ResourceMetrics:
    """Lists a namespace's pod metrics, and keeps the answer for all who ask in the same round."""

    def __init__(
        self, session: Session, clock: Callable[[], float], *, fresh_seconds: float = 5.0, timeout_seconds: float
    ) -> None:
        """Args:
        session: the way to the API server.
        clock: seconds.
        fresh_seconds: an answer serves for so long: the API's own readings are 15 s apart.
        timeout_seconds: for one list, which is not repeated: the next round will ask again.
        """
        self._session = session
        self._clock = clock
        self._fresh = fresh_seconds
        self._timeout = timeout_seconds
        self._limit = asyncio.Semaphore(_CONCURRENCY)
        self._kept: dict[str, tuple[float, asyncio.Task[dict[str, PodUsage]]]] = {}
        self._tidied_at = -math.inf

    async def usage(self, namespace: str) -> Mapping[str, PodUsage]:
        """Readings by pod name.

        Raises:
            MetricError: the API does not answer, or has no reading at all.
        """
        now = self._clock()
        kept = self._kept.get(namespace)
        if kept is None or not 0.0 <= now - kept[0] <= self._fresh:  # a clock that went back, too
            self._tidy(now)
            kept = self._kept[namespace] = (now, asyncio.ensure_future(self._list(namespace)))
        found = await asyncio.shield(kept[1])
        if not found:
            raise MetricError("no metrics returned from resource metrics API")
        return found

    def _tidy(self, now: float) -> None:
        """Namespaces come and go."""
        if abs(now - self._tidied_at) >= _TIDY_SECONDS:
            self._tidied_at = now
            self._kept = {n: k for n, k in self._kept.items() if abs(now - k[0]) <= _FORGOTTEN_SECONDS}

    async def _list(self, namespace: str) -> dict[str, PodUsage]:
        with understanding("resource metrics"):
            path = POD_METRICS.path(namespace)
            async with self._limit:
                items = items_of(self._session, path, timeout_seconds=self._timeout)
                return {item["metadata"]["name"]: _understood(item) async for item in items}


def _understood(item: Mapping[str, Any]) -> PodUsage:
    """A malformed reading is the error of the objects that select its pod, not of the whole namespace."""
    try:
        return read_usage(item)
    except (ValueError, *NOT_OF_THIS_FORM) as error:
        return PodUsage(
            0.0, 0.0, wrong=f"pod {item['metadata']['name']}: its metrics cannot be understood: {str(error)[:200]}"
        )


def read_usage(item: Mapping[str, Any]) -> PodUsage:
    """A PodMetrics object.

    Raises:
        ValueError: a quantity, duration or time is not valid ("NaN" is not).
        Exception: it is of another form (one of `answers.NOT_OF_THIS_FORM`).
    """
    return PodUsage(
        parse_timestamp(item["timestamp"]),
        parse_duration(item["window"]),
        {c["name"]: {k: milli(v) for k, v in (c.get("usage") or {}).items()} for c in item.get("containers") or ()},
    )
