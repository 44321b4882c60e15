"""Lets only those callers read a route whose token has been judged."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Verdict(Protocol):
    """What a caller gets."""

    @property
    def status(self) -> int:
        """HTTP status; 200 lets the caller through."""

    @property
    def reason(self) -> str:
        """Why it is refused."""


Judge = Callable[[str | None], Awaitable[Verdict]]
"""Given the header ``Authorization``."""


def authorized(handler: Handler, judge: Judge) -> Handler:
    """The handler, for callers that the judge lets through; others get the verdict's status and reason."""

    async def answer(request: web.Request) -> web.StreamResponse:
        verdict = await judge(request.headers.get("Authorization"))
        if verdict.status == 200:
            return await handler(request)
        refusal = web.Response(status=verdict.status, text=verdict.reason)
        if verdict.status == 401:
            refusal.headers["WWW-Authenticate"] = "Bearer"
        return refusal

    return answer
