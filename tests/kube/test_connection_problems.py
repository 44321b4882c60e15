"""Requests that reach no API server: the error names host, port and reason, and shows no object of Python."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from concerto.controllers.runtime.http_source import HttpClient, Limits, SourceError
from concerto.kube import ClusterConfig, ConfigError, KubeError, Session
from concerto.kube.connection_problems import connection_problem, system_reason
from concerto.kube.kubeconfig import load_kubeconfig
from concerto.kube.session import SessionSettings
from concerto.serving.certificate import make_certificate

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OBJECTS = re.compile(r"0x|object at|[<>{}]|Error\b|\('|errno", re.IGNORECASE)


@asynccontextmanager
async def serving(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        finally:
            writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls) as server:
        yield server.sockets[0].getsockname()[1]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


async def problem_of(server: str, timeout_seconds: float = 5.0, proxy: str | None = None) -> str:
    settings = SessionSettings(connect_timeout_seconds=timeout_seconds / 2, attempts=1)
    async with await Session.open(ClusterConfig(server, proxy_url=proxy), settings) as session:
        with pytest.raises(KubeError) as caught:
            await session.get("/version", timeout_seconds=timeout_seconds)
    text = str(caught.value)
    assert text.startswith("GET /version: ")
    assert not OBJECTS.search(text), text
    return text.removeprefix("GET /version: ")


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_port_on_which_nobody_listens(scheme):
    port = free_port()
    assert await problem_of(f"{scheme}://127.0.0.1:{port}") == f"cannot connect to 127.0.0.1:{port}: Connection refused"


async def test_a_name_with_two_addresses():
    port = free_port()
    refused = OSError(
        "Multiple exceptions: [Errno 111] Connect call failed ('::1', 9), [Errno 111] Connect call failed"
    )
    assert system_reason(refused) == "Connection refused"
    assert await problem_of(f"https://localhost:{port}") == f"cannot connect to localhost:{port}: Connection refused"


async def test_a_name_that_nobody_knows():
    text = await problem_of("https://nosuch.invalid:6443")
    assert text.startswith("cannot connect to nosuch.invalid:6443: ")
    assert "name" in text.lower()


async def hold(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.read(100_000)
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(1.0)


async def hang_up(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.read(100_000)


async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
    await writer.drain()


async def answer_half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(100_000)
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}")
    await writer.drain()


async def test_a_certificate_that_no_authority_has_signed():
    async with serving(hold, make_certificate().context) as port:
        expected = f"cannot connect to 127.0.0.1:{port}: certificate verify failed: self-signed certificate"
        assert await problem_of(f"https://127.0.0.1:{port}") == expected


@pytest.mark.parametrize(
    ("scheme", "serve", "expected"),
    [
        ("http", hold, "{} gave no answer in time"),
        ("http", hang_up, "{} disconnected before its answer was complete"),
        ("http", answer_half, "{} disconnected before its answer was complete"),
        ("http", greet, "{} does not answer in HTTP"),
        ("https", greet, "cannot connect to {}: TLS failed: wrong version number"),
        ("https", hold, "cannot connect to {}: no connection in time"),
    ],
)
async def test_a_server_that_does_not_answer_as_it_should(scheme, serve, expected):
    async with serving(serve) as port:
        text = await problem_of(f"{scheme}://127.0.0.1:{port}", timeout_seconds=0.3 if serve is hold else 5.0)
        assert text.startswith(expected.format(f"127.0.0.1:{port}")), text


async def test_a_proxy_that_is_away_is_named():
    port = free_port()
    text = await problem_of("https://api.invalid:6443", proxy=f"http://127.0.0.1:{port}")
    assert text == f"cannot connect to the proxy 127.0.0.1:{port}: Connection refused"


async def test_a_proxy_that_refuses_is_named_as_one():
    async def refuse(reader, writer):
        await reader.read(100_000)
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()

    async with serving(refuse) as port:
        text = await problem_of("https://api.invalid:6443", proxy=f"http://127.0.0.1:{port}")
    assert text == "cannot connect to api.invalid:6443: the proxy answers 403 Forbidden"


async def test_a_server_that_is_not_a_url_is_named():
    assert await problem_of("nope") == "nope/version is not an address such as https://127.0.0.1:6443"


async def test_a_port_is_named_also_where_the_url_has_none():
    assert connection_problem(TimeoutError(), "https://[fd00::1]/api") == "[fd00::1]:443 gave no answer in time"


def test_an_oidc_issuer_that_is_away_is_named(tmp_path):
    parts = ({"alg": "none"}, {"exp": 1}, {})
    ended = ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
    port, path = free_port(), tmp_path / "kubeconfig"
    settings = {
        "client-id": "k",
        "id-token": ended,
        "refresh-token": "r",
        "idp-issuer-url": f"https://127.0.0.1:{port}",
    }
    document = {
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:6443"}}],
        "users": [{"name": "u", "user": {"auth-provider": {"name": "oidc", "config": settings}}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(document))
    with pytest.raises(ConfigError) as caught:
        load_kubeconfig(str(path))
    why = f"cannot connect to 127.0.0.1:{port}: Connection refused"
    assert str(caught.value) == f"kubeconfig {path} cannot be used: {why}"


@pytest.mark.parametrize("tls", [False, True])
async def test_measurements_name_the_server_in_the_same_way(tls):
    client = HttpClient()
    try:
        async with serving(hold, make_certificate().context if tls else None) as port:
            open_port = port if tls else free_port()
            with pytest.raises(SourceError) as caught:
                await client.get(f"https://127.0.0.1:{open_port}/api", Limits(2.0, 100), named="Prometheus")
    finally:
        await client.close()
    why = "certificate verify failed: self-signed certificate" if tls else "Connection refused"
    assert str(caught.value) == f"Prometheus: cannot connect to 127.0.0.1:{open_port}: {why}"
    assert caught.value.reason == ("CertificateRefused" if tls else "Unreachable")
