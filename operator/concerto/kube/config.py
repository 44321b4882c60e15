"""How to reach a cluster: the pod's own service account, or a kubeconfig file."""

from __future__ import annotations

import base64
import os
import ssl
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from concerto.kube.errors import ConfigError

SERVICE_ACCOUNT_DIRECTORY = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_REREAD_SECONDS = 60.0


@dataclass(frozen=True)
class ClusterConfig:
    """Everything needed to talk to one API server.

    Attributes:
        server: base URL, without a trailing slash.
        certificate_authority: path of a PEM bundle; None trusts the system's.
        certificate_authority_data: the same inline, PEM.
        client_certificate: PEM of the client's certificate, if it authenticates by one.
        client_key: PEM of its key.
        token: a bearer token that never changes.
        token_file: path of a bearer token that is rotated under us; wins over ``token``.
        insecure_skip_tls_verify: do not check the server's certificate.
        tls_server_name: the name to expect in it, if not the URL's host.
        namespace: the namespace this process lives in, or the context's default.
    """

    server: str
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    client_certificate: str | None = None
    client_key: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    insecure_skip_tls_verify: bool = False
    tls_server_name: str | None = None
    namespace: str = "default"

    @classmethod
    def load(cls, kubeconfig: str | Path | None = None, context: str | None = None) -> ClusterConfig:
        """The first that applies: the file given, ``$KUBECONFIG``, the pod's service account, ``~/.kube/config``.

        Raises:
            ConfigError: none of them is there, or the one that is cannot be used.
        """
        if kubeconfig:
            return cls.from_kubeconfig(kubeconfig, context)
        if from_environment := os.environ.get("KUBECONFIG"):
            return cls.from_kubeconfig(from_environment, context)
        if os.environ.get("KUBERNETES_SERVICE_HOST"):
            return cls.in_cluster()
        home = Path.home() / ".kube" / "config"
        if home.exists():
            return cls.from_kubeconfig(home, context)
        raise ConfigError(f"no cluster: give --kubeconfig, set KUBECONFIG, run in a pod, or have {home}")

    @classmethod
    def in_cluster(cls, directory: Path = SERVICE_ACCOUNT_DIRECTORY) -> ClusterConfig:
        """What a pod is given: address from the environment, CA and rotated token from the mounted volume.

        Raises:
            ConfigError: this is not a pod, or it has no service account mounted.
        """
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        token = directory / "token"
        if not host or not token.exists():
            raise ConfigError(f"not in a pod with a service account (KUBERNETES_SERVICE_HOST={host}, {token})")
        namespace = directory / "namespace"
        return cls(
            server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
            certificate_authority=str(directory / "ca.crt"),
            token_file=str(token),
            namespace=namespace.read_text().strip() if namespace.exists() else "default",
        )

    @classmethod
    def from_kubeconfig(cls, path: str | Path, context: str | None = None) -> ClusterConfig:
        """One context of a kubeconfig file.

        Client certificates, tokens and token files are understood; credential plugins are not.

        Raises:
            ConfigError: the file, the context or what it names is missing, or it wants a credential plugin.
        """
        path = Path(path).expanduser()
        try:
            document = yaml.safe_load(path.read_text())
        except OSError as error:
            raise ConfigError(f"kubeconfig {path}: {error.strerror}") from error
        except yaml.YAMLError as error:
            raise ConfigError(f"kubeconfig {path} is not YAML: {error}") from error
        if not isinstance(document, dict):
            raise ConfigError(f"kubeconfig {path} holds no configuration")

        def named(section: str, name: str | None) -> Mapping[str, Any]:
            for entry in document.get(section) or []:
                if entry.get("name") == name:
                    # "users" holds entries under "user", and so on
                    return entry.get(section.removesuffix("s")) or {}
            raise ConfigError(f"kubeconfig {path} has no {section.removesuffix('s')} named {name!r}")

        chosen = named("contexts", context or document.get("current-context"))
        cluster, user = named("clusters", chosen.get("cluster")), named("users", chosen.get("user"))
        if "exec" in user or "auth-provider" in user:
            raise ConfigError(
                f"kubeconfig {path}: user {chosen.get('user')!r} needs a credential plugin, which is not supported; "
                "use one with a client certificate, a token or a tokenFile"
            )

        def located(value: str | None) -> str | None:
            return str(path.parent / value) if value else None  # an absolute value stays as it is

        def pem(section: Mapping[str, Any], key: str) -> str | None:
            if data := section.get(f"{key}-data"):
                return base64.b64decode(data).decode()
            location = located(section.get(key))
            try:
                return Path(location).read_text() if location else None
            except OSError as error:
                raise ConfigError(f"kubeconfig {path}: {key} {location}: {error.strerror}") from error

        if not cluster.get("server"):
            raise ConfigError(f"kubeconfig {path}: cluster {chosen.get('cluster')!r} has no server")
        return cls(
            server=cluster["server"].rstrip("/"),
            certificate_authority_data=pem(cluster, "certificate-authority"),
            client_certificate=pem(user, "client-certificate"),
            client_key=pem(user, "client-key"),
            token=user.get("token"),
            token_file=located(user.get("tokenFile")),
            insecure_skip_tls_verify=bool(cluster.get("insecure-skip-tls-verify")),
            tls_server_name=cluster.get("tls-server-name"),
            namespace=chosen.get("namespace") or "default",
        )

    def ssl_context(self) -> ssl.SSLContext | bool:
        """The TLS side of a connection; True (the library's own default) for a plain ``http://`` server.

        Raises:
            ConfigError: a certificate or key cannot be used.
        """
        if not self.server.startswith("https://"):
            return True
        try:
            context = ssl.create_default_context(
                cafile=self.certificate_authority, cadata=self.certificate_authority_data
            )
            if self.insecure_skip_tls_verify:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            if self.client_certificate and self.client_key:
                # ssl only takes files: one of ours that nobody else can read, gone again at once
                with tempfile.NamedTemporaryFile("w", suffix=".pem") as bundle:
                    bundle.write(f"{self.client_certificate}\n{self.client_key}\n")
                    bundle.flush()
                    context.load_cert_chain(bundle.name)
        except (ssl.SSLError, OSError) as error:
            raise ConfigError(f"TLS material for {self.server} cannot be used: {error}") from error
        return context


class TokenSource:
    """The bearer token to send now: re-read from its file every minute, and when the server refuses it."""

    def __init__(self, config: ClusterConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = Path(config.token_file) if config.token_file else None
        self._clock = clock
        self._token = config.token
        self._read_at = float("-inf")

    def token(self) -> str | None:
        """The token, or None where a client certificate (or nothing) authenticates.

        Raises:
            ConfigError: the token file has never been readable.
        """
        if self._file and self._clock() - self._read_at >= TOKEN_REREAD_SECONDS:
            try:
                self._token = self._file.read_text().strip()
                self._read_at = self._clock()
            except OSError as error:
                # A file that vanishes while it is being rotated must not take down a process with a good token
                if self._token is None:
                    raise ConfigError(f"token file {self._file}: {error.strerror}") from error
        return self._token

    def refused(self, token: str | None) -> bool:
        """Told that ``token`` got a 401: read the file again, and say whether another one is there to try."""
        self._read_at = float("-inf")
        return self._file is not None and self.token() != token
