"""Metrics of things outside of the cluster from external.metrics.k8s.io."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

from concerto.api.quantities import milli, parse_quantity
from concerto.autoscaling.pods import MetricError
from concerto.controllers.autoscaling.sources.answers import items_of, understanding
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
        values = _values(session, namespace, metric, selector, timeout_seconds)
        return min(sum([milli(value) async for value in values]), _LARGEST)


async def external_number(
    session: Session, namespace: str, metric: str, selector: str, *, timeout_seconds: float
) -> float:
    """The same sum as it is, not in whole thousandths."""
    with understanding("external metrics"):
        values = _values(session, namespace, metric, selector, timeout_seconds)
        return float(sum([parse_quantity(value) async for value in values]))


async def _values(
    session: Session, namespace: str, metric: str, selector: str, timeout_seconds: float
) -> AsyncIterator[Any]:
    """The values of all series, at least of one, as they are written."""
    path = f"/apis/external.metrics.k8s.io/v1beta1/namespaces/{quote(namespace)}/{quote(metric, safe='')}"
    params = {"labelSelector": selector} if selector else {}
    is_empty = True
    async for item in items_of(session, path, params, timeout_seconds=timeout_seconds):
        is_empty = False
        yield item["value"]
    if is_empty:
        raise MetricError("no metrics returned from external metrics API")
