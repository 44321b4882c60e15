"""What a request is authenticated with, and how that is renewed before it expires."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from concerto.kube.errors import ConfigError

TOKEN_REREAD_SECONDS = 60.0
"""client-go reads a token file as often; the kubelet writes a new token some minutes before the old one ends."""


@dataclass(frozen=True)
class Credentials:
    """One identity towards the API server; all fields None: anonymous.

    Attributes:
        authorization: value of the ``Authorization`` header, scheme included.
        client_certificate: PEM.
        client_key: PEM.
        expires_at: seconds since the epoch; None where it is not known.
    """

    authorization: str | None = field(default=None, repr=False)
    client_certificate: str | None = None
    client_key: str | None = field(default=None, repr=False)
    expires_at: float | None = None


class CredentialSource(Protocol):
    """Where credentials come from. Safe to use from several threads and event loops."""

    async def current(self) -> Credentials:
        """Credentials to send now.

        Raises:
            ConfigError: there is no credential.
        """
        ...

    async def refresh(self, refused: Credentials) -> bool:
        """Fetch credentials anew, because the API server answered 401 to ``refused``.

        Returns:
            whether `current` now gives others.
        """
        ...


class FixedCredentials:
    """Credentials that never change."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    async def current(self) -> Credentials:
        """Always the same."""
        return self._credentials

    async def refresh(self, refused: Credentials) -> bool:
        """Whether ``refused`` was something else."""
        return refused != self._credentials


class TokenFile:
    """A bearer token that somebody rotates in a file: read every minute, and when the API server refuses it."""

    def __init__(self, path: str | Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing is read yet."""
        self._path = Path(path)
        self._clock = clock
        self._read: tuple[float, Credentials] | None = None  # when, and what: replaced as one, for other threads

    async def current(self) -> Credentials:
        """The token as it was read at most a minute ago.

        Raises:
            ConfigError: the file has never been readable, or was empty.
        """
        read, now = self._read, self._clock()
        if read is not None and now - read[0] < TOKEN_REREAD_SECONDS:
            return read[1]
        return self._reread(now)

    async def refresh(self, refused: Credentials) -> bool:
        """Read the file at once."""
        return self._reread(self._clock()) != refused

    def _reread(self, now: float) -> Credentials:
        try:
            token = self._path.read_text().strip()
            problem = "is empty"
        except OSError as error:
            token, problem = "", str(error.strerror)
        if token:
            self._read = (now, Credentials(f"Bearer {token}"))
        elif self._read is None:
            raise ConfigError(f"token file {self._path}: {problem}")
        # A file that vanishes while it is being rotated must not take down a process with a good token
        return self._read[1]
