"""Concerto as its users run it: its images on real nodes, a Deployment and a DaemonSet, applied with kubectl."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from e2e.image.build import Images, cached
from e2e.testbed.clusters import ClusterError, LocalControlPlane
from e2e.testbed.nodes import RealNodes
from e2e.testbed.system import REPOSITORY, Say, System
from e2e.testbed.waiting import PATIENCE_SECONDS

OVERLAY = REPOSITORY / "manifests" / "overlays" / "demo"
NAMESPACE = "concerto-system"


@contextlib.contextmanager
def installed_system(
    cluster: LocalControlPlane,
    say: Say,
    names: Sequence[str] = ("n1", "n2"),
    *,
    overlay: Path = OVERLAY,
    images: Images | None = None,
) -> Iterator[System]:
    """Real nodes that hold our images, with Concerto installed and measuring.

    Args:
        cluster: where; with a kube-scheduler, which places the operator and the agents.
        say: called with what is done.
        names: of the nodes.
        overlay: what is applied.
        images: ours; those of this very code if not given.

    Raises:
        NodeError: real nodes cannot run here.
        CannotBuild: images cannot be built here.
        ClusterError: Concerto does not come up.
    """
    images = images or cached(say)
    say(f"images: {images}")
    say(f"nodes: {', '.join(names)}: kubelet, containerd and runc in namespaces (10 s)")
    with RealNodes(cluster, names) as nodes:
        nodes.wait_ready()
        say(f"images: imported into each node; kubectl apply -k crds, then -k {overlay.relative_to(REPOSITORY)} (25 s)")
        import_images(nodes, images)
        install(cluster, overlay)
        system = System(cluster, list(names), nodes, {}, None, cluster.logs, overlay)
        wait_rolled_out(cluster)
        system.wait_measured()
        say("operator and agents: Running, and every node is measured")
        yield system


def import_images(nodes: RealNodes, images: Images) -> None:
    """Give our images to every node, all at once."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda node: node.import_image(images.archive), nodes))


def install(cluster: LocalControlPlane, overlay: Path = OVERLAY) -> None:
    """What docs/install.md says."""
    cluster.kubectl("apply", "-k", str(REPOSITORY / "crds"))
    cluster.wait("--for=condition=Established", "crd", "--all")
    cluster.kubectl("apply", "-k", str(overlay))


def wait_rolled_out(cluster: LocalControlPlane, timeout_seconds: float = PATIENCE_SECONDS) -> None:
    """Return when all workloads are up to date and ready.

    Raises:
        ClusterError: they are not in time; with what their pods say.
    """
    for workload in ("daemonset/concerto-agent", "deployment/concerto-operator", "deployment/concerto-autoscaler"):
        wait = f"--timeout={timeout_seconds:.0f}s"
        try:
            cluster.kubectl("rollout", "status", "-n", NAMESPACE, workload, wait, timeout_seconds=timeout_seconds + 10)
        except ClusterError as error:
            pods = cluster.kubectl("describe", "pods", "-n", NAMESPACE, check=False)
            raise ClusterError(f"{error}\n{pods[-6000:]}") from error
