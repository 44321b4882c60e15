"""Asks the API server who a caller is and what it may do: TokenReview and SubjectAccessReview.

The delegated authentication and authorization of Kubernetes' own components (kubelet, kube-rbac-proxy) is the model.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from concerto.kube.errors import KubeError
from concerto.kube.session import Session

_TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
_ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
MAX_TOKEN_BYTES = 16_384
"""Longer ones are refused unasked; tokens of ServiceAccounts have about 1,000 bytes."""


@dataclass(frozen=True)
class ReviewSettings:
    """How callers are checked.

    Attributes:
        allowed_seconds: a caller that was allowed is not asked about again for so long.
        refused_seconds: the same for one that was refused.
        max_remembered: callers that are remembered.
        timeout_seconds: for each of the two questions to the API server.
    """

    allowed_seconds: float = 60.0
    refused_seconds: float = 10.0
    max_remembered: int = 64
    timeout_seconds: float = 5.0


@dataclass(frozen=True)
class Right:
    """What callers need.

    Attributes:
        attributes: ``resourceAttributes`` or ``nonResourceAttributes`` of the SubjectAccessReview, under that name.
        text: the right, as refusals name it.
        audiences: a caller's token must be valid for one of these. Empty: for the API server.
    """

    attributes: Mapping[str, Mapping[str, str]]
    text: str
    audiences: tuple[str, ...] = ()


READ_METRICS = Right({"nonResourceAttributes": {"path": "/metrics", "verb": "get"}}, "get /metrics")
"""What ``nonResourceURLs: [/metrics]`` in a ClusterRole allows."""


@dataclass(frozen=True)
class Verdict:
    """What a caller gets: an HTTP status and, unless it is 200, why."""

    status: int
    reason: str = ""


@dataclass
class AccessReviewer:
    """Who has a right; the API server decides.

    Attributes:
        session: connection to the API server. It takes the right to create both reviews.
        right: what callers need.
        settings: how callers are checked.
        clock: seconds, never jumping.
    """

    session: Session
    right: Right
    settings: ReviewSettings = ReviewSettings()
    clock: Callable[[], float] = time.monotonic
    _known: dict[str, tuple[float, Verdict]] = field(default_factory=dict, repr=False)
    # One question at a time: strangers with ever new tokens cost the API server no more than that
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)

    async def judge(self, authorization: str | None) -> Verdict:
        """The verdict on a caller.

        Args:
            authorization: its header ``Authorization``.
        """
        scheme, _, token = (authorization or "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token or not token.isascii() or len(token) > MAX_TOKEN_BYTES:
            return Verdict(401, "a bearer token is needed")
        key = hashlib.sha256(token.encode()).hexdigest()
        if (known := self._recall(key)) is not None:
            return known
        async with self._asking:
            if (known := self._recall(key)) is not None:
                return known
            try:
                verdict = await self._ask(token)
            except (KubeError, KeyError, TypeError) as error:
                return Verdict(503, f"the API server did not answer who may read: {error}")
            self._remember(key, verdict)
        return verdict

    def _recall(self, key: str) -> Verdict | None:
        until, verdict = self._known.get(key, (float("-inf"), None))
        if self.clock() < until:
            return verdict
        self._known.pop(key, None)
        return None

    def _remember(self, key: str, verdict: Verdict) -> None:
        seconds = self.settings.allowed_seconds if verdict.status == 200 else self.settings.refused_seconds
        while len(self._known) >= self.settings.max_remembered:
            # Strangers with ever new tokens do not push out those who may read
            refused = (k for k, (_, known) in self._known.items() if known.status != 200)
            del self._known[next(refused, None) or next(iter(self._known))]
        self._known[key] = (self.clock() + seconds, verdict)

    async def _ask(self, token: str) -> Verdict:
        audiences = self.right.audiences
        review: dict[str, Any] = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, **({"audiences": list(audiences)} if audiences else {})},
        }
        said = (await self._create(_TOKEN_REVIEWS, review))["status"]
        if not said.get("authenticated"):
            return Verdict(401, self._not_valid())
        # The audience is to be looked at here: an authenticator that knows of none accepts any
        if audiences and not set(audiences) & set(said.get("audiences") or ()):
            return Verdict(401, self._not_valid())
        user = said["user"]
        access = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": user["username"],
                **{k: user[k] for k in ("uid", "groups", "extra") if user.get(k)},
                **self.right.attributes,
            },
        }
        if (await self._create(_ACCESS_REVIEWS, access))["status"].get("allowed") is True:
            return Verdict(200)
        return Verdict(403, f"{user['username']} may not {self.right.text}")

    def _not_valid(self) -> str:
        audiences = self.right.audiences
        return f"the token is not valid{f' for audience {audiences[0]}' if audiences else ''}"

    async def _create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return await self.session.create(path, body, timeout_seconds=self.settings.timeout_seconds)
