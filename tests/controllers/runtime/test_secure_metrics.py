"""/metrics over TLS, of an operator and of an agent, for callers that may get it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from concerto.controllers.runtime.health import Endpoints, Health
from concerto.controllers.runtime.metrics import Metrics
from concerto.controllers.runtime.secure_metrics import secure_metrics_server
from concerto.serving import certificate
from concerto.serving.http_server import HttpServer
from concerto_agent import metrics as agent_metrics
from support.faulty_server import faulty

TRUSTING = ssl.create_default_context()
TRUSTING.check_hostname, TRUSTING.verify_mode = False, ssl.CERT_NONE


async def api_server(request: web.Request) -> web.Response:
    """Knows the users good and other; good may get everything."""
    body = await request.json()
    if body["kind"] == "TokenReview":
        name = body["spec"]["token"]
        return web.json_response(
            {"status": {"authenticated": name in ("good", "other"), "user": {"username": name}}}, status=201
        )
    return web.json_response({"status": {"allowed": body["spec"]["user"] == "good"}}, status=201)


@asynccontextmanager
async def operator() -> AsyncIterator[tuple[HttpServer, HttpServer]]:
    endpoints = Endpoints(Metrics(), Health())
    async with faulty([api_server]) as api:
        servers = (
            HttpServer("127.0.0.1:0", endpoints.routes()),
            secure_metrics_server("127.0.0.1:0", endpoints, api.session.config),
        )
        for server in servers:
            await server.start()
        yield servers
        for server in servers:
            await server.cleanup()


@asynccontextmanager
async def agent() -> AsyncIterator[tuple[HttpServer, HttpServer]]:
    async with faulty([api_server]) as api:
        binds = agent_metrics.Binds("127.0.0.1:0", "127.0.0.1:0")
        counters, gauges = agent_metrics.Counters(), agent_metrics.Gauges()
        servers = await agent_metrics.serve(binds, counters, gauges, lambda: None, str, api.session)
        yield servers[0], servers[1]
        for server in servers:
            await server.cleanup()


async def status(url: str, token: str | None = None) -> int:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(10)) as client,
        client.get(url, ssl=TRUSTING, headers=headers) as answer,
    ):
        assert answer.status != 200 or "/metrics" not in url or "concerto_" in await answer.text()
        assert answer.headers.get("WWW-Authenticate") == ("Bearer" if answer.status == 401 else None)
        return answer.status


@pytest.mark.parametrize("serving", [operator, agent])
async def test_metrics_are_for_callers_that_may_get_them_and_probes_for_everybody(serving):
    async with serving() as (plain, secure):
        url = f"https://127.0.0.1:{secure.port}"
        found = [await status(f"{url}/metrics", token) for token in (None, "made-up", "other", "good")]
        assert found == [401, 401, 403, 200]
        assert await status(f"{url}/healthz", "good") == 404
        assert await status(f"http://127.0.0.1:{plain.port}/healthz") == 200
        assert await status(f"http://127.0.0.1:{plain.port}/metrics", "good") == 404
        with pytest.raises(aiohttp.ClientError):
            await status(f"http://127.0.0.1:{secure.port}/metrics", "good")


NOTHING_FOR_STRANGERS = {
    "another path": ("GET /nothing", b"404"),
    "another method": ("POST /metrics", b"405"),
    "no token": ("GET /metrics", b"401"),
}


@pytest.mark.parametrize(("asked", "status"), NOTHING_FOR_STRANGERS.values(), ids=NOTHING_FOR_STRANGERS)
@pytest.mark.parametrize("serving", [operator, agent])
async def test_a_stranger_has_one_answer_for_a_handshake(serving, asked, status):
    async with serving() as (_, secure), asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", secure.port, ssl=TRUSTING)
        writer.write(f"{asked} HTTP/1.1\r\nHost: x\r\n\r\n".encode() * 5)
        answers = await reader.read(-1)
        writer.close()
    assert answers.count(b"HTTP/1.1 ") == 1
    assert answers.startswith(b"HTTP/1.1 " + status)


async def test_an_agent_without_a_certificate_goes_on_without_metrics(monkeypatch):
    def cannot() -> None:
        raise certificate.CertificateError("OpenSSL 1.1.1 is too old")

    monkeypatch.setattr(certificate, "make_certificate", cannot)
    binds = agent_metrics.Binds("127.0.0.1:0", "127.0.0.1:0")
    async with faulty([api_server]) as api:
        counters, gauges = agent_metrics.Counters(), agent_metrics.Gauges()
        (plain,) = await agent_metrics.serve(binds, counters, gauges, lambda: None, str, api.session)
        assert await status(f"http://127.0.0.1:{plain.port}/healthz") == 200
        await plain.cleanup()
