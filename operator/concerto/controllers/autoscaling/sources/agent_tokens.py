"""Tokens that the operator shows to node agents: one for each, which opens no other's door.

Whoever has taken over a node can do no more with what is shown there than ask that node. Each token is asked for by
TokenRequest, for the operator's own service account.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from concerto.api.nodecapacity import metrics_audience
from concerto.kube import Session
from concerto.kube.resources import SERVICE_ACCOUNTS

_TIDY_SECONDS = 30.0
"""How often all tokens are looked through for those that are to be forgotten."""


@dataclass(frozen=True)
class TokenSettings:
    """How tokens are asked for.

    Attributes:
        lifetime_seconds: asked for; the API server may give less, and gives no less than ten minutes.
        used_share: of its lifetime that a token is used for.
        retry_seconds: a token that an agent refuses is not replaced before it is so old.
        timeout_seconds: for one answer.
    """

    lifetime_seconds: int = 3600
    used_share: float = 0.8
    retry_seconds: float = 60.0
    timeout_seconds: float = 5.0


@dataclass(frozen=True)
class _Token:
    text: str
    since: float
    until: float


class AgentTokens:
    """The token for each node's agent, asked for when it is needed."""

    def __init__(
        self,
        session: Session,
        namespace: str,
        account: str,
        clock: Callable[[], float],
        settings: TokenSettings | None = None,
    ) -> None:
        """Args:
        session: the way to the API server.
        namespace: of the service account.
        account: the operator's own.
        clock: seconds.
        settings: how to ask.
        """
        self._session = session
        self._path = SERVICE_ACCOUNTS.path(namespace, account, "token")
        self._clock = clock
        self._settings = settings or TokenSettings()
        self._known: dict[str, _Token] = {}
        self._tidied_at = -math.inf

    async def token(self, node: str) -> str:
        """The token to show to a node's agent.

        Raises:
            KubeError: the API server gives none.
        """
        now = self._clock()
        known = self._known.get(node)
        if known is None or not known.since <= now < known.until:
            self._tidy(now)
            known = self._known[node] = await self._request(node, now)
        return known.text

    def _tidy(self, now: float) -> None:
        """Nodes come and go; thousands may need a new token at a time."""
        if abs(now - self._tidied_at) >= _TIDY_SECONDS:
            self._tidied_at = now
            self._known = {name: token for name, token in self._known.items() if token.since <= now < token.until}

    def refused(self, node: str, token: str) -> None:
        """An agent does not know the token: another is asked for, but not for each refusal."""
        known = self._known.get(node)
        if known is not None and known.text == token and self._clock() - known.since >= self._settings.retry_seconds:
            del self._known[node]

    async def _request(self, node: str, now: float) -> _Token:
        settings = self._settings
        spec = {"audiences": [metrics_audience(node)], "expirationSeconds": settings.lifetime_seconds}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        said = await self._session.create(self._path, body, timeout_seconds=settings.timeout_seconds)
        return _Token(said["status"]["token"], now, now + settings.used_share * said["spec"]["expirationSeconds"])
