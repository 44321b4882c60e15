"""Real nodes on this machine without a container engine: kubelet, containerd and runc in namespaces of their own."""

from e2e.nodes.cleanup import cleanup_stale
from e2e.nodes.real import NodeError, RealNode, RealNodes
from e2e.nodes.requirements import real_nodes_available

__all__ = ["NodeError", "RealNode", "RealNodes", "cleanup_stale", "real_nodes_available"]
