"""Test clusters: whichever this machine offers, and a local control plane of real parts where it offers none."""

from e2e.testbed.clusters.binaries import Binaries, Unusable
from e2e.testbed.clusters.cluster import Cluster, ClusterError
from e2e.testbed.clusters.local import LocalControlPlane
from e2e.testbed.clusters.providers import NoCluster, find_binaries, open_cluster

__all__ = [
    "Binaries",
    "Cluster",
    "ClusterError",
    "LocalControlPlane",
    "NoCluster",
    "Unusable",
    "find_binaries",
    "open_cluster",
]
