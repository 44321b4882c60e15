"""Metrics of things outside of the cluster from external.metrics.k8s.io."""

from __future__ import annotations

from urllib.parse import quote

from concerto.api.quantities import milli
from concerto.autoscaling.pods import MetricError
from concerto.controllers.autoscaling.sources.answers import LARGEST_BYTES, understanding
from concerto.kube import Session

_LARGEST = 2**63 - 1


async def external_metric(
    session: Session, namespace: str, metric: str, selector: str, *, timeout_seconds: float
) -> int:
    """Sum of all series in thousandths.

    Raises:
        MetricError: the API does not answer, has no series, or one whose value is no quantity.
    """
    path = f"/apis/external.metrics.k8s.io/v1beta1/namespaces/{quote(namespace)}/{quote(metric, safe='')}"
    params = {"labelSelector": selector} if selector else {}
    with understanding("external metrics"):
        answer = await session.get_foreign(
            path, params=params, timeout_seconds=timeout_seconds, max_bytes=LARGEST_BYTES
        )
        items = answer.get("items") or []
        if not items:
            raise MetricError("no metrics returned from external metrics API")
        return min(sum(milli(item["value"]) for item in items), _LARGEST)
