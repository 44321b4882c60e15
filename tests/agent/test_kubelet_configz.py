"""What kubelet answers about the CPUs that it reserves, and which servers get the agent's token."""

from __future__ import annotations

import asyncio
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
from concerto_agent.agent import Agent, AgentSettings
from concerto_agent.kubelet_configz import ConfigzSettings, KubeletConfigz
from concerto_agent.main import add_arguments
from concerto_agent.node_files import NodeFiles
from support.faulty_server import Answer, faulty, refuses, says
from support.node_trees import Machine
from support.waiting import eventually

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


async def test_an_answer_counts_until_kubelet_gives_another_or_refuses(tmp_path):
    """A kubelet that is started again must not take their pins from pods on CPUs that would be taken for reserved."""
    certificate = make_certificate(tmp_path, NODE)
    made = configz(tmp_path, certificate)
    async with kubelet(certificate, says(200, {"kubeletconfig": {"reservedSystemCPUs": "4"}})) as (node, _):
        await made.refresh(node)
        assert made.reserved() == {4}
    for gone in (node, {"status": {}}, {"status": {"addresses": [{"type": "Hostname", "address": NODE}]}}):
        await made.refresh(gone)
        assert made.reserved() == {4}
    for status in (401, 500, 503):
        async with kubelet(certificate, refuses(status, "X")) as (node, _):
            await made.refresh(node)
        assert made.reserved() == {4}
    async with kubelet(certificate, says(200, {"kubeletconfig": {"reservedSystemCPUs": "5"}})) as (node, _):
        await made.refresh(node)
    assert made.reserved() == {5}
    async with kubelet(certificate, refuses(403, "Forbidden")) as (node, _):
        await made.refresh(node)
    assert made.reserved() is None


async def test_a_change_of_kubelets_file_is_a_reason_to_ask_it_again(tmp_path):
    certificate = make_certificate(tmp_path, NODE)
    made = configz(tmp_path, certificate)
    (tmp_path / "config.yaml").write_text("reservedSystemCPUs: '5'")
    assert made.reserved() is None
    assert not made.file_changed.is_set()
    async with kubelet(certificate, says(200, {"kubeletconfig": {"reservedSystemCPUs": "4"}})) as (node, _):
        await made.refresh(node)
        assert made.reserved() == {4}
        assert not made.file_changed.is_set()
        (tmp_path / "config.yaml").write_text("reservedSystemCPUs: '6'")
        assert made.reserved() == {4}
        assert made.file_changed.is_set()
        await made.refresh(node)
        assert not made.file_changed.is_set()


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


class Asked:
    """Stands in for kubelet: counts how often it was asked."""

    def __init__(self) -> None:
        self.file_changed, self.times = asyncio.Event(), 0

    def reserved(self) -> frozenset[int] | None:
        return None

    async def refresh(self, node: dict[str, Any]) -> None:
        self.times += 1
        self.file_changed.clear()


async def test_an_agent_asks_at_once_and_several_times_after_a_change_of_kubelets_file(tmp_path, monkeypatch):
    monkeypatch.setattr("concerto_agent.node_follower._SOON_SECONDS", 0.01)
    kubelet, machine = Asked(), Machine(tmp_path, "v2")
    async with faulty([says(200, {"status": {}})]) as server:
        files, settings = NodeFiles(sys=machine.sys, proc=machine.proc), AgentSettings(node_seconds=1e6)
        agent = Agent(server.session, NODE, files, "1", settings, configz=kubelet)
        following = asyncio.ensure_future(agent._node.run())
        await eventually(lambda: kubelet.times == 1)
        kubelet.file_changed.set()
        await eventually(lambda: kubelet.times == 2 + 15)
        server.script = [refuses(503, "X")]
        kubelet.file_changed.set()
        await asyncio.sleep(0.5)
        assert server.seen.count(f"GET /api/v1/nodes/{NODE}") < 17 + 10, "no endless loop where the Node can't be read"
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def test_an_agent_that_starts_publishes_no_cpus_before_it_has_asked_what_kubelet_reserves(tmp_path, monkeypatch):
    kubelet, machine, published = Asked(), Machine(tmp_path, "v2"), []
    answers = asyncio.Event()

    async def refresh(node: dict[str, Any]) -> None:
        await answers.wait()
        published.append("asked")

    async def run() -> None:
        published.append("published")

    kubelet.refresh = refresh
    async with faulty([says(200, {"status": {}})]) as server:
        agent = Agent(
            server.session, NODE, NodeFiles(sys=machine.sys, proc=machine.proc), "1", AgentSettings(), configz=kubelet
        )
        monkeypatch.setattr(agent._topology, "run", run)
        tasks = [asyncio.ensure_future(each) for each in (agent._publish_topology(), agent._node.run())]
        await server.asked(1)
        await asyncio.sleep(0.05)
        assert published == []
        answers.set()
        await eventually(lambda: published == ["asked", "published"])
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


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
