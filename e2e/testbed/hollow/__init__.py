"""Simulated nodes: Node objects whose kubelets and agents are played by one process, with the production maths."""

from e2e.testbed.hollow.fleet import CONTROLLER_MANAGER_FLAGS, Fleet, HollowSettings, open_fleet
from e2e.testbed.hollow.objects import NodeShape

__all__ = ["CONTROLLER_MANAGER_FLAGS", "Fleet", "HollowSettings", "NodeShape", "open_fleet"]
