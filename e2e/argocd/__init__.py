"""The real Argo CD: its application controller and repo server as processes, with Debian's redis-server."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from e2e.testbed import REPOSITORY
from e2e.testbed.clusters import Cluster, ClusterError
from e2e.testbed.clusters.local import free_ports
from e2e.testbed.clusters.process import Child, stop_all
from e2e.testbed.waiting import PATIENCE_SECONDS

NAMESPACE = "argocd"
CONCERTO_HEALTH = REPOSITORY / "manifests" / "argocd" / "health"


@dataclass(frozen=True)
class AppState:
    """How an Application stands.

    Attributes:
        sync: Synced, OutOfSync or Unknown.
        health: Healthy, Progressing, Degraded, Missing or Unknown.
        operation: Succeeded, Running, Failed or Error; empty before the first.
        resources: health and message by kind and name.
        results: how applying each went, and what was said, by kind and name.
        message: of the operation, and what Argo CD has to complain about.
    """

    sync: str = "Unknown"
    health: str = "Unknown"
    operation: str = ""
    resources: Mapping[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    results: Mapping[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    message: str = ""

    @property
    def is_good(self) -> bool:
        """Whether it is Synced and Healthy."""
        return (self.sync, self.health) == ("Synced", "Healthy")

    def __str__(self) -> str:
        wrong = [f"{k} {n}: {h} ({m})" for (k, n), (h, m) in self.resources.items() if h not in ("", "Healthy")]
        said = f"{self.sync}, {self.health}, last operation {self.operation or 'none'} {self.message}".strip()
        return "; ".join([said, *wrong])


class ArgoCD:
    """One Argo CD in a cluster; a context manager."""

    def __init__(self, cluster: Cluster, programs: Path, work_dir: Path) -> None:
        """Nothing runs before it is entered.

        Args:
            cluster: where Applications are, and what they apply to.
            programs: see `e2e.testbed.clusters.binaries.find_or_build_argocd`.
            work_dir: for its files and logs.
        """
        self._cluster = cluster
        self._programs = programs
        self._work_dir = work_dir
        self._children: list[Child] = []

    def __enter__(self) -> Self:
        try:
            self._install()
            self._start()
        except BaseException:
            stop_all(self._children)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stop_all(self._children)

    def _install(self) -> None:
        kubectl = self._cluster.kubectl
        manifests = self._programs / "manifests"
        kubectl("create", "namespace", NAMESPACE)
        names = ("application", "appproject", "applicationset")
        kubectl("apply", "--server-side", *(f"-f{manifests}/crds/{name}-crd.yaml" for name in names))
        for name in names:
            # there are no conditions to wait for at first, which kubectl takes for an error
            self._cluster.wait("--for=jsonpath={.status.acceptedNames.kind}", f"crd/{name}s.argoproj.io")
        self._cluster.wait("--for=condition=Established", "crd", "--all")
        for path in sorted((manifests / "base" / "config").glob("argocd-*.yaml")):
            kubectl("apply", "-n", NAMESPACE, "-f", str(path))
        # as docs/argocd.md says
        kubectl("apply", "--server-side", "--field-manager=concerto-health", "-k", str(CONCERTO_HEALTH))
        project = {"sourceRepos": ["*"], "destinations": [{"server": "*", "namespace": "*"}]}
        project["clusterResourceWhitelist"] = [{"group": "*", "kind": "*"}]
        metadata = {"name": "default", "namespace": NAMESPACE}
        kind = {"apiVersion": "argoproj.io/v1alpha1", "kind": "AppProject"}
        self._cluster.apply({**kind, "metadata": metadata, "spec": project})

    def _start(self) -> None:
        redis = shutil.which("redis-server")
        if redis is None:
            raise ClusterError("no redis-server: apt-get install redis-server")
        home = self._work_dir / "argocd"
        folders = {name: home / name for name in ("gpg", "tls", "ssh", "tmp", "bin")}
        for folder in folders.values():
            folder.mkdir(parents=True, exist_ok=True)
        (folders["ssh"] / "ssh_known_hosts").touch()
        environment = {
            "ARGOCD_GPG_ENABLED": "false",
            "ARGOCD_GNUPGHOME": folders["gpg"],
            "ARGOCD_TLS_DATA_PATH": folders["tls"],
            "ARGOCD_SSH_DATA_PATH": folders["ssh"],
            # https://kubernetes.default.svc is what the kubeconfig says
            "ARGOCD_FAKE_IN_CLUSTER": "true",
            "KUBECONFIG": self._cluster.kubeconfig,
            "TMPDIR": folders["tmp"],
            "HOME": home,
            "PATH": f"{self._programs}:{self._cluster.kubectl_path.parent}:{os.environ['PATH']}",
        }
        redis_port, repo_port, repo_metrics, controller_metrics = free_ports(4)

        def run(name: str, command: list[str], **more: str) -> None:
            variables = [f"{key}={value}" for key, value in {**environment, **more}.items()]
            self._children.append(Child(name, ["env", *variables, *command], self._work_dir / f"{name}.log"))

        argocd = str(self._programs / "argocd")
        store = ["--redis", f"localhost:{redis_port}"]
        run("argocd-redis", [redis, "--port", str(redis_port), "--bind", "127.0.0.1", "--save", ""])
        repo = [argocd, "--address", "127.0.0.1", "--port", str(repo_port), "--metrics-port", str(repo_metrics), *store]
        run("argocd-repo-server", repo, ARGOCD_BINARY_NAME="argocd-repo-server")
        controller = [
            argocd, "--kubeconfig", str(self._cluster.kubeconfig), "--namespace", NAMESPACE,
            "--metrics-port", str(controller_metrics), *store, "--repo-server", f"localhost:{repo_port}",
            # health of each resource in the Application, where we can read it
            "--persist-resource-health", "--app-resync", "30",
        ]  # fmt: skip
        run("argocd-application-controller", controller, ARGOCD_BINARY_NAME="argocd-application-controller")

    def application(self, name: str) -> AppState:
        """How an Application stands now."""
        text = self._cluster.get("applications.argoproj.io", name, "-n", NAMESPACE)
        status: dict[str, Any] = text.get("status") or {}
        operation = status.get("operationState") or {}
        return AppState(
            (status.get("sync") or {}).get("status", "Unknown"),
            (status.get("health") or {}).get("status", "Unknown"),
            operation.get("phase", ""),
            {
                (r["kind"], r["name"]): ((h := r.get("health") or {}).get("status", ""), h.get("message", ""))
                for r in status.get("resources") or ()
            },
            {
                (r["kind"], r["name"]): (r.get("status", ""), r.get("message", ""))
                for r in (operation.get("syncResult") or {}).get("resources") or ()
            },
            "; ".join([operation.get("message", ""), *(c["message"] for c in status.get("conditions") or ())]),
        )

    def wait(self, name: str, until: Callable[[AppState], bool], what: str) -> AppState:
        """Return an Application's state once it is as wanted.

        Raises:
            ClusterError: it is not in time; with how it stands.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not until(state := self.application(name)):
            for child in self._children:
                if not child.is_running():
                    raise ClusterError(f"{child.name} ended; {child.log}:\n{child.log_tail()}")
            if time.monotonic() > deadline:
                raise ClusterError(f"Application {name} is not {what} after {PATIENCE_SECONDS:.0f} s: {state}")
            time.sleep(0.5)
        return state

    def events(self, name: str) -> list[str]:
        """What Argo CD's events say of an Application, oldest first."""
        found = self._cluster.get("events", "-n", NAMESPACE, "--field-selector", f"involvedObject.name={name}")
        items = sorted(found["items"], key=lambda e: str(e.get("eventTime") or e.get("firstTimestamp") or ""))
        return [f"{e['reason']}: {e['message']}" for e in items]


def repository(folder: Path, contents: Mapping[str, Path | str]) -> str:
    """A git repository of files and folders; returns its URL.

    Args:
        folder: where to make it.
        contents: files and folders to copy, or the text of a file, by their paths in it.
    """
    for name, content in contents.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            target.write_text(content)
        elif content.is_dir():
            shutil.copytree(content, target)
        else:
            shutil.copy(content, target)
    identity = ["-c", "user.name=e2e", "-c", "user.email=e2e@example.com"]
    for command in (["init", "-q", "-b", "main"], ["add", "-A"], [*identity, "commit", "-q", "-m", "Manifests"]):
        subprocess.run(["git", *command], cwd=folder, check=True, capture_output=True)
    return f"file://{folder}"
