"""Metrics of pods and other objects from custom.metrics.k8s.io."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

from concerto.api.predictivehpa import ObjectReference
from concerto.api.quantities import milli
from concerto.api.timestamps import parse_timestamp
from concerto.autoscaling.pods import MetricError, Sample
from concerto.controllers.autoscaling.sources.answers import items_of, understanding
from concerto.kube import KubeError, Session
from concerto.kube.discovery import Kinds

_Read = TypeVar("_Read")
_GROUP = "/apis/custom.metrics.k8s.io"
_LARGEST_GROUP_BYTES = 2**16
"""Of the answer that names the versions of the API."""
_DEFAULT_WINDOW_SECONDS = 60.0
"""Window of a reading that does not give its own, as HPA assumes."""


class CustomMetrics:
    """Reads single metrics; the API's version is asked for once."""

    def __init__(self, session: Session, kinds: Kinds, *, timeout_seconds: float) -> None:
        self._session = session
        self._kinds = kinds
        self._timeout = timeout_seconds
        self._version: str | None = None

    async def of_pods(self, namespace: str, metric: str, pods: str, selector: str, *, now: float) -> dict[str, Sample]:
        """Readings by pod name.

        Args:
            namespace: of the pods.
            metric: its name.
            pods: label selector of the pods.
            selector: label selector of the metric; may be empty.
            now: seconds; a reading without a time is of now, as for HPA.

        Raises:
            MetricError: the API does not answer, or has no reading.
        """
        path = f"namespaces/{quote(namespace)}/pods/*/{quote(metric, safe='')}"
        return dict(await self._get(path, selector, pods, lambda item: _named_sample(item, now)))

    async def of_object(self, namespace: str, metric: str, described: ObjectReference, selector: str) -> int:
        """Its value in thousandths.

        Raises:
            MetricError: the API does not answer, or has no reading, or the kind is unknown.
        """
        if described.kind == "Namespace" and not described.group:
            # Only ever the object's own namespace, whatever name is written
            path = f"namespaces/{quote(namespace)}/metrics/{quote(metric, safe='')}"
        else:
            plural = await self._plural(described)
            path = f"namespaces/{quote(namespace)}/{plural}/{quote(described.name)}/{quote(metric, safe='')}"
        values = await self._get(path, selector, None, lambda item: milli(item["value"]))
        if len(values) != 1:
            # As autoscaling/v2 does: none of them is known to be the one that is meant
            raise MetricError(f"the custom metrics API returned {len(values)} results when asked for exactly one")
        return values[0]

    async def _plural(self, described: ObjectReference) -> str:
        try:
            resource = await self._kinds.find(described)
        except KubeError as error:
            raise MetricError(f"unable to find kind {described.kind}: {error}") from error
        return f"{resource.plural}.{resource.group}" if resource.group else resource.plural

    async def _get(
        self, path: str, selector: str, pods: str | None, read: Callable[[Mapping[str, Any]], _Read]
    ) -> list[_Read]:
        """What is read of each item, at least of one."""
        params = {"metricLabelSelector": selector} if selector else {}
        if pods:
            params["labelSelector"] = pods
        try:
            with understanding("custom metrics"):
                if self._version is None:
                    self._version = (await self._ask(_GROUP))["preferredVersion"]["version"]
                path = f"{_GROUP}/{self._version}/{path}"
                items = items_of(self._session, path, params, timeout_seconds=self._timeout)
                found = [read(item) async for item in items]
        except MetricError:
            self._version = None  # perhaps another adapter, of another version, has taken over
            raise
        if not found:
            raise MetricError("no metrics returned from custom metrics API")
        return found

    async def _ask(self, path: str) -> dict[str, Any]:
        return await self._session.get_foreign(path, timeout_seconds=self._timeout, max_bytes=_LARGEST_GROUP_BYTES)


def _named_sample(item: Mapping[str, Any], now: float) -> tuple[str, Sample]:
    name = item["describedObject"]["name"]
    if not isinstance(name, str):
        raise ValueError("a name that is not a string")
    return name, _sample(item, now)


def _sample(item: Mapping[str, Any], now: float) -> Sample:
    window, at = item.get("windowSeconds"), item.get("timestamp")
    seconds = _DEFAULT_WINDOW_SECONDS if window is None else float(window)
    if not 0.0 <= seconds < math.inf:
        raise ValueError(f"a window of {window!r} seconds")
    return Sample(milli(item["value"]), now if at is None else parse_timestamp(at), seconds)
