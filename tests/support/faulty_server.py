"""A server that answers as no API server can be made to: for faults of the transport, and nothing else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from concerto.kube import ClusterConfig, Session, SessionSettings

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
QUICK = SessionSettings(attempts=3, first_backoff_seconds=0.001, max_backoff_seconds=0.01)


@dataclass
class Faulty:
    """Gives the scripted answers, one a request; the last one for ever.

    Attributes:
        script: the answers that are left.
        seen: "METHOD path?query" of each request, in order; of a dry run, with that in brackets.
    """

    session: Session
    script: list[Answer]
    seen: list[str] = field(default_factory=list)
    arrival: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def asked(self, times: int) -> None:
        """Return once so many requests have come."""
        async with asyncio.timeout(20), self.arrival:
            await self.arrival.wait_for(lambda: len(self.seen) >= times)


def is_dry_run(body: bytes) -> bool:
    """Whether the API server would only check the request. Where there is a body, it reads no query parameter."""
    return b'"dryRun"' in body and json.loads(body)["dryRun"] == ["All"]


@asynccontextmanager
async def faulty(answers: Sequence[Answer], settings: SessionSettings = QUICK) -> AsyncIterator[Faulty]:
    async def handle(request: web.Request) -> web.StreamResponse:
        dry_run = " (dry run)" if is_dry_run(await request.read()) else ""
        found.seen.append(f"{request.method} {request.path_qs}{dry_run}")
        async with found.arrival:
            found.arrival.notify_all()
        script = found.script
        return await (script.pop(0) if len(script) > 1 else script[0])(request)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    server = TestServer(app)
    await server.start_server()
    try:
        async with await Session.open(ClusterConfig(f"http://127.0.0.1:{server.port}"), settings) as session:
            found = Faulty(session, list(answers))
            yield found
    finally:
        await server.close()


def says(status: int, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        text = body if isinstance(body, str) else json.dumps(body or {})
        return web.Response(status=status, text=text, headers=headers)

    return answer


def refuses(code: int, reason: str, headers: dict[str, str] | None = None, **more: Any) -> Answer:
    return says(code, {"kind": "Status", "code": code, "reason": reason, "message": f"{reason}!", **more}, headers)


async def resets(request: web.Request) -> web.StreamResponse:
    """The connection breaks in the middle of the answer."""
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"half": ')
    assert request.transport is not None
    request.transport.abort()
    return response


async def hangs_up(request: web.Request) -> web.StreamResponse:
    """The connection breaks before the answer."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


def streams(*pieces: bytes, then: Callable[[web.Request], Awaitable[None]] | None = None) -> Answer:
    """A watch that sends these pieces, whatever their ends, and then ends (or what ``then`` does)."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
        if then:
            await then(request)
        return response

    return answer
