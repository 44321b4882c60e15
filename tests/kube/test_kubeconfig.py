"""Kubeconfigs as kubectl reads them: plugins, OIDC, several files, contexts and proxies."""

from __future__ import annotations

import argparse
import asyncio
import base64
import datetime
import json
import os
import ssl
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer

from concerto.controllers.operator import connection_info
from concerto.kube import ClusterConfig, ConfigError, Session
from concerto.kube.kubeconfig import KubeconfigCredentials, add_cluster_arguments, load_config, load_kubeconfig

CLUSTER = {"server": "https://near:6443/"}


def write(path: Path, **document: Any) -> Path:
    path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", **document}))
    return path


def whole(path: Path, user: dict[str, Any] | None = None, cluster: dict[str, Any] | None = None) -> Path:
    return write(
        path,
        **{
            "current-context": "here",
            "contexts": [
                {"name": "here", "context": {"cluster": "near", "user": "me", "namespace": "mine"}},
                {"name": "there", "context": {"cluster": "far", "user": "me"}},
            ],
            "clusters": [
                {"name": "near", "cluster": cluster or CLUSTER},
                {"name": "far", "cluster": {"server": "https://far"}},
            ],
            "users": [{"name": "me", "user": user or {"token": "secret"}}],
        },
    )


def plugin(directory: Path, script: str) -> Path:
    """An executable credential plugin; counts its runs in the file ``runs`` beside it."""
    path = directory / "plugin"
    path.write_text(f"#!{sys.executable}\nopen({str(directory / 'runs')!r}, 'a').write('x')\n{script}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def executes(command: Path | str, **more: Any) -> dict[str, Any]:
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(command), **more}}


PRINTS = """
import datetime, json, os
info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
runs = len(open(RUNS).read())
end = lambda s: (datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=s)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
print(json.dumps({"apiVersion": info["apiVersion"], "kind": "ExecCredential", "status": STATUS}))
"""


def plugin_that_prints(directory: Path, status: str) -> Path:
    """A plugin that prints an ExecCredential with this status: Python, in which ``runs`` counts its runs."""
    return plugin(directory, PRINTS.replace("RUNS", repr(str(directory / "runs"))).replace("STATUS", status))


def runs(directory: Path) -> int:
    return len((directory / "runs").read_text())


async def token(config: ClusterConfig) -> str | None:
    return (await config.credential_source().current()).authorization


class Clock:
    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return datetime.datetime.now(datetime.UTC).timestamp() + self.ahead


async def test_a_plugins_token_is_used_until_it_is_about_to_expire(tmp_path: Path) -> None:
    command = plugin_that_prints(tmp_path, '{"token": f"token-{runs}", "expirationTimestamp": end(900)}')
    clock = Clock()
    source = KubeconfigCredentials(str(whole(tmp_path / "config", executes(command))), clock=clock)
    assert [(await source.current()).authorization for _ in range(3)] == ["Bearer token-1"] * 3
    clock.ahead = 830
    assert (await source.current()).authorization == "Bearer token-1"
    clock.ahead = 841  # 60 s before its end
    answers = await asyncio.gather(*(source.current() for _ in range(20)))
    assert {answer.authorization for answer in answers} == {"Bearer token-2"}
    assert runs(tmp_path) == 2


async def test_a_token_of_a_few_seconds_is_no_reason_to_run_the_plugin_for_each_request(tmp_path: Path) -> None:
    command = plugin_that_prints(tmp_path, '{"token": f"token-{runs}", "expirationTimestamp": end(10)}')
    clock = Clock()
    source = KubeconfigCredentials(str(whole(tmp_path / "config", executes(command))), clock=clock)
    assert (await source.current()).authorization == "Bearer token-1"
    assert (await source.current()).authorization == "Bearer token-1"
    clock.ahead = 10
    assert (await source.current()).authorization == "Bearer token-2"


async def test_a_plugin_that_fails_later_is_asked_again_while_its_last_token_is_good(tmp_path: Path) -> None:
    status = '{"token": f"token-{runs}", "expirationTimestamp": end(900)} if runs != 2 else exit("no network")'
    clock = Clock()
    command = plugin_that_prints(tmp_path, status)
    source = KubeconfigCredentials(str(whole(tmp_path / "config", executes(command))), clock=clock)
    await source.current()
    clock.ahead = 850
    assert (await source.current()).authorization == "Bearer token-1"
    clock.ahead = 852
    assert (await source.current()).authorization == "Bearer token-3"


async def test_expired_credentials_are_not_sent(tmp_path: Path) -> None:
    status = '{"token": "first", "expirationTimestamp": end(900)} if runs == 1 else exit("no network")'
    clock = Clock()
    source = KubeconfigCredentials(
        str(whole(tmp_path / "config", executes(plugin_that_prints(tmp_path, status)))), clock=clock
    )
    await source.current()
    clock.ahead = 901
    with pytest.raises(ConfigError, match=r"plugin.*no network"):
        await source.current()


@asynccontextmanager
async def api_server(good: set[str]) -> AsyncIterator[str]:
    """Answers 200 to these Authorization headers and 401 to others; counts neither."""

    async def handle(request: web.Request) -> web.Response:
        known = request.headers.get("Authorization") in good
        return web.json_response({"kind": "Status", "code": 401} if not known else {}, status=200 if known else 401)

    app = web.Application()
    app.router.add_get("/{path:.*}", handle)
    server = TestServer(app)
    await server.start_server()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        await server.close()


async def test_a_plugins_token_that_is_refused_is_fetched_again_once_for_all_requests(tmp_path: Path) -> None:
    good = {"Bearer token-1"}
    command = plugin_that_prints(tmp_path, '{"token": f"token-{runs}"}')  # without an end: good until it is refused
    async with api_server(good) as server:
        config = load_kubeconfig(str(whole(tmp_path / "config", executes(command), {"server": server})))
        async with await Session.open(config) as session:
            await session.get("/version")
            good.clear()
            good.add("Bearer token-2")
            await asyncio.gather(*(session.get("/version") for _ in range(10)))
            assert runs(tmp_path) == 2


async def test_a_plugin_gives_a_certificate_and_is_given_its_cluster(tmp_path: Path) -> None:
    status = '{"clientCertificateData": info["spec"]["cluster"]["server"], "clientKeyData": os.environ["EXTRA"]}'
    user = executes("./plugin", provideClusterInfo=True, env=[{"name": "EXTRA", "value": "KEY"}])
    plugin_that_prints(tmp_path, status)
    # a command with a slash is found beside the kubeconfig
    credentials = await load_kubeconfig(str(whole(tmp_path / "config", user))).credential_source().current()
    assert (credentials.client_certificate, credentials.client_key) == ("https://near:6443/", "KEY")
    assert credentials.authorization is None
    assert "KEY" not in repr(credentials)


FAULTY_PLUGINS = {
    "is not installed": (lambda p: executes(p / "none", installHint="get it there"), "is not installed: get it there"),
    "fails": (lambda p: executes(plugin(p, "exit('not logged in')")), "not logged in"),
    "prints no JSON": (lambda p: executes(plugin(p, "print('hello')")), "failed to decode"),
    "prints nothing to authenticate with": (lambda p: executes(plugin_that_prints(p, "{}")), "neither token nor"),
    "has another version": (
        lambda p: executes(plugin(p, 'print(\'{"apiVersion": "x/v1", "kind": "k", "status": {"token": "t"}}\')')),
        "does not match",
    ),
}


@pytest.mark.parametrize(("make", "words"), FAULTY_PLUGINS.values(), ids=FAULTY_PLUGINS.keys())
def test_a_plugin_that_gives_nothing_is_an_error(tmp_path: Path, make: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_kubeconfig(str(whole(tmp_path / "config", make(tmp_path))))


async def test_several_files_are_one_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "token").write_text("from b\n")
    contexts = [{"name": "here", "context": {"cluster": "near", "user": "me"}}]
    first = write(tmp_path / "a" / "config", **{"current-context": "here", "contexts": contexts})
    second = write(
        tmp_path / "b" / "config",
        **{
            "current-context": "elsewhere",  # the first file that names one decides
            "clusters": [{"name": "near", "cluster": CLUSTER}],
            "users": [{"name": "me", "user": {"tokenFile": "token"}}],  # beside the file that names it
        },
    )
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join([str(tmp_path / "absent"), str(first), str(second)]))
    config = load_config()
    assert (config.server, await token(config)) == ("https://near:6443", "Bearer from b")
    assert load_config(whole(tmp_path / "given")).namespace == "mine"  # the file given is the only one


async def test_a_context_is_chosen_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = whole(tmp_path / "config")
    parser = argparse.ArgumentParser()
    add_cluster_arguments(parser)
    args = parser.parse_args(["--kubeconfig", str(path), "--context", "there"])
    assert load_config(args.kubeconfig, args.context).server == "https://far"
    # also in a pod; without one the pod's own account counts
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".kube").mkdir()
    path.rename(tmp_path / ".kube" / "config")
    assert load_config(context="there").server == "https://far"
    with pytest.raises(ConfigError, match="not in a pod with a service account"):
        load_config()


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


PLAIN = {
    "a token": ({"token": "secret"}, "Bearer secret"),
    "a token file, which wins over a token": ({"tokenFile": "token", "token": "other"}, "Bearer in a file"),
    "a user name and password": ({"username": "me", "password": "pw"}, basic("me:pw")),
}


@pytest.mark.parametrize(("user", "expected"), PLAIN.values(), ids=PLAIN.keys())
async def test_plain_users(tmp_path: Path, user: dict[str, Any], expected: str) -> None:
    (tmp_path / "token").write_text("in a file\n")
    assert await token(load_kubeconfig(str(whole(tmp_path / "config", user)))) == expected


async def test_keys_do_not_stay_behind_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    data = {key: base64.b64encode(key.encode()).decode() for key in ("client-certificate-data", "client-key-data")}
    config = load_kubeconfig(str(whole(tmp_path / "config", data)))
    credentials = await config.credential_source().current()
    assert (credentials.client_certificate, credentials.client_key) == ("client-certificate-data", "client-key-data")
    assert list(scratch.iterdir()) == []


BAD = {
    "no such file": (lambda p: p / "absent", "no such file"),
    "no such context": (lambda p: write(whole(p / "c"), **{"current-context": "x", "contexts": []}), "name x"),
    "no current context": (lambda p: write(p / "c", contexts=[]), "give --context"),
    "a user that is not there": (
        lambda p: write(p / "c", **{**yaml.safe_load(whole(p / "c").read_text()), "users": []}),
        "name me in",
    ),
    "not YAML": (lambda p: p / "broken", "is not YAML"),
    "impersonation": (lambda p: whole(p / "c", {"token": "t", "as": "somebody"}), "impersonation"),
    "a provider of credentials that nobody has": (
        lambda p: whole(p / "c", {"auth-provider": {"name": "azure", "config": {}}}),
        r"no credentials that are supported \(auth-provider\)",
    ),
    "a proxy that HTTP does not go through": (
        lambda p: whole(p / "c", cluster={**CLUSTER, "proxy-url": "socks5://proxy:1080"}),
        "socks5",
    ),
}


@pytest.mark.parametrize(("make", "words"), BAD.values(), ids=BAD.keys())
def test_an_error_names_what_cannot_be_used(tmp_path: Path, make: Any, words: str) -> None:
    (tmp_path / "broken").write_text("a: [")
    with pytest.raises(ConfigError, match=words):
        load_config(make(tmp_path))


def test_an_error_shows_no_secret(tmp_path: Path) -> None:
    user = {"exec": {"apiVersion": "v1", "env": [{"name": "A", "value": "SECRET"}]}}  # no command
    with pytest.raises(ConfigError) as caught:
        load_kubeconfig(str(whole(tmp_path / "config", user)))
    assert "command" in str(caught.value)
    assert "SECRET" not in str(caught.value)


def test_proxies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    stated = whole(tmp_path / "stated", cluster={**CLUSTER, "proxy-url": "http://stated:3128"})
    silent = whole(tmp_path / "silent")
    here = whole(tmp_path / "here", cluster={"server": "https://127.0.0.1:6443"})
    assert load_config(silent).proxy_url is None
    monkeypatch.setenv("HTTPS_PROXY", "http://around:3128")
    assert load_config(stated).proxy_url == "http://stated:3128"
    assert load_config(silent).proxy_url == "http://around:3128"
    assert load_config(here).proxy_url is None
    monkeypatch.setenv("NO_PROXY", "near")
    assert load_config(silent).proxy_url is None


async def test_requests_go_through_the_proxy(tmp_path: Path) -> None:
    asked: list[str] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readline()).decode().split()[1])
        while (await reader.readline()).strip():
            pass
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
        writer.close()

    proxy = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = proxy.sockets[0].getsockname()[1]
    cluster = {"server": "http://far.invalid", "proxy-url": f"http://127.0.0.1:{port}"}
    async with proxy, await Session.open(load_config(whole(tmp_path / "config", cluster=cluster))) as session:
        assert await session.get("/version") == {}
    assert asked == ["http://far.invalid/version"]


def jwt(seconds: float) -> str:
    """An unsigned token that ends so many seconds from now."""
    end = datetime.datetime.now().timestamp() + seconds
    parts = ({"alg": "none"}, {"exp": end}, {})
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)


def make_certificate(directory: Path) -> tuple[Path, Path]:
    """A key, and a certificate for 127.0.0.1 that is signed with it."""
    key, certificate = directory / "issuer-key.pem", directory / "issuer.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-keyout", key, "-out", certificate, "-subj", "/CN=issuer", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    return key, certificate


@asynccontextmanager
async def issuer(directory: Path, tokens: list[str]) -> AsyncIterator[tuple[str, Path, list[str]]]:
    """An OIDC issuer: its URL, its certificate, and the refresh tokens that it was shown."""
    key, certificate = make_certificate(directory)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    shown: list[str] = []
    app = web.Application()
    server = TestServer(app, scheme="https")

    async def discover(request: web.Request) -> web.Response:
        return web.json_response({"token_endpoint": f"https://127.0.0.1:{server.port}/token"})

    async def refresh(request: web.Request) -> web.Response:
        shown.append(str((await request.post())["refresh_token"]))
        return web.json_response({"id_token": tokens.pop(0), "refresh_token": "next", "access_token": "a",
                                  "token_type": "Bearer"})  # fmt: skip

    app.router.add_get("/.well-known/openid-configuration", discover)
    app.router.add_post("/token", refresh)
    await server.start_server(ssl=context)
    try:
        yield f"https://127.0.0.1:{server.port}", certificate, shown
    finally:
        await server.close()


async def test_an_oidc_token_that_ends_is_refreshed_and_the_next_refresh_token_kept(tmp_path: Path) -> None:
    fresh = jwt(3600)
    async with issuer(tmp_path, [fresh]) as (url, authority, shown):
        provider = {
            "name": "oidc",
            "config": {
                "client-id": "kubernetes", "id-token": jwt(-10), "refresh-token": "first", "idp-issuer-url": url,
                "idp-certificate-authority-data": base64.b64encode(authority.read_bytes()).decode(),
            },
        }  # fmt: skip
        path = whole(tmp_path / "config", {"auth-provider": provider})
        config = await asyncio.to_thread(load_kubeconfig, str(path))
        assert (await token(config), shown) == (f"Bearer {fresh}", ["first"])
        kept = yaml.safe_load(path.read_text())["users"][0]["user"]["auth-provider"]["config"]
        assert kept == {**provider["config"], "id-token": fresh, "refresh-token": "next"}  # type: ignore[dict-item]


async def test_no_refresh_token_is_shown_to_an_issuer_whose_certificate_nobody_vouches_for(tmp_path: Path) -> None:
    async with issuer(tmp_path, [jwt(3600)]) as (url, _, shown):
        provider = {
            "name": "oidc",
            "config": {"client-id": "k", "id-token": jwt(-10), "refresh-token": "first", "idp-issuer-url": url},
        }
        path = whole(tmp_path / "config", {"auth-provider": provider})
        with pytest.raises(ConfigError, match="certificate"):
            await asyncio.to_thread(load_kubeconfig, str(path))
        assert shown == []


async def test_kopf_signs_in_with_the_same_credentials(tmp_path: Path) -> None:
    command = plugin_that_prints(tmp_path, '{"token": "secret", "expirationTimestamp": "2100-01-01T00:00:00Z"}')
    config = load_kubeconfig(str(whole(tmp_path / "config", executes(command))))
    info = await connection_info(config)
    assert (info.server, info.scheme, info.token) == ("https://near:6443", "Bearer", "secret")
    assert info.expiration == datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC)
    assert info.default_namespace == "mine"
