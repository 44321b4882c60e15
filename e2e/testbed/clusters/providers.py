"""Ways to a test cluster, tried in order: the first that this machine offers is taken."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.testbed.clusters.binaries import Binaries, Say, Unusable, cache_directory, find_installed, find_or_build
from e2e.testbed.clusters.cluster import Cluster
from e2e.testbed.clusters.local import LocalControlPlane

# pytest-kind's own default is too old for Kubernetes 1.34
KIND_VERSION = "v0.31.0"
KIND_IMAGE = "kindest/node:v1.35.0@sha256:452d707d4862f52530247495d180205e029056831160e22870e37e3f6c1ac31f"

REMEDIES = """Any one of these would do:
  --kubeconfig FILE            a cluster that the tests may do anything to (Kubernetes 1.34 or newer)
  a Docker engine              that answers `docker info`; pytest-kind then makes a cluster
  KUBEBUILDER_ASSETS or PATH   with etcd (3.5.13 or newer), and kube-apiserver (1.34 or newer), kube-controller-manager
                               and kubectl in one folder
  Go (1.26 or newer)           builds them once, from their modules, into a cache (KUBERNETES_VERSION=1.35.4
                               chooses another release than the default)"""


class NoCluster(Exception):
    """This machine offers no way to a test cluster.

    Attributes:
        refusals: what was tried, and why it would not do.
    """

    def __init__(self, refusals: list[str]) -> None:
        self.refusals = refusals
        super().__init__("\n".join(["no Kubernetes API server to test on:", *(f"  {r}" for r in refusals), REMEDIES]))


@contextmanager
def open_cluster(say: Say, *, kubeconfig: str | None = None, keep: bool = False) -> Iterator[Cluster]:
    """The cluster to test on, for as long as the context lasts.

    Args:
        say: prints a line: what is tried, taken and waited for.
        kubeconfig: a cluster that is there already, and stays.
        keep: leave a kind cluster behind.

    Raises:
        NoCluster: there is no way to one.
    """
    refusals: list[str] = []
    ways: list[tuple[str, Callable[[], Callable[[], Iterator[Cluster]]]]] = [
        ("--kubeconfig", lambda: _given(kubeconfig)),
        ("Docker", lambda: _kind(keep)),
        ("installed programs", lambda: _local(find_installed())),
        ("Go", lambda: _local(find_or_build(say))),
    ]
    for name, way in ways:
        try:
            opened = contextmanager(way())()
        except Unusable as error:
            refusals.append(f"{name}: {error}")
            continue
        with opened as cluster:
            say(f"cluster: {cluster.origin}")
            for refusal in refusals:
                say(f"  passed over {refusal}")
            yield cluster
        return
    raise NoCluster(refusals)


def find_binaries(say: Say) -> Binaries:
    """The programs of a local control plane, from where they are installed or built from source.

    Raises:
        NoCluster: there is no way to them.
    """
    refusals = []
    for name, way in (("installed programs", find_installed), ("Go", lambda: find_or_build(say))):
        try:
            return way()
        except Unusable as error:
            refusals.append(f"{name}: {error}")
    raise NoCluster(refusals)


def _given(kubeconfig: str | None) -> Callable[[], Iterator[Cluster]]:
    if not kubeconfig:
        raise Unusable("not given")

    def opened() -> Iterator[Cluster]:
        with tempfile.TemporaryDirectory(prefix="concerto-cluster-") as work_dir:
            yield Cluster(f"--kubeconfig {kubeconfig}", Path(kubeconfig).resolve(), _any_kubectl(), Path(work_dir))

    return opened


def _any_kubectl() -> Path:
    built = cache_directory() / "kubectl"
    found = str(built) if built.exists() else shutil.which("kubectl")
    if found is None:
        raise Unusable("no kubectl on PATH")
    return Path(found)


def _kind(keep: bool) -> Callable[[], Iterator[Cluster]]:
    if shutil.which("docker") is None:
        raise Unusable("no docker command on PATH")
    try:
        # A client alone does not count
        engine = subprocess.run(["docker", "info"], capture_output=True, text=True, timeout=5)
    except subprocess.TimeoutExpired as error:
        raise Unusable("no answer from its engine within 5 s") from error
    if engine.returncode or "Server Version" not in engine.stdout:
        reason = (engine.stderr.strip() or "`docker info` shows no server").splitlines()[-1]
        raise Unusable(f"its engine does not answer ({reason})")

    def opened() -> Iterator[Cluster]:
        import pytest_kind.cluster as pytest_kind

        pytest_kind.KIND_VERSION = os.environ.get("KIND_VERSION", KIND_VERSION)
        pytest_kind.KUBECTL_VERSION = os.environ.get("KUBECTL_VERSION", "v1.35.0")
        installed = shutil.which("kind")
        cluster = pytest_kind.KindCluster(
            "concerto", image=KIND_IMAGE, kind_path=Path(installed) if installed else None
        )
        cluster.create()
        cluster.ensure_kubectl()
        try:
            with tempfile.TemporaryDirectory(prefix="concerto-cluster-") as work_dir:
                yield Cluster(
                    f"kind {pytest_kind.KIND_VERSION} in Docker",
                    cluster.kubeconfig_path.resolve(),
                    cluster.kubectl_path.resolve(),
                    Path(work_dir),
                )
        finally:
            if not keep:
                cluster.delete()

    return opened


def _local(binaries: Binaries) -> Callable[[], Iterator[Cluster]]:
    def opened() -> Iterator[Cluster]:
        with LocalControlPlane(binaries) as control_plane:
            yield control_plane

    return opened
