"""Where readings come from: the metrics APIs (metrics, custom and external), as HPA reads them, and the node agents."""

from concerto.controllers.autoscaling.sources.agent_tokens import AgentTokens
from concerto.controllers.autoscaling.sources.agents import AgentMetrics, AgentSettings
from concerto.controllers.autoscaling.sources.custom import CustomMetrics
from concerto.controllers.autoscaling.sources.external import external_metric
from concerto.controllers.autoscaling.sources.readings import PodReader, Readings
from concerto.controllers.autoscaling.sources.resource import PodUsage, ResourceMetrics

__all__ = [
    "AgentMetrics",
    "AgentSettings",
    "AgentTokens",
    "CustomMetrics",
    "PodReader",
    "PodUsage",
    "Readings",
    "ResourceMetrics",
    "external_metric",
]
