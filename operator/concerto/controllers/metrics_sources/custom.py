"""Metrics of pods and other objects from custom.metrics.k8s.io."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from concerto.api.predictivehpa import ObjectReference
from concerto.api.quantities import milli
from concerto.api.timestamps import parse_timestamp
from concerto.autoscaling.pods import MetricError, Sample
from concerto.controllers.kinds import Kinds
from concerto.kube import KubeError, Session

_GROUP = "/apis/custom.metrics.k8s.io"
_DEFAULT_WINDOW_SECONDS = 60.0
"""What HPA takes for a reading that does not say over how long it is."""


class CustomMetrics:
    """Reads single metrics; which version the API speaks is asked once."""

    def __init__(self, session: Session, kinds: Kinds, *, timeout_seconds: float) -> None:
        """Nothing is asked yet."""
        self._session = session
        self._kinds = kinds
        self._timeout = timeout_seconds
        self._version: str | None = None

    async def of_pods(self, namespace: str, metric: str, pods: str, selector: str) -> dict[str, Sample]:
        """Readings by pod name.

        Args:
            namespace: of the pods.
            metric: its name.
            pods: label selector of the pods.
            selector: label selector of the metric; may be empty.

        Raises:
            MetricError: the API does not answer, or has no reading.
        """
        items = await self._get(f"namespaces/{quote(namespace)}/pods/*/{quote(metric, safe='')}", selector, pods)
        return {item["describedObject"]["name"]: _sample(item) for item in items}

    async def of_object(
        self, namespace: str, metric: str, described: ObjectReference, selector: str
    ) -> tuple[int, float]:
        """(value in thousandths, when it was taken).

        Raises:
            MetricError: the API does not answer, or has no reading, or the kind is unknown.
        """
        if described.kind == "Namespace" and not described.group:
            # Only ever the object's own namespace, whatever name is written
            path = f"namespaces/{quote(namespace)}/metrics/{quote(metric, safe='')}"
        else:
            plural = await self._plural(described)
            path = f"namespaces/{quote(namespace)}/{plural}/{quote(described.name)}/{quote(metric, safe='')}"
        items = await self._get(path, selector, None)
        sample = _sample(items[0])
        return sample.value, sample.timestamp

    async def _plural(self, described: ObjectReference) -> str:
        try:
            resource = await self._kinds.find(described)
        except KubeError as error:
            raise MetricError(f"unable to find kind {described.kind}: {error}") from error
        return f"{resource.plural}.{resource.group}" if resource.group else resource.plural

    async def _get(self, path: str, selector: str, pods: str | None) -> list[Mapping[str, Any]]:
        params = {"metricLabelSelector": selector} if selector else {}
        if pods:
            params["labelSelector"] = pods
        try:
            if self._version is None:
                group = await self._session.request("GET", _GROUP, timeout_seconds=self._timeout, attempts=1)
                self._version = group["preferredVersion"]["version"]
            answer = await self._session.request(
                "GET", f"{_GROUP}/{self._version}/{path}", params=params, timeout_seconds=self._timeout, attempts=1
            )
            items: list[Mapping[str, Any]] = answer.get("items") or []
        except (KubeError, KeyError) as error:
            self._version = None  # perhaps another adapter, of another version, has taken over
            raise MetricError(f"unable to fetch metrics from custom metrics API: {error}") from error
        if not items:
            raise MetricError("no metrics returned from custom metrics API")
        return items


def _sample(item: Mapping[str, Any]) -> Sample:
    try:
        window = item.get("windowSeconds")
        return Sample(
            milli(item["value"]),
            parse_timestamp(item["timestamp"]),
            _DEFAULT_WINDOW_SECONDS if window is None else float(window),
        )
    except (ValueError, KeyError) as error:
        raise MetricError(f"unable to read metrics from custom metrics API: {error}") from error
