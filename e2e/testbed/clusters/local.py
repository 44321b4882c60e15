"""A control plane of real parts, as child processes: etcd, API server, controller manager and, if wanted, scheduler."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import socket
import ssl
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

from e2e.testbed.clusters.binaries import Binaries
from e2e.testbed.clusters.cluster import Cluster, ClusterError, write_private
from e2e.testbed.clusters.pki import Authority, certificate_user, kubeconfig
from e2e.testbed.clusters.process import Child, stop_all, stop_pid
from e2e.testbed.clusters.reading import Reader
from e2e.testbed.started import Started
from e2e.testbed.waiting import PATIENCE_SECONDS

# Below the range that the kernel hands out to outgoing connections: a port must still be free after an outage
_PORTS = range(20000, 30000)
_STATE = "control-plane.json"
_PREFIX = "concerto-cluster-"


class LocalControlPlane(Started, Cluster):
    """One control plane on this machine, in a folder of its own.

    Attributes:
        binaries: the folder of its programs (kubelet among them, if they were built from source).
        port: of the API server, on all addresses.
        ca_file: the authority that signed everything.
        ca_key: its key.
        logs: the folder of its logs.
        etcd_port: of etcd, on 127.0.0.1.
        scheduler_profiles: of kube-scheduler, when it starts; its default one if there are none here.
        children: what runs, by program name.
    """

    def __init__(
        self,
        binaries: Binaries,
        *,
        work_dir: Path | None = None,
        scheduler: bool = False,
        outlives_us: bool = False,
        apiserver_flags: Sequence[str] = (),
        controller_manager_flags: Sequence[str] = (),
        scheduler_flags: Sequence[str] = (),
    ) -> None:
        """Nothing runs before `start`.

        Args:
            binaries: the programs.
            work_dir: where data, keys and logs go; a new folder under the system's temporary one if not given.
            scheduler: run kube-scheduler from the start.
            outlives_us: it stays when this process ends; `stop_left` stops it later.
            apiserver_flags: further ones.
            controller_manager_flags: further ones.
            scheduler_flags: further ones.
        """
        self._own_work_dir = work_dir is None
        work_dir = work_dir or _temporary_directory()
        work_dir.mkdir(parents=True, exist_ok=True)
        super().__init__(
            f"local control plane, {binaries.origin}",
            work_dir / "kubeconfig.admin",
            binaries["kubectl"],
            work_dir,
        )
        self._binaries = binaries
        self._with_scheduler = scheduler
        self._outlives_us = outlives_us
        self._apiserver_flags = apiserver_flags
        self._controller_manager_flags = controller_manager_flags
        self._scheduler_flags = scheduler_flags
        self.scheduler_profiles: Sequence[Mapping[str, Any]] = ()
        self.binaries = binaries.directory
        self.logs = work_dir / "logs"
        self.logs.mkdir(exist_ok=True)
        self._authority = Authority(work_dir / "pki")
        self.ca_file, self.ca_key = self._authority.certificate, self._authority.key
        self._ssl = ssl.create_default_context(cafile=str(self.ca_file))
        self._ssl.load_cert_chain(*self._authority.client("admin", "admin", "system:masters"))
        self.children: dict[str, Child] = {}
        self.port = self.etcd_port = self._etcd_peer_port = 0
        self._reader = Reader(lambda path: self.request("GET", path))

    @property
    def server(self) -> str:
        """The API server's URL on this machine."""
        return f"https://127.0.0.1:{self.port}"

    @property
    def serves_pod_groups(self) -> bool:
        """Whether the release has PodGroups (scheduling.k8s.io/v1beta1)."""
        return self._binaries.kubernetes >= (1, 37)

    def start(self) -> None:
        """Start everything; returns when it answers and service accounts are handed out (5 s on 2 idle CPUs).

        Raises:
            ClusterError: it does not come up; the message holds the end of the log that says why, and where it is.
        """
        try:
            self._start_storage_and_server()
            self._start_controller_manager()
            if self._with_scheduler:
                self.start_scheduler()
            self._wait(
                "kube-controller-manager", "/api/v1/namespaces/default/serviceaccounts/default", "service accounts"
            )
        except BaseException:
            self._stop_children()
            raise

    def _start_storage_and_server(self) -> None:
        for attempt in range(3):
            self.port, self.etcd_port, self._etcd_peer_port = free_ports(3)
            self.client_kubeconfig("admin", "admin", "system:masters")
            self.start_etcd()
            self.start_apiserver(wait=False)
            try:
                self.wait_until_ready()
                return
            except ClusterError as error:
                self._stop_children()
                # Another program took one of the ports after it was found free
                if attempt == 2 or "address already in use" not in str(error):
                    raise

    def stop(self, *, keep_files: bool = False) -> None:
        """Stop everything and remove what it wrote, if the folder was ours to make."""
        self._stop_children()
        if self._own_work_dir and not keep_files:
            shutil.rmtree(self.work_dir, ignore_errors=True)

    # --- its parts, for outages ---

    def start_etcd(self) -> None:
        """Start etcd, on the data that is there (see `wait_until_ready`)."""
        client, peer = (f"http://127.0.0.1:{port}" for port in (self.etcd_port, self._etcd_peer_port))
        self._run(
            "etcd",
            f"--data-dir={self.work_dir / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            # Data that a test can make again is not worth a disk's pace
            "--unsafe-no-fsync",
            # Etcd's default of 2 GiB is too little for 150,000 pods (e2e/bench/scale.py)
            f"--quota-backend-bytes={8 * 2**30}",
            "--log-level=warn",
        )

    def stop_etcd(self) -> None:
        """Stop etcd: the API server then answers that it is not ready, and refuses writes."""
        self.children.pop("etcd").stop()

    def start_apiserver(self, *, wait: bool = True) -> None:
        """Start the API server, on its old port; with ``wait``, return when it is ready."""
        pki = self._authority
        certificate, key = pki.server("kube-apiserver")
        public, private = pki.signing_key("service-accounts")
        proxy_certificate, proxy_key = pki.client("front-proxy", "front-proxy")
        kubelet_certificate, kubelet_key = pki.client("admin", "admin", "system:masters")
        self._run(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self.etcd_port}",
            f"--secure-port={self.port}",
            # Nodes in network namespaces of their own reach it over a bridge
            "--bind-address=0.0.0.0",
            "--advertise-address=192.0.2.2",
            "--endpoint-reconciler-type=none",
            f"--tls-cert-file={certificate}",
            f"--tls-private-key-file={key}",
            f"--client-ca-file={self.ca_file}",
            f"--service-account-key-file={public}",
            f"--service-account-signing-key-file={private}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged",
            f"--requestheader-client-ca-file={self.ca_file}",
            "--requestheader-allowed-names=front-proxy",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={proxy_certificate}",
            f"--proxy-client-key-file={proxy_key}",
            f"--kubelet-client-certificate={kubelet_certificate}",
            f"--kubelet-client-key={kubelet_key}",
            "--kubelet-preferred-address-types=InternalIP",
            # Without it open watches hold up a stop for a minute
            "--shutdown-watch-termination-grace-period=1s",
            *self._gang_flags("--runtime-config=scheduling.k8s.io/v1beta1=true"),
            *self._apiserver_flags,
        )
        if wait:
            self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Return when the API server says that it is ready."""
        self._wait("kube-apiserver", "/readyz", "the API server")

    def stop_apiserver(self, *, kill: bool = False) -> None:
        """Stop the API server, in good order or as if its power went."""
        child = self.children.pop("kube-apiserver")
        if kill:
            child.kill()
        else:
            child.stop()

    def restart_apiserver(self, *, kill: bool = False) -> None:
        """Stop and start the API server; returns when it is ready again."""
        self.stop_apiserver(kill=kill)
        self.start_apiserver()

    def start_scheduler(self) -> None:
        """Start kube-scheduler, its client's rate limits lifted."""
        config = self.client_kubeconfig("kube-scheduler", "system:kube-scheduler")
        flags = ["--kube-api-qps=5000", "--kube-api-burst=5000", *self._scheduler_flags]
        if self.scheduler_profiles:
            flags.append(f"--config={self._scheduler_configuration(config)}")
        self._run("kube-scheduler", *_client_flags(config), *flags)

    def _scheduler_configuration(self, kubeconfig: Path) -> Path:
        """A file with its profiles and, as flags do not count beside it, its client's settings."""
        path = self.work_dir / "kube-scheduler.json"
        body = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 5000, "burst": 5000},
            "profiles": self.scheduler_profiles,
        }
        path.write_text(json.dumps(body))
        return path

    def stop_scheduler(self) -> None:
        """Stop kube-scheduler."""
        self.children.pop("kube-scheduler").stop()

    def _start_controller_manager(self) -> None:
        config = self.client_kubeconfig("kube-controller-manager", "system:kube-controller-manager")
        _, private = self._authority.signing_key("service-accounts")
        self._run(
            "kube-controller-manager",
            *_client_flags(config),
            "--use-service-account-credentials",
            f"--service-account-private-key-file={private}",
            f"--root-ca-file={self.ca_file}",
            "--kube-api-qps=200",
            "--kube-api-burst=400",
            # Failures of nodes are to be seen soon; more than 10 s is asked for
            "--node-monitor-grace-period=20s",
            "--node-monitor-period=2s",
            *self._gang_flags(),
            *self._controller_manager_flags,
        )

    def _gang_flags(self, *more: str) -> tuple[str, ...]:
        """Flags that switch PodGroups on, where the release has them."""
        return ("--feature-gates=GenericWorkload=true", *more) if self.serves_pod_groups else ()

    # --- access ---

    def client_kubeconfig(self, name: str, cn: str, org: str | None = None) -> Path:
        """A kubeconfig, everything inline, for a user with a certificate.

        Args:
            name: of the file (``kubeconfig.NAME``) and of the certificate.
            cn: the user's name.
            org: the user's group.
        """
        user = certificate_user(*self._authority.client(name, cn, org))
        path = self.work_dir / f"kubeconfig.{name}"
        write_private(path, kubeconfig(self.server, self.ca_file.read_bytes(), user))
        return path

    def _endpoint(self) -> tuple[str, bytes]:
        return self.server, self.ca_file.read_bytes()

    def get(self, *arguments: str) -> dict[str, Any]:
        """``kubectl get ... -o json``, parsed; without kubectl, where the arguments are simple."""
        found = self._reader.get(arguments)
        return super().get(*arguments) if found is None else found

    def make_namespace(self, name: str) -> None:
        """Make a namespace in which pods can be made: it has its service account."""
        self.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        self._wait("kube-controller-manager", f"/api/v1/namespaces/{name}/serviceaccounts/default", "service account")

    def remove_namespace(self, name: str) -> None:
        """Have a namespace deleted, with all that is in it, in the background."""
        with contextlib.suppress(ClusterError):  # a test has deleted it, or stopped the API server
            self.request("DELETE", f"/api/v1/namespaces/{name}")

    def request(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """One request as the administrator, by the standard library alone, whatever the answer's kind.

        Raises:
            ClusterError: the server refused or cannot be reached.
        """
        request = urllib.request.Request(
            self.server + path,
            method=method,
            data=json.dumps(body).encode() if body is not None else None,
            headers={"Content-Type": "application/json"},
        )
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=self._ssl)
        )
        began = time.monotonic()
        while True:
            try:
                with opener.open(request, timeout=30) as answer:
                    payload = answer.read()
                break
            except urllib.error.HTTPError as error:
                text = error.read().decode(errors="replace")
                # A server that asks for patience, as while the storage of a new kind is initialised, has done nothing
                if error.code != HTTPStatus.TOO_MANY_REQUESTS or time.monotonic() - began > PATIENCE_SECONDS:
                    raise ClusterError(f"{method} {path}: {error.code} {text}") from error
                time.sleep(float(error.headers.get("Retry-After") or 1))
            except (urllib.error.URLError, OSError) as error:
                raise ClusterError(f"{method} {path}: {error}") from error
        try:
            document: dict[str, Any] = json.loads(payload)
        except ValueError:
            document = {"text": payload.decode(errors="replace")}
        return document

    def _run(self, name: str, *flags: str) -> None:
        if name in self.children and self.children[name].is_running():
            raise ClusterError(f"{name} is running already")
        self.children[name] = Child(
            name, [self._binaries[name], *flags], self.logs / f"{name}.log", outlives_us=self._outlives_us
        )
        if self._outlives_us:
            pids = {child.name: child.pid for child in self.children.values()}
            (self.work_dir / _STATE).write_text(json.dumps({"pids": pids, "port": self.port}))

    def _wait(self, name: str, path: str, what: str, seconds: float = PATIENCE_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        answer = ""
        while time.monotonic() < deadline:
            for child in self.children.values():
                if not child.is_running():
                    raise ClusterError(
                        f"{child.name} ended with {child.process.returncode}; end of {child.log}:\n{child.log_tail()}"
                    )
            try:
                self.request("GET", path)
                return
            except ClusterError as error:
                answer = str(error)
            time.sleep(0.05)
        child = self.children[name]
        raise ClusterError(f"no {what} after {seconds:.0f} s: {answer}\nend of {child.log}:\n{child.log_tail()}")

    def _stop_children(self) -> None:
        # The API server before etcd, without which it lingers for a minute; its clients together with it
        etcd = self.children.pop("etcd", None)
        stop_all(list(self.children.values()))
        if etcd:
            etcd.stop()
        self.children.clear()


def stop_left(work_dir: Path) -> bool:
    """Stop a control plane that was started to outlive its starter, and remove its folder.

    Returns:
        whether there was one.
    """
    try:
        state = json.loads((work_dir / _STATE).read_text())
    except FileNotFoundError:
        return False
    for name in ("kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd"):
        if name in state["pids"]:
            stop_pid(state["pids"][name], str(work_dir))
    shutil.rmtree(work_dir)
    return True


def _temporary_directory() -> Path:
    """A new folder that bears our PID, once those of runs that were killed have gone."""
    root = Path(tempfile.gettempdir())
    for left in root.glob(f"{_PREFIX}*-*"):
        owner = left.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))


def _client_flags(config: Path) -> list[str]:
    flags = [f"--{use}kubeconfig={config}" for use in ("", "authentication-", "authorization-")]
    # No client connects to them: no port to collide with another run's
    return [*flags, "--leader-elect=false", "--secure-port=0"]


def free_ports(count: int) -> list[int]:
    """Ports that are free now, outside the range of outgoing connections."""
    found: list[int] = []
    with contextlib.ExitStack() as held:
        for port in random.sample(_PORTS, len(_PORTS)):
            candidate = held.enter_context(socket.socket())
            try:
                candidate.bind(("0.0.0.0", port))
            except OSError:
                continue
            found.append(port)
            if len(found) == count:
                return found
    raise ClusterError(f"no free ports between {_PORTS.start} and {_PORTS.stop}")
