"""What kubelet answers about the CPUs that it reserves, and which servers get the agent's token."""

from __future__ import annotations

import ssl
import subprocess
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from concerto.kube import ClusterConfig
from concerto_agent import main
from concerto_agent.kubelet_configz import ConfigzSettings, KubeletConfigz
from concerto_agent.main import add_arguments
from support.faulty_server import Answer, refuses, says

NODE = "node-4"


def make_certificate(directory: Path, name: str) -> Path:
    """A file with a key and the certificate that it signs, for this host name."""
    path = directory / f"{name}.pem"
    command = [
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
        "-keyout", path, "-out", f"{path}.crt", "-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}",
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    path.write_text(path.read_text() + Path(f"{path}.crt").read_text())
    return path


@asynccontextmanager
async def kubelet(certificate: Path, answer: Answer) -> AsyncIterator[tuple[dict[str, Any], list[str]]]:
    """A kubelet with this certificate; its Node, and the requests that it was sent with their tokens."""
    seen: list[str] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        seen.append(f"{request.method} {request.path} {request.headers.get('Authorization')}")
        return await answer(request)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    server = TestServer(app)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    await server.start_server(ssl=context)
    endpoints = {"kubeletEndpoint": {"Port": server.port}}
    addresses = [{"type": "Hostname", "address": NODE}, {"type": "InternalIP", "address": "127.0.0.1"}]
    try:
        yield {"status": {"addresses": addresses, "daemonEndpoints": endpoints}}, seen
    finally:
        await server.close()


def configz(tmp_path: Path, certificate: Path | None) -> KubeletConfigz:
    api = ClusterConfig(
        "https://api", certificate_authority_data=make_certificate(tmp_path, "api").read_text(), token="t"
    )
    return KubeletConfigz(api, NODE, ConfigzSettings(tmp_path / "config.yaml", certificate or tmp_path / "none"))


# what kubelet answers, CPUs that it reserves
ANSWERS = {
    "by name": (says(200, {"kubeletconfig": {"reservedSystemCPUs": "4-5"}}), {4, 5}),
    "none": (says(200, {"kubeletconfig": {}}), set()),
    "no right": (refuses(403, "Forbidden"), None),
    "a kubelet without it": (refuses(404, "NotFound"), None),
    "no list": (says(200, {"kubeletconfig": {"reservedSystemCPUs": "5-2"}}), None),
    "something else": (says(200, ["x"]), None),
}


@pytest.mark.parametrize(("answer", "expected"), ANSWERS.values(), ids=ANSWERS)
async def test_reserved_cpus_are_those_that_kubelet_names(tmp_path, answer, expected):
    certificate = make_certificate(tmp_path, NODE)
    made = configz(tmp_path, certificate)
    assert made.reserved() is None
    async with kubelet(certificate, answer) as (node, seen):
        await made.refresh(node)
    assert made.reserved() == expected
    assert seen == ["GET /configz Bearer t"]


async def test_a_server_without_kubelets_certificate_gets_no_token(tmp_path, caplog):
    answer = says(200, {"kubeletconfig": {"reservedSystemCPUs": "4-5"}})
    made = configz(tmp_path, make_certificate(tmp_path, NODE))
    (tmp_path / "other").mkdir()
    for certificate in (make_certificate(tmp_path / "other", NODE), tmp_path / "api.pem"):  # another key, another name
        async with kubelet(certificate, answer) as (node, seen):
            await made.refresh(node)
            await made.refresh(node)
        assert (made.reserved(), seen) == (None, [])
    assert 1 <= caplog.text.count("can't be read") <= 2, "each problem is reported once"


async def test_an_answer_counts_until_kubelets_file_changes_or_kubelet_does_not_answer(tmp_path):
    certificate = make_certificate(tmp_path, NODE)
    made = configz(tmp_path, certificate)
    async with kubelet(certificate, says(200, {"kubeletconfig": {"reservedSystemCPUs": "4"}})) as (node, _):
        await made.refresh(node)
        (tmp_path / "config.yaml").write_text("reservedSystemCPUs: '5'")
        assert made.reserved() is None
        await made.refresh(node)
        assert made.reserved() == {4}
    for gone in (node, {"status": {}}, {"status": {"addresses": [{"type": "Hostname", "address": NODE}]}}):
        await made.refresh(gone)
        assert made.reserved() is None


async def test_while_kubelet_is_asked_again_its_last_answer_counts(tmp_path):
    certificate = make_certificate(tmp_path, NODE)
    made = configz(tmp_path, certificate)
    meanwhile = []

    async def answer(request: web.Request) -> web.StreamResponse:
        meanwhile.append(made.reserved())
        return await says(200, {"kubeletconfig": {"reservedSystemCPUs": "4"}})(request)

    async with kubelet(certificate, answer) as (node, _):
        await made.refresh(node)
        await made.refresh(node)
    assert meanwhile == [None, {4}]


QUOTAS = {
    "no quotas, by a flag": (says(200, {"kubeletconfig": {"cpuCFSQuota": False}}), False),
    "quotas": (says(200, {"kubeletconfig": {"cpuCFSQuota": True}}), True),
    "nothing of it": (says(200, {"kubeletconfig": {}}), None),
    "no right": (refuses(403, "Forbidden"), None),
    "something else": (says(200, {"kubeletconfig": {"cpuCFSQuota": "off"}}), None),
}


@pytest.mark.parametrize(("answer", "expected"), QUOTAS.values(), ids=QUOTAS)
@pytest.mark.parametrize("by_file", [True, False, None])
async def test_kubelets_answer_on_quotas_counts_before_its_file(tmp_path, answer, expected, by_file):
    certificate = make_certificate(tmp_path, NODE)
    if by_file is not None:
        (tmp_path / "config.yaml").write_text(f"cpuCFSQuota: {by_file}")
    made = configz(tmp_path, certificate)
    assert made.sets_quotas() is None, "nobody has asked: what is written by mistake stays"
    async with kubelet(certificate, answer) as (node, _):
        await made.refresh(node)
    assert made.sets_quotas() is (by_file if expected is None else expected)


async def test_kubelets_answer_on_quotas_counts_while_it_is_away(tmp_path):
    certificate = make_certificate(tmp_path, NODE)
    made = configz(tmp_path, certificate)
    for answer in (False, True):
        (tmp_path / "config.yaml").write_text(f"cpuCFSQuota: {not answer}")
        async with kubelet(certificate, says(200, {"kubeletconfig": {"cpuCFSQuota": answer}})) as (node, _):
            await made.refresh(node)
        await made.refresh(node)
        assert made.sets_quotas() is answer


def arguments(tmp_path: Path, *more: str) -> Namespace:
    parser = ArgumentParser()
    add_arguments(parser)
    return parser.parse_args([f"--node-name={NODE}", f"--kubelet-config={tmp_path / 'config.yaml'}", *more])


async def test_a_release_by_hand_asks_kubelet_before_it_reads_its_file(tmp_path):
    (tmp_path / "config.yaml").write_text("kind: KubeletConfiguration")
    certificate = make_certificate(tmp_path, NODE)
    api = ClusterConfig(
        "https://api", certificate_authority_data=make_certificate(tmp_path, "api").read_text(), token="t"
    )
    asked = api, arguments(tmp_path), certificate
    async with kubelet(certificate, says(200, {"kubeletconfig": {"cpuCFSQuota": False}})) as (node, _):
        assert await main.kubelet_sets_quotas(node, *asked) is False
    assert await main.kubelet_sets_quotas({}, *asked) is True, "the file does not say otherwise"


def test_an_agent_that_pins_asks_kubelet_whether_it_sets_quotas(tmp_path, monkeypatch):
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        "{clusters: [{name: c, cluster: {server: 'http://127.0.0.1:9'}}], users: [{name: u, user: {token: t}}],"
        " contexts: [{name: x, context: {cluster: c, user: u}}], current-context: x}"
    )
    given: list[Any] = []

    async def run(*args: object) -> int:
        given.extend(args)
        return 0

    monkeypatch.setattr(main, "_run", run)
    assert main.run(arguments(tmp_path, "--pinning", f"--kubeconfig={kubeconfig}")) == 0
    settings, asker = given[3], given[5]
    assert isinstance(asker, KubeletConfigz)
    assert settings.pinning.sets_quotas == asker.sets_quotas
