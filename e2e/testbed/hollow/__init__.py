"""Simulated nodes: Node objects whose kubelets and agents are played by one process, with the production maths."""

from e2e.testbed.hollow.fleet import Fleet, open_fleet
from e2e.testbed.hollow.objects import NodeShape
from e2e.testbed.hollow.settings import CONTROLLER_MANAGER_FLAGS, HollowSettings

__all__ = ["CONTROLLER_MANAGER_FLAGS", "Fleet", "HollowSettings", "NodeShape", "open_fleet"]
