"""Every kubeconfig that kubectl reads, through the loader of the official client.

For commands and for an operator outside of the cluster: credential plugins (EKS, GKE and AKS have one), OIDC, several
files in ``KUBECONFIG``, contexts and proxies. The loader parses, merges, runs plugins and refreshes OIDC tokens; what
it does otherwise than kubectl is mended here, each place with a comment.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import ssl
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import yaml

from concerto.kube.config import ClusterConfig, in_pod
from concerto.kube.connection_problems import host_and_port, system_reason
from concerto.kube.credentials import Credentials
from concerto.kube.errors import ConfigError

REREAD_SECONDS = 60.0
"""How often credentials without a known end are read again: token files and OIDC tokens are renewed in between."""
_MAX_MARGIN_SECONDS = 60.0
_PLUGIN_TIMEOUT_SECONDS = 60.0
_PROXY_SCHEMES = ("http", "https")


def add_cluster_arguments(parser: argparse._ActionsContainer) -> None:
    """The arguments that name a cluster, for `load_config`."""
    parser.add_argument(
        "--kubeconfig", metavar="FILE", help="default: $KUBECONFIG, the pod's service account, ~/.kube/config"
    )
    parser.add_argument("--context", metavar="NAME", help="context of the kubeconfig to use (default: the current one)")


def load_config(kubeconfig: str | Path | None = None, context: str | None = None) -> ClusterConfig:
    """The cluster of the first that applies: ``kubeconfig``, ``$KUBECONFIG``, the pod, ``~/.kube/config``.

    Args:
        kubeconfig: one file.
        context: a context's name instead of the current one; a pod's own service account is then not considered.

    Raises:
        ConfigError: none of them is there, or the one that is cannot be used.
    """
    if kubeconfig:
        if not Path(kubeconfig).expanduser().exists():
            raise ConfigError(f"kubeconfig {kubeconfig}: there is no such file")
        return load_kubeconfig(str(kubeconfig), context)
    if paths := os.environ.get("KUBECONFIG"):
        return load_kubeconfig(paths, context)
    if in_pod() and context is None:
        return ClusterConfig.in_cluster()
    home = Path.home() / ".kube" / "config"
    if home.exists():
        return load_kubeconfig(str(home), context)
    raise ConfigError(f"no cluster: give --kubeconfig, set KUBECONFIG, run in a pod, or have {home}")


def load_kubeconfig(paths: str, context: str | None = None) -> ClusterConfig:
    """One context of kubeconfig files, of which a plugin may have been run.

    Args:
        paths: files, separated as in ``KUBECONFIG``; those that do not exist are skipped.
        context: its name; None: the current one.

    Raises:
        ConfigError: the files, the context or its credentials cannot be used.
    """
    source = KubeconfigCredentials(paths, context)
    loaded = source.load()
    return ClusterConfig(
        server=loaded.server,
        certificate_authority=loaded.certificate_authority,
        certificate_authority_data=loaded.certificate_authority_data,
        credentials=source,
        insecure_skip_tls_verify=loaded.insecure_skip_tls_verify,
        tls_server_name=loaded.tls_server_name,
        proxy_url=loaded.proxy_url,
        namespace=loaded.namespace,
    )


@dataclass(frozen=True)
class _Loaded:
    """What one look at the kubeconfig gave; fields as in ``ClusterConfig``."""

    server: str
    certificate_authority: str | None
    certificate_authority_data: str | None
    insecure_skip_tls_verify: bool
    tls_server_name: str | None
    proxy_url: str | None
    namespace: str
    credentials: Credentials
    by_plugin: bool


class KubeconfigCredentials:
    """The credentials of one context, fetched again before they expire and when the API server refuses them."""

    def __init__(self, paths: str, context: str | None = None, clock: Callable[[], float] = time.time) -> None:
        """Nothing is read yet.

        Args:
            paths: files, separated as in ``KUBECONFIG``.
            context: its name; None: the current one.
            clock: seconds since the epoch, as plugins state when their credentials expire.
        """
        self._paths = paths
        self._context = context
        self._clock = clock
        self._lock = threading.Lock()  # one run of a plugin at a time, whichever thread asks
        self._credentials: Credentials | None = None
        self._refresh_at = float("-inf")

    def load(self) -> _Loaded:
        """Read the files, and run the plugin, now.

        Raises:
            ConfigError: they cannot be used.
        """
        with self._lock:
            return self._load()

    async def current(self) -> Credentials:
        """Credentials that are good for some time.

        Raises:
            ConfigError: the earlier ones have expired, and there are no new ones.
        """
        if self._credentials is None or self._clock() >= self._refresh_at:
            await self._fetch(self._is_stale)
        assert self._credentials is not None
        return self._credentials

    async def refresh(self, refused: Credentials) -> bool:
        """Fetch anew, unless another request has done so since ``refused`` was sent."""
        await self._fetch(lambda: self._credentials == refused)
        return self._credentials != refused

    def _is_stale(self) -> bool:
        return self._credentials is None or self._clock() >= self._refresh_at

    async def _fetch(self, wanted: Callable[[], bool]) -> None:
        def fetch() -> None:
            with self._lock:
                if wanted():
                    self._load()

        try:
            async with asyncio.timeout(_PLUGIN_TIMEOUT_SECONDS):
                await asyncio.to_thread(fetch)
        except (ConfigError, TimeoutError) as error:
            kept = self._credentials
            if kept is None or (kept.expires_at is not None and self._clock() >= kept.expires_at):
                if isinstance(error, ConfigError):
                    raise
                limit = f"{_PLUGIN_TIMEOUT_SECONDS:.0f} s"
                raise ConfigError(f"kubeconfig {self._paths}: no credentials within {limit}") from error
            # What is still good is used on; the next request but a few tries again
            self._refresh_at = self._clock() + 1.0

    def _load(self) -> _Loaded:
        now = self._clock()
        loaded = _load(self._paths, self._context)
        expires_at = loaded.credentials.expires_at
        if expires_at is not None:
            self._refresh_at = expires_at - min(_MAX_MARGIN_SECONDS, max(0.0, expires_at - now) / 5)
        elif loaded.by_plugin:
            self._refresh_at = float("inf")  # good until the API server refuses it, as in kubectl
        else:
            self._refresh_at = now + REREAD_SECONDS
        self._credentials = loaded.credentials
        return loaded


def _load(paths: str, context: str | None) -> _Loaded:
    # Here, and not above: 0.4 s of CPU that no pod needs
    try:
        from kubernetes.config.config_exception import ConfigException
    except ImportError as error:
        raise ConfigError(
            f"kubeconfig {paths} needs the package kubernetes: pip install '.[kubeconfig]' in Concerto's folder"
        ) from error
    try:
        return _read(paths, context)
    except ConfigError as error:
        raise ConfigError(f"kubeconfig {paths}: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"kubeconfig {paths} is not YAML: {error}") from error
    except Exception as error:
        # The loader raises whatever a malformed file leads to, and what requests and oauthlib raise
        text = str(error) if isinstance(error, ConfigException | OSError) else f"{type(error).__name__}: {error}"
        text = _issuer_problem(error) or text
        text = text.partition("/{")[0]  # what follows is the whole entry, a user's secrets included
        raise ConfigError(f"kubeconfig {paths} cannot be used: {text}") from error


def _issuer_problem(error: Exception) -> str | None:
    """Why the OIDC issuer can't be reached; None if that is not what the loader has raised."""
    inner = error.args[0] if error.args and isinstance(error.args[0], Exception) else error  # of requests: of urllib3
    pool, reason = getattr(inner, "pool", None), getattr(inner, "reason", None)
    if pool is None or not isinstance(reason, Exception):
        return None
    causes = (reason.__cause__, *reason.args, reason)
    cause = next(each for each in causes if isinstance(each, Exception))
    return f"cannot connect to {host_and_port(f'https://{pool.host}:{pool.port}')}: {system_reason(cause)}"


def _read(paths: str, context: str | None) -> _Loaded:
    from kubernetes.client import Configuration
    from kubernetes.config.kube_config import KubeConfigLoader, KubeConfigMerger

    merger = KubeConfigMerger(paths)
    if merger.config is None:
        raise ConfigError("there is no such file")
    merged = merger.config
    # The first file that names one decides, as in kubectl; the merger takes the last
    stated = (merger.config_files[path].get("current-context") for path in merger.paths)
    context = context or next(filter(None, stated), None)
    if context is None:
        raise ConfigError("no current-context is set: give --context")
    chosen = merged["contexts"].get_with_name(context)["context"]
    cluster = merged["clusters"].get_with_name(chosen["cluster"])["cluster"]
    user_name = chosen.safe_get("user")
    # A user that is missing is an error, as in kubectl; the loader would go on as anonymous
    user = merged["users"].get_with_name(user_name)["user"] if user_name else None
    settings = user.value if user else {}
    if impersonation := [key for key in settings if key == "as" or key.startswith("as-")]:
        raise ConfigError(f"user {user_name!r}: impersonation ({', '.join(impersonation)}) is not supported")
    plugin = settings.pop("exec", None)  # the loader logs a plugin's failure and goes on as anonymous
    if settings.get("tokenFile"):
        settings.pop("token", None)  # the file wins, as in kubectl
    added = _verify_oidc_issuer(settings)

    def persist() -> None:
        for key in added:
            del settings["auth-provider"]["config"][key]
        merger.save_changes()

    configuration = Configuration()
    with tempfile.TemporaryDirectory() as private:  # where the loader writes keys, as it only knows files
        loader = KubeConfigLoader(
            merged, active_context=context, config_base_path=None, config_persister=persist, temp_file_path=private
        )
        loader.load_and_set(configuration)
        credentials = Credentials(
            authorization=token.strip() if (token := getattr(loader, "token", None)) else None,
            client_certificate=_text(configuration.cert_file),
            client_key=_text(configuration.key_file),
            expires_at=expiry.timestamp() if (expiry := getattr(loader, "expiry", None)) else None,
        )
        authority = configuration.ssl_ca_cert
        inline = bool(cluster.safe_get("certificate-authority-data"))
        authority_data = _text(authority) if inline else None
    if plugin is not None and user is not None:
        settings["exec"] = plugin
        credentials = _run_plugin(user["exec"], cluster, Path(user.path).parent, credentials)
    if settings and credentials == Credentials():
        raise ConfigError(f"user {user_name!r} has no credentials that are supported ({', '.join(sorted(settings))})")
    server = cluster["server"].rstrip("/")
    return _Loaded(
        server=server,
        certificate_authority=None if inline else authority,
        certificate_authority_data=authority_data,
        insecure_skip_tls_verify=not configuration.verify_ssl,
        tls_server_name=configuration.tls_server_name,
        proxy_url=_proxy(server, cluster.safe_get("proxy-url")),
        namespace=chosen.safe_get("namespace") or "default",
        credentials=credentials,
        by_plugin=plugin is not None,
    )


def _run_plugin(plugin: Any, cluster: Any, directory: Path, otherwise: Credentials) -> Credentials:
    """Run a credential plugin (client.authentication.k8s.io ExecCredential).

    Raises:
        ConfigError: it gave none; the message holds its installHint where it is not installed.
    """
    from kubernetes.config.config_exception import ConfigException
    from kubernetes.config.dateutil import parse_rfc3339
    from kubernetes.config.exec_provider import ExecProvider

    command = plugin["command"]
    try:
        status = ExecProvider(plugin, str(directory), cluster).run()
    except FileNotFoundError as error:
        hint = plugin.safe_get("installHint")
        raise ConfigError(f"credential plugin {command!r} is not installed{f': {hint}' if hint else ''}") from error
    except (ConfigException, OSError) as error:
        raise ConfigError(f"credential plugin {command!r}: {error}") from error
    token, expiry = status.get("token"), status.get("expirationTimestamp")
    certificate, key = status.get("clientCertificateData"), status.get("clientKeyData")
    if not token and not (certificate and key):
        raise ConfigError(f"credential plugin {command!r} printed neither token nor clientCertificateData and its key")
    return Credentials(
        authorization=f"Bearer {token}" if token else otherwise.authorization,
        client_certificate=certificate or otherwise.client_certificate,
        client_key=key or otherwise.client_key,
        expires_at=parse_rfc3339(expiry).timestamp() if expiry else None,
    )


def _verify_oidc_issuer(settings: dict[str, Any]) -> list[str]:
    """Have the loader verify an OIDC issuer's certificate where the kubeconfig names no authority; what was added."""
    config = (settings.get("auth-provider") or {}).get("config") or {}
    if not {"idp-issuer-url", "refresh-token"} <= config.keys():
        return []
    added = {"client-secret": ""}  # public clients have none; the loader insists on one
    if not {"idp-certificate-authority", "idp-certificate-authority-data"} & config.keys():
        # The loader would not verify it at all, and show the refresh token to anybody
        added["idp-certificate-authority"] = ssl.get_default_verify_paths().cafile or ""
    added = {key: value for key, value in added.items() if key not in config}
    config.update(added)
    return list(added)


def _proxy(server: str, stated: str | None) -> str | None:
    """The proxy to use: the cluster's, or the environment's unless ``NO_PROXY`` or this machine is meant."""
    url = urlsplit(server)
    host = url.hostname or ""
    here = host == "localhost" or host.startswith("127.") or host == "::1"
    proxy = stated or (None if here or proxy_bypass(host) else getproxies().get(url.scheme))
    if proxy and urlsplit(proxy).scheme not in _PROXY_SCHEMES:
        raise ConfigError(f"proxy {proxy!r} is not supported; use one of {', '.join(_PROXY_SCHEMES)}")
    return proxy


def _text(path: str | None) -> str | None:
    return Path(path).read_text() if path else None
