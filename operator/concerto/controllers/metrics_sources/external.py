"""Metrics of things outside of the cluster from external.metrics.k8s.io."""

from __future__ import annotations

from urllib.parse import quote

from concerto.api.quantities import milli
from concerto.api.timestamps import parse_timestamp
from concerto.autoscaling.pods import MetricError
from concerto.kube import KubeError, Session

_LARGEST = 2**63 - 1


async def external_metric(
    session: Session, namespace: str, metric: str, selector: str, *, timeout_seconds: float
) -> tuple[int, float]:
    """(sum of all series in thousandths, when the first was taken).

    Raises:
        MetricError: the API does not answer, has no series, or one whose value is no quantity.
    """
    path = f"/apis/external.metrics.k8s.io/v1beta1/namespaces/{quote(namespace)}/{quote(metric, safe='')}"
    params = {"labelSelector": selector} if selector else {}
    try:
        answer = await session.request("GET", path, params=params, timeout_seconds=timeout_seconds, attempts=1)
        items = answer.get("items") or []
        if not items:
            raise MetricError("no metrics returned from external metrics API")
        total = min(sum(milli(item["value"]) for item in items), _LARGEST)
        return total, parse_timestamp(items[0]["timestamp"])
    except (KubeError, ValueError, KeyError) as error:
        raise MetricError(f"unable to fetch metrics from external metrics API: {error}") from error
