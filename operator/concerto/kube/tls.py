"""The TLS side of a connection, renewed when the certificate authority or the client's certificate is rotated."""

from __future__ import annotations

import ssl
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from concerto.kube.config import ClusterConfig
from concerto.kube.credentials import Credentials
from concerto.kube.errors import ConfigError

AUTHORITY_REREAD_SECONDS = 60.0


class TlsContexts:
    """The context to connect with now: another one after the authority's file or the client's certificate changed.

    Connections that are open stay open; aiohttp gives a new context connections of its own.
    """

    def __init__(self, config: ClusterConfig, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing is read yet."""
        self._config = config
        self._clock = clock
        self._authority: str | None = config.certificate_authority_data
        self._read_at = float("-inf")
        self._made_for: tuple[str | None, str | None, str | None] | None = None
        self._context: ssl.SSLContext | None = None

    def context(self, credentials: Credentials) -> ssl.SSLContext | bool:
        """The context for a connection with these credentials; True for a plain ``http://`` server.

        Raises:
            ConfigError: a certificate or key cannot be used, and there is no earlier one that could.
        """
        if not self._config.server.startswith("https://"):
            return True
        self._reread_authority()
        wanted = (self._authority, credentials.client_certificate, credentials.client_key)
        if self._context is None or wanted != self._made_for:
            try:
                self._context = build_context(self._config, self._authority, credentials)
            except ConfigError:
                # Half a file, or a certificate whose key is not written yet: the next look finds both
                if self._context is None:
                    raise
                return self._context
            self._made_for = wanted
        return self._context

    def expect_rotation(self) -> None:
        """Read the authority again at the next connection: the server's certificate was not signed by it."""
        self._read_at = float("-inf")

    def _reread_authority(self) -> None:
        path, now = self._config.certificate_authority, self._clock()
        if path is None or now - self._read_at < AUTHORITY_REREAD_SECONDS:
            return
        try:
            self._authority = Path(path).read_text()
            self._read_at = now
        except OSError as error:
            if self._authority is None:
                raise ConfigError(f"certificate authority {path}: {error.strerror}") from error


def build_context(config: ClusterConfig, authority: str | None, credentials: Credentials) -> ssl.SSLContext:
    """A context that trusts ``authority`` (PEM; None: the system's) and shows the client's certificate, if any.

    Raises:
        ConfigError: a certificate or key cannot be used.
    """
    if authority is not None and not authority.strip():
        # For ssl an empty text means the system's authorities
        raise ConfigError(f"the certificate authority of {config.server} is empty")
    try:
        context = ssl.create_default_context(cadata=authority)
        if config.insecure_skip_tls_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if credentials.client_certificate and credentials.client_key:
            # ssl only takes files: one of ours that nobody else can read, gone again at once
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as bundle:
                bundle.write(f"{credentials.client_certificate}\n{credentials.client_key}\n")
                bundle.flush()
                context.load_cert_chain(bundle.name)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise ConfigError(f"TLS material for {config.server} cannot be used: {error}") from error
    return context
