"""What a test needs of the machine. Where the machine lacks it, the test is skipped with the reason.

In CI a machine without any Kubernetes API server is a failure: a suite that never runs proves nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from e2e.testbed.clusters import Binaries, Cluster, LocalControlPlane, NoCluster, Unusable, find_binaries
from e2e.testbed.clusters.binaries import find_or_build_containerd, find_or_build_metrics_server
from e2e.testbed.guest.requirements import guest_available
from e2e.testbed.network import Network, open_network
from e2e.testbed.nodes import real_nodes_available
from e2e.testbed.prometheus import prometheus_available

IN_CI = os.environ.get("CI", "").lower() in ("1", "true", "yes")
# Lines for the end of the run, in the order in which they were printed
summary_lines: list[str] = []


def add_to_summary(*lines: str) -> None:
    """Print these lines at the end of the run, each once."""
    summary_lines.extend(line for line in lines if line not in summary_lines)


def skip_without_cluster(error: NoCluster) -> NoReturn:
    """Skip the test for want of an API server, and list at the end of the run what would help; in CI it fails."""
    add_to_summary(*str(error).splitlines())
    reason = f"no Kubernetes API server to test on ({'; '.join(error.refusals)})"
    if IN_CI:
        raise pytest.fail.Exception(f"{reason}: in CI this is a failure", pytrace=False) from None
    pytest.skip(reason)


def require_binaries(say: Callable[[str], None]) -> Binaries:
    """The programs of a local control plane, for a test that starts its own."""
    try:
        return find_binaries(say)
    except NoCluster as error:
        skip_without_cluster(error)


def require_local_plane(cluster: Cluster) -> LocalControlPlane:
    """The cluster, if its parts run on this machine and may be stopped and started."""
    if not isinstance(cluster, LocalControlPlane):
        pytest.skip(f"{cluster.origin} does not run on this machine: its parts cannot be stopped, nor can nodes join")
    return cluster


def require_real_nodes(cluster: Cluster, *, cpus: int = 1) -> LocalControlPlane:
    """The cluster, if real nodes of so many CPUs can join it."""
    plane = require_local_plane(cluster)
    require_kubelet(plane)
    if len(os.sched_getaffinity(0)) < cpus:
        pytest.skip(f"this test needs a real node of {cpus} CPUs")
    return plane


def require_guest(cluster: Cluster) -> LocalControlPlane:
    """The cluster, if an emulated machine can join it, and is asked for: it takes minutes."""
    if os.environ.get("CONCERTO_GUEST") != "1":
        pytest.skip("an emulated machine takes minutes: run `make e2e-guest`")
    plane = require_local_plane(cluster)
    available, reason = guest_available(plane.binaries)
    if not available:
        pytest.skip(f"no emulated machine here: {reason}")
    return plane


@contextmanager
def require_network() -> Iterator[Network]:
    """A network that the test can break, for the time of the context."""
    with ExitStack() as stack:
        try:
            network = stack.enter_context(open_network())
        except RuntimeError as error:
            pytest.skip(str(error))
        yield network


def require_metrics_server(say: Callable[[str], None]) -> None:
    """Have metrics-server built now, before anything runs that would share the CPUs with the build."""
    try:
        find_or_build_metrics_server(say)
    except Unusable as error:
        pytest.skip(f"no metrics-server here: {error}")


def require_containerd(say: Callable[[str], None]) -> Path:
    """Folder of containerd 2, built now unless the cache has it."""
    try:
        return find_or_build_containerd(say)
    except Unusable as error:
        pytest.skip(f"no containerd 2 here: {error}")


def require_prometheus() -> None:
    """Skip the test unless Prometheus is installed."""
    available, reason = prometheus_available()
    if not available:
        pytest.skip(reason)


def require_kubelet(programs: Binaries | LocalControlPlane) -> None:
    """Skip the test unless real nodes can run on this machine."""
    directory = programs.directory if isinstance(programs, Binaries) else programs.binaries
    available, reason = real_nodes_available(directory)
    if not available:
        pytest.skip(f"no real nodes here: {reason}")
