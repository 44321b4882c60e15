"""The real metrics-server, as a process beside a control plane whose nodes are real.

with metrics_server.start(control_plane, say):
    control_plane.kubectl("top", "nodes")
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from e2e.testbed.clusters import ClusterError, LocalControlPlane
from e2e.testbed.clusters.binaries import find_or_build_metrics_server
from e2e.testbed.clusters.local import free_ports
from e2e.testbed.clusters.process import Child
from e2e.testbed.metrics_api.aggregation import register, unregister
from e2e.testbed.waiting import eventually

_APIS = {"metrics.k8s.io": "v1beta1"}


@contextmanager
def start(control_plane: LocalControlPlane, say: Callable[[str], None]) -> Iterator[None]:
    """Serve metrics.k8s.io from the kubelets of the cluster's real nodes, measured every 10 s (its least).

    Returns when it has metrics of a node, which takes two measurements (some 20 s). The first time on a machine
    it builds metrics-server, for some 4 minutes.

    Raises:
        Unusable: metrics-server is not there, and cannot be built on this machine.
        ClusterError: it ended.
        AssertionError: it had no metrics of a node in time.
    """
    program = find_or_build_metrics_server(say)
    (port,) = free_ports(1)
    config = control_plane.client_kubeconfig("metrics-server", "metrics-server", "system:masters")
    flags = [f"--{use}kubeconfig={config}" for use in ("", "authentication-", "authorization-")]
    child = Child(
        "metrics-server",
        [
            program,
            *flags,
            f"--secure-port={port}",
            f"--cert-dir={control_plane.work_dir / 'metrics-server'}",
            # Kubelets sign their serving certificates themselves, as most clusters' do
            "--kubelet-insecure-tls",
            "--kubelet-preferred-address-types=InternalIP",
            "--metric-resolution=10s",
            "--kubelet-request-timeout=5s",
        ],
        control_plane.logs / "metrics-server.log",
    )
    try:
        register(control_plane, "metrics-server", port, _APIS)
        _wait_for_nodes(control_plane, child)
        yield
    finally:
        unregister(control_plane, _APIS)
        child.stop()


def _wait_for_nodes(control_plane: LocalControlPlane, child: Child) -> None:
    answer = ""

    def describe() -> str:
        return f"metrics-server has metrics of a node: {answer[:300]}; {child.log_tail()}"

    def look() -> bool:
        nonlocal answer
        answer = control_plane.kubectl("get", "--raw", "/apis/metrics.k8s.io/v1beta1/nodes", check=False)
        if not child.is_running():
            raise ClusterError(f"it ended before {describe()}")
        return '"usage"' in answer

    eventually(describe, look)
