"""What every test cluster can do, whatever it runs on."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from e2e.testbed.clusters.pki import kubeconfig as write_kubeconfig
from e2e.testbed.waiting import PATIENCE_SECONDS

DAY_SECONDS = 24 * 3600


class ClusterError(RuntimeError):
    """A cluster did not do what it was asked to; the message says where to look."""


class Cluster:
    """A Kubernetes API server that tests may do anything to.

    Attributes:
        origin: what it is, for a person.
        kubeconfig: the administrator's kubeconfig.
        kubectl_path: a kubectl that fits the server's version.
        work_dir: where the run may keep files; gone with the cluster.
    """

    def __init__(self, origin: str, kubeconfig: Path, kubectl_path: Path, work_dir: Path) -> None:
        self.origin = origin
        self.kubeconfig = kubeconfig
        self.kubectl_path = kubectl_path
        self.work_dir = work_dir

    def kubectl(
        self, *arguments: str, stdin: str | None = None, check: bool = True, timeout_seconds: float = PATIENCE_SECONDS
    ) -> str:
        """What kubectl prints, as the administrator.

        Raises:
            ClusterError: it failed (with ``check``), with its own words.
        """
        done = subprocess.run(
            [self.kubectl_path, "--kubeconfig", self.kubeconfig, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            # no cache in the home directory, whose discovery would be of another cluster on the same port
            env={**os.environ, "KUBECACHEDIR": str(self.work_dir / "kubectl-cache")},
        )
        if check and done.returncode:
            raise ClusterError(f"kubectl {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout if check else done.stdout + done.stderr

    def get(self, *arguments: str) -> dict[str, Any]:
        """``kubectl get ... -o json``, parsed."""
        document: dict[str, Any] = json.loads(self.kubectl("get", *arguments, "-o", "json"))
        return document

    def apply(self, *objects: dict[str, Any]) -> None:
        """``kubectl apply`` of objects."""
        self.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def wait(self, *arguments: str, seconds: float = PATIENCE_SECONDS) -> None:
        """``kubectl wait``, as long as tests are patient.

        Raises:
            ClusterError: it was in vain.
        """
        self.kubectl("wait", f"--timeout={seconds:.0f}s", *arguments, timeout_seconds=seconds + 10)

    def make_namespace(self, name: str) -> None:
        """Make a namespace in which pods can be made: it has its service account."""
        self.kubectl("create", "namespace", name)
        self.wait("--for=create", "-n", name, "serviceaccount/default")

    def remove_namespace(self, name: str) -> None:
        """Have a namespace deleted, with all that is in it, in the background."""
        self.kubectl("delete", "namespace", name, "--wait=false", check=False)

    def service_account_token(
        self,
        namespace: str,
        name: str,
        *,
        duration_seconds: int = DAY_SECONDS,
        bound_node: str | None = None,
        audience: str | None = None,
    ) -> str:
        """A token of a service account that exists, by TokenRequest.

        Args:
            namespace: of the service account.
            name: of the service account.
            duration_seconds: how long it is good for; the API server takes no less than ten minutes.
            bound_node: the Node whose name the token then carries, and with whose object it ends.
            audience: whom it is for, if not the API server.
        """
        flags = [f"--duration={duration_seconds}s"]
        if bound_node:
            flags += ["--bound-object-kind", "Node", "--bound-object-name", bound_node]
        if audience:
            flags += ["--audience", audience]
        return self.kubectl("create", "token", "-n", namespace, name, *flags).strip()

    def token_kubeconfig(
        self,
        namespace: str,
        name: str,
        *,
        file_name: str | None = None,
        duration_seconds: int = DAY_SECONDS,
        bound_node: str | None = None,
    ) -> Path:
        """A kubeconfig that authenticates as a service account by ``tokenFile``.

        The token lies beside it, with ``.token`` appended to its name; write another one there to rotate it.
        """
        token = self.service_account_token(namespace, name, duration_seconds=duration_seconds, bound_node=bound_node)
        path = self.work_dir / f"kubeconfig.{file_name or '.'.join(filter(None, (namespace, name, bound_node)))}"
        token_file = path.with_name(f"{path.name}.token")
        write_private(token_file, token)
        server, authority = self._endpoint()
        write_private(path, write_kubeconfig(server, authority, {"tokenFile": str(token_file)}, namespace))
        return path

    def _endpoint(self) -> tuple[str, bytes]:
        config = json.loads(self.kubectl("config", "view", "--raw", "--flatten", "--minify", "-o", "json"))
        cluster = config["clusters"][0]["cluster"]
        return cluster["server"], base64.b64decode(cluster.get("certificate-authority-data", ""))


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, whole or not at all: readers may look at any time."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.touch(mode=0o600)
    unfinished.write_text(text)
    unfinished.replace(path)
