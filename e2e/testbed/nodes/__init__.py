"""Real nodes on this machine without a container engine: kubelet, containerd and runc in namespaces of their own.

    with RealNodes(control_plane, ["n1", "n2"]) as nodes:
        nodes.wait_ready()
        nodes["n1"].kill_init()

``python -m e2e.testbed.nodes up`` starts a control plane with nodes to play with, ``down`` removes them.

Modules: `config` (names, addresses, files), `cgroups`, `supervisor` (the process that owns a run), `cleanup` (slots and
what is left in them), `real` (what tests use), `requirements` (what a machine must have); ``inner.sh`` runs inside.
"""

from e2e.testbed.nodes.cleanup import cleanup_stale
from e2e.testbed.nodes.real import NodeError, RealNode, RealNodes
from e2e.testbed.nodes.requirements import real_nodes_available

__all__ = ["NodeError", "RealNode", "RealNodes", "cleanup_stale", "real_nodes_available"]
