"""Metrics of things outside of the cluster from external.metrics.k8s.io."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from concerto.api.quantities import milli, parse_quantity
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
    with understanding("external metrics"):
        values = await _values(session, namespace, metric, selector, timeout_seconds)
        return min(sum(milli(value) for value in values), _LARGEST)


async def external_number(
    session: Session, namespace: str, metric: str, selector: str, *, timeout_seconds: float
) -> float:
    """The same sum as it is, not in whole thousandths."""
    with understanding("external metrics"):
        values = await _values(session, namespace, metric, selector, timeout_seconds)
        return float(sum(parse_quantity(value) for value in values))


async def _values(session: Session, namespace: str, metric: str, selector: str, timeout_seconds: float) -> list[Any]:
    """The values of all series, at least of one, as they are written."""
    path = f"/apis/external.metrics.k8s.io/v1beta1/namespaces/{quote(namespace)}/{quote(metric, safe='')}"
    params = {"labelSelector": selector} if selector else {}
    answer = await session.get_foreign(path, params=params, timeout_seconds=timeout_seconds, max_bytes=LARGEST_BYTES)
    items = answer.get("items") or []
    if not items:
        raise MetricError("no metrics returned from external metrics API")
    return [item["value"] for item in items]
