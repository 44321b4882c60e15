"""Where readings come from: the metrics APIs that HPA reads (metrics, custom, external), node agents and Prometheus."""

from concerto.controllers.autoscaling.sources.agent_tokens import AgentTokens
from concerto.controllers.autoscaling.sources.agents import AgentMetrics, AgentSettings
from concerto.controllers.autoscaling.sources.custom import CustomMetrics
from concerto.controllers.autoscaling.sources.external import external_metric, external_number
from concerto.controllers.autoscaling.sources.prometheus import PrometheusMetrics, PrometheusServer
from concerto.controllers.autoscaling.sources.readings import PodReader, Readings
from concerto.controllers.autoscaling.sources.resource import PodUsage, ResourceMetrics

__all__ = [
    "AgentMetrics",
    "AgentSettings",
    "AgentTokens",
    "CustomMetrics",
    "PodReader",
    "PodUsage",
    "PrometheusMetrics",
    "PrometheusServer",
    "Readings",
    "ResourceMetrics",
    "external_metric",
    "external_number",
]
