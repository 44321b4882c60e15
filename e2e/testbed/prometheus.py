"""Debian's real Prometheus as a child process, scraping whatever it is given."""

from __future__ import annotations

import base64
import json
import shutil
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from e2e.testbed.clusters import ClusterError
from e2e.testbed.clusters.local import free_ports
from e2e.testbed.clusters.process import Child
from e2e.testbed.waiting import eventually


def prometheus_available() -> tuple[bool, str]:
    """Whether it can run here, and if not, why."""
    found = shutil.which("prometheus") is not None
    return found, "" if found else "no prometheus: it comes with Debian's package of that name"


@dataclass(frozen=True)
class Target:
    """Something to scrape.

    Attributes:
        address: its ``host:port``.
        labels: what to add to its series; ``instance`` is the address otherwise.
        path: where its metrics are.
        token: bearer token to show; the target is scraped over TLS then, whatever its certificate.
    """

    address: str
    labels: Mapping[str, str]
    path: str = "/metrics"
    token: str | None = None

    def scrape_config(self, job: str) -> dict[str, Any]:
        """As Prometheus's configuration has it, and as manifests/components/monitoring has it for our pods."""
        config: dict[str, Any] = {
            "job_name": job,
            "honor_labels": True,  # a metric's own labels come before the target's
            "metrics_path": self.path,
            "static_configs": [{"targets": [self.address], "labels": dict(self.labels)}],
        }
        if self.token is not None:
            config |= {
                "scheme": "https",
                "tls_config": {"insecure_skip_verify": True},
                "authorization": {"credentials": self.token},
            }
        return config


@dataclass(frozen=True)
class Guard:
    """TLS and a login, as Prometheus's own ``--web.config.file`` has them.

    Attributes:
        certificate: of the server, for 127.0.0.1.
        key: its key.
        authority: who signed it.
        user: who may ask.
        password: the user's.
        password_hash: the same, by bcrypt.
    """

    certificate: Path
    key: Path
    authority: Path
    user: str
    password: str
    password_hash: str


class Prometheus:
    """One server with its own storage; a context manager.

    Attributes:
        url: where it answers.
        port: the port of that.
    """

    def __init__(
        self,
        work_dir: Path,
        targets: Sequence[Target],
        *,
        scrape_seconds: int = 1,
        listen: str = "127.0.0.1",
        guard: Guard | None = None,
    ) -> None:
        """Nothing runs before it is entered.

        Args:
            work_dir: for its configuration, data and log.
            targets: what to scrape.
            scrape_seconds: how often.
            listen: address to listen on, besides which this machine has its own way.
            guard: who may ask; anybody if not given.
        """
        self._folder = work_dir / "prometheus"
        self._listen = listen
        self._guard = guard
        self.port = 0
        self._config = {
            "global": {"scrape_interval": f"{scrape_seconds}s", "scrape_timeout": f"{scrape_seconds}s"},
            "scrape_configs": [target.scrape_config(f"target-{number}") for number, target in enumerate(targets)],
        }
        self.url = ""
        self._child: Child | None = None

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        config = self._folder / "prometheus.json"
        config.write_text(json.dumps(self._config))  # JSON is YAML
        self.port = free_ports(1)[0]
        address = f"{self._listen}:{self.port}"
        self.url = f"{'https' if self._guard else 'http'}://{address}"
        command = [
            "prometheus", f"--config.file={config}", f"--storage.tsdb.path={self._folder / 'data'}",
            f"--web.listen-address={address}", "--log.level=warn",
        ]  # fmt: skip
        if guard := self._guard:
            web = self._folder / "web.json"
            tls = {"cert_file": str(guard.certificate), "key_file": str(guard.key)}
            web.write_text(
                json.dumps({"tls_server_config": tls, "basic_auth_users": {guard.user: guard.password_hash}})
            )
            command.append(f"--web.config.file={web}")
        self._child = Child("prometheus", command, self._folder / "prometheus.log")
        try:
            eventually("Prometheus is ready", partial(self._is_ready, self._child))
        except BaseException:
            self._child.kill()
            raise
        return self

    def _is_ready(self, child: Child) -> bool:
        try:
            self._get("/-/ready", 10)
            return True
        except OSError as error:
            if not child.is_running():
                raise ClusterError(f"prometheus: {error}:\n{child.log_tail()}") from error
            return False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._child is not None:
            self._child.stop()

    @property
    def pid(self) -> int:
        """Of the running server."""
        assert self._child is not None, "it was not started"
        return self._child.pid

    def _get(self, path: str, timeout_seconds: float) -> bytes:
        request = urllib.request.Request(self.url + path)
        context = None
        if guard := self._guard:
            context = ssl.create_default_context(cafile=str(guard.authority))
            login = base64.b64encode(f"{guard.user}:{guard.password}".encode()).decode()
            request.add_header("Authorization", f"Basic {login}")
        with urllib.request.urlopen(request, timeout=timeout_seconds, context=context) as answer:
            return bytes(answer.read())

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples that an expression has now: each with its labels (``metric``) and time and value (``value``).

        Raises:
            ClusterError: Prometheus does not understand it, with its words.
        """
        try:
            answer = self._get(f"/api/v1/query?{urllib.parse.urlencode({'query': expression})}", 60)
            result: list[dict[str, Any]] = json.loads(answer)["data"]["result"]
            return result
        except urllib.error.HTTPError as error:
            raise ClusterError(f"{expression}: {error.read().decode()}") from error
