"""``spec.metricProvider`` of a SchedulingProfile: who measures the load of nodes.

The defaults are those of the CRD (crds/schedulingprofiles.yaml).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from concerto.api.prometheus_queries import Exporter, Statistic, default_queries
from concerto.api.quantities import parse_duration

ProviderType = Literal["Agents", "KubernetesMetricsServer", "Prometheus", "LoadWatcher"]

SMOOTHING: dict[ProviderType, int] = {"Agents": 1, "KubernetesMetricsServer": 1, "Prometheus": 5, "LoadWatcher": 5}
"""Samples that a provider's metrics are smoothed over: agents and metrics-server keep single samples, and rates of a
Prometheus overlap (docs/references.md, "Load-aware scores")."""

STATISTICS: dict[str, Statistic] = {"average": "average", "standardDeviation": "deviation", "latest": "latest"}
"""The statistics that a query can return, by their names in objects."""


@dataclass(frozen=True)
class PrometheusQuery:
    """A query whose answer has one series for each node.

    Attributes:
        resource: ``cpu`` or ``memory``.
        statistic: the statistic that it returns.
        expression: PromQL; its values are shares of the machine, 0 to 1.
    """

    resource: str
    statistic: Statistic
    expression: str

    @property
    def name(self) -> str:
        """Its path under ``queries``, such as ``cpu.average``."""
        return f"{self.resource}.{next(k for k, v in STATISTICS.items() if v == self.statistic)}"


@dataclass(frozen=True)
class PrometheusSettings:
    """``spec.metricProvider.prometheus``.

    Attributes:
        address: URL below which Prometheus serves its API.
        queries: the queries; in their expressions ``$nodeLabel`` is replaced already, and ``$window`` is not.
        node_label: label of the series that holds the node's name.
        headers: (name, value) of additional request headers.
        secret_name: Secret in the operator's namespace with credentials and CA.
        authorization: (``Bearer`` or ``Basic``, key in the Secret); None for requests without credentials.
        ca_key: key in the Secret with the trusted CA certificates; empty for those of the system.
        insecure_skip_verify: whether the server's certificate is not verified.
    """

    address: str
    queries: tuple[PrometheusQuery, ...]
    node_label: str = "node"
    headers: tuple[tuple[str, str], ...] = ()
    secret_name: str = "concerto-prometheus"  # not a secret but the name of one
    authorization: tuple[str, str] | None = None
    ca_key: str = ""
    insecure_skip_verify: bool = False

    @classmethod
    def from_raw(cls, raw: Mapping[str, Any]) -> Self:
        """As the API server holds it.

        Raises:
            ValueError: there is neither a query nor an exporter (the CRD refuses this, too).
        """
        exporter: Exporter | None = raw.get("exporter")
        node_label = raw.get("nodeLabel", cls.node_label if exporter is None else "instance")
        given = {
            (resource, STATISTICS[name]): expression
            for resource, by_name in (raw.get("queries") or {}).items()
            for name, expression in by_name.items()
        }
        expressions = (default_queries(exporter) if exporter is not None else {}) | given
        if not expressions:
            raise ValueError("metricProvider.prometheus has neither queries nor an exporter")
        authorization, tls = raw.get("authorization"), raw.get("tls") or {}
        return cls(
            address=raw["address"].rstrip("/"),
            queries=tuple(
                PrometheusQuery(resource, statistic, expression.replace("$nodeLabel", node_label))
                for (resource, statistic), expression in expressions.items()
            ),
            node_label=node_label,
            headers=tuple((h["name"], h["value"]) for h in raw.get("headers") or ()),
            secret_name=raw.get("secretName", cls.secret_name),
            authorization=None
            if authorization is None
            else (authorization.get("type", "Bearer"), authorization.get("key", "token")),
            ca_key=tls.get("caKey", cls.ca_key),
            insecure_skip_verify=tls.get("insecureSkipVerify", cls.insecure_skip_verify),
        )


@dataclass(frozen=True)
class MetricProviderSettings:
    """``spec.metricProvider``: the source of nodes' load for load-aware scores.

    Attributes:
        type: the kind of source.
        interval_seconds: time between two requests.
        timeout_seconds: time limit of a request.
        prometheus: settings of type Prometheus.
        watcher_address: of type LoadWatcher: URL below which it serves ``/watcher``; empty for other types.
    """

    type: ProviderType = "Agents"
    interval_seconds: float = 15.0
    timeout_seconds: float = 5.0
    prometheus: PrometheusSettings | None = None
    watcher_address: str = ""

    @classmethod
    def from_raw(cls, raw: Mapping[str, Any]) -> Self:
        """As the API server holds it.

        Raises:
            ValueError: type Prometheus or LoadWatcher without its settings (the CRD refuses this, too).
        """
        kind: ProviderType = raw.get("type", cls.type)
        if kind == "LoadWatcher" and "loadWatcher" not in raw:
            raise ValueError("metricProvider.loadWatcher is missing, which type LoadWatcher needs")
        if kind == "Prometheus" and "prometheus" not in raw:
            raise ValueError("metricProvider.prometheus is missing, which type Prometheus needs")
        return cls(
            kind,
            parse_duration(raw["interval"]) if "interval" in raw else cls.interval_seconds,
            parse_duration(raw["timeout"]) if "timeout" in raw else cls.timeout_seconds,
            PrometheusSettings.from_raw(raw["prometheus"]) if kind == "Prometheus" else None,
            raw["loadWatcher"]["address"].rstrip("/") if kind == "LoadWatcher" else "",
        )
