"""An aggregated metrics API whose readings the tests set: metrics, custom and external, behind real APIServices."""

from e2e.testbed.metrics_api.readings import Readings
from e2e.testbed.metrics_api.server import MetricsAPI

__all__ = ["MetricsAPI", "Readings"]
