"""How to reach a cluster: a pod's own service account, or one plain kubeconfig file.

`concerto.kube.kubeconfig` reads every kubeconfig that kubectl reads (credential plugins, OIDC, several files, proxies)
and needs the package ``kubernetes`` for it. Node agents do without that package.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from concerto.kube.credentials import Credentials, CredentialSource, FixedCredentials, TokenFile
from concerto.kube.errors import ConfigError

SERVICE_ACCOUNT_DIRECTORY = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True)
class ClusterConfig:
    """Everything needed to talk to one API server.

    Attributes:
        server: base URL, without a trailing slash.
        certificate_authority: path of a PEM bundle, read again when it is rotated; None trusts the system's.
        certificate_authority_data: the same inline, PEM.
        client_certificate: PEM of the client's certificate, if it authenticates by one.
        client_key: PEM of its key.
        token: a bearer token that never changes.
        token_file: path of a bearer token that is rotated under us; wins over ``token``.
        credentials: where credentials come from; wins over the four fields above.
        insecure_skip_tls_verify: do not check the server's certificate.
        tls_server_name: the name to expect in it, if not the URL's host.
        proxy_url: an HTTP proxy to connect through.
        namespace: the namespace this process lives in, or the context's default.
    """

    server: str
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    client_certificate: str | None = None
    client_key: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    credentials: CredentialSource | None = field(default=None, repr=False)
    insecure_skip_tls_verify: bool = False
    tls_server_name: str | None = None
    proxy_url: str | None = field(default=None, repr=False)  # may hold a password
    namespace: str = "default"

    @classmethod
    def load(cls, kubeconfig: str | Path | None = None) -> ClusterConfig:
        """The first that applies: the file given, ``$KUBECONFIG``, the pod's service account, ``~/.kube/config``.

        Raises:
            ConfigError: none of them is there, or the one that is cannot be used.
        """
        if path := kubeconfig or os.environ.get("KUBECONFIG"):
            return cls.from_kubeconfig(path)
        if in_pod():
            return cls.in_cluster()
        home = Path.home() / ".kube" / "config"
        if home.exists():
            return cls.from_kubeconfig(home)
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
    def from_kubeconfig(cls, path: str | Path) -> ClusterConfig:
        """The current context of one kubeconfig file with a client certificate, a token or a tokenFile.

        Raises:
            ConfigError: the file, the context or what it names is missing, or it needs what only
                `concerto.kube.kubeconfig` understands.
        """
        path = Path(path).expanduser()
        document = _read(path)
        context = _named(path, document, "contexts", document.get("current-context"))
        cluster = _named(path, document, "clusters", context.get("cluster"))
        user = _named(path, document, "users", context.get("user"))
        if unsupported := {"exec", "auth-provider", "username"} & user.keys() or {"proxy-url"} & cluster.keys():
            raise ConfigError(
                f"kubeconfig {path}: {', '.join(sorted(unsupported))} is not supported here; "
                "use a client certificate, a token or a tokenFile"
            )
        if not cluster.get("server"):
            raise ConfigError(f"kubeconfig {path}: cluster {context.get('cluster')!r} has no server")
        authority = cluster.get("certificate-authority")
        data = cluster.get("certificate-authority-data")
        return cls(
            server=cluster["server"].rstrip("/"),
            certificate_authority=str(path.parent / authority) if authority and not data else None,
            certificate_authority_data=base64.b64decode(data).decode() if data else None,
            client_certificate=_pem(path, user, "client-certificate"),
            client_key=_pem(path, user, "client-key"),
            token=user.get("token"),
            token_file=str(path.parent / user["tokenFile"]) if user.get("tokenFile") else None,
            insecure_skip_tls_verify=bool(cluster.get("insecure-skip-tls-verify")),
            tls_server_name=cluster.get("tls-server-name"),
            namespace=context.get("namespace") or "default",
        )

    def credential_source(self) -> CredentialSource:
        """Where the credentials of a session come from."""
        if self.credentials is not None:
            return self.credentials
        if self.token_file:
            return TokenFile(self.token_file)
        authorization = f"Bearer {self.token}" if self.token else None
        return FixedCredentials(Credentials(authorization, self.client_certificate, self.client_key))


def in_pod() -> bool:
    """Whether this process runs in a pod, as Kubernetes says in every container's environment."""
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST"))


def _read(path: Path) -> Mapping[str, Any]:
    try:
        document = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(f"kubeconfig {path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"kubeconfig {path} is not YAML: {error}") from error
    if not isinstance(document, dict):
        raise ConfigError(f"kubeconfig {path} holds no configuration")
    return document


def _named(path: Path, document: Mapping[str, Any], section: str, name: str | None) -> Mapping[str, Any]:
    kind = section.removesuffix("s")  # "users" holds entries under "user", and so on
    for entry in document.get(section) or []:
        if entry.get("name") == name:
            return entry.get(kind) or {}
    raise ConfigError(f"kubeconfig {path} has no {kind} named {name!r}")


def _pem(path: Path, user: Mapping[str, Any], key: str) -> str | None:
    if data := user.get(f"{key}-data"):
        return base64.b64decode(data).decode()
    if not user.get(key):
        return None
    location: Path = path.parent / user[key]  # an absolute path stays as it is
    try:
        return location.read_text()
    except OSError as error:
        raise ConfigError(f"kubeconfig {path}: {key} {location}: {error.strerror}") from error
