"""Where readings come from: metrics.k8s.io, custom.metrics.k8s.io and external.metrics.k8s.io, as HPA reads them."""

from concerto.controllers.metrics_sources.custom import CustomMetrics
from concerto.controllers.metrics_sources.external import external_metric
from concerto.controllers.metrics_sources.resource import PodUsage, ResourceMetrics

__all__ = ["CustomMetrics", "PodUsage", "ResourceMetrics", "external_metric"]
