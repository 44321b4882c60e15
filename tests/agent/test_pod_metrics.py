"""Metrics of pods: what is read from cgroups, how it is written, and who gets to see it."""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from pathlib import Path

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from concerto.api.nodecapacity import METRICS_AUDIENCE, metrics_audience
from concerto.kube.access_review import AccessReviewer, Verdict
from concerto.serving.certificate import make_certificate
from concerto.serving.connection_limiter import ConnectionLimits
from concerto_agent.cgroups import Hierarchies, container_id
from concerto_agent.pod_census import trim_pod
from concerto_agent.pod_metrics import PodMetrics
from concerto_agent.pod_metrics_server import PATH, read_pod_metrics, serve
from support.faulty_server import Answer, faulty, says
from support.node_trees import STATIC_UID, UIDS, Machine, pod_paths

APP, SIDE, SANDBOX = ("a" * 64, "b" * 64, "c" * 64)
NAMES = {"cgroupfs": "{}", "systemd": "cri-containerd-{}.scope"}


def pod(
    uid: str, name: str, *containers: str, mirror_of: str | None = None, started: str = "2026-03-01T12:00:00Z"
) -> dict:
    ids = {"app": APP, "side": SIDE}
    running = {"running": {"startedAt": started}}
    annotations = {"kubernetes.io/config.mirror": mirror_of, "kubernetes.io/config.hash": mirror_of}
    return trim_pod(
        {
            "metadata": {
                "name": name,
                "namespace": "shop",
                "uid": uid,
                "resourceVersion": "1",
                "annotations": annotations if mirror_of else {},
            },
            "status": {
                "initContainerStatuses": [
                    {"name": "init", "containerID": "containerd://x", "state": {"terminated": {"exitCode": 0}}}
                ],
                "containerStatuses": [
                    {"name": c, "containerID": f"containerd://{ids[c]}", "state": running} for c in containers
                ],
            },
        }
    )


class Time:
    """Both clocks."""

    def __init__(self) -> None:
        self.now = 1_772_366_400.5

    def __call__(self) -> float:
        return self.now


def metrics_of(machine: Machine, cgroups: dict[str, str], pods: list[dict], time: Time | None = None) -> PodMetrics:
    time = time or Time()
    store = {p["metadata"]["name"]: p for p in pods}
    return PodMetrics(Hierarchies.detect(machine.sys), cgroups, store, clock=time, wall=time)


def read(text: str) -> dict[tuple[str, str, str], float]:
    """Values by family, pod and container."""
    return {
        (sample.name, sample.labels.get("pod", ""), sample.labels.get("container", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def values(
    name: str, whole: tuple[float, int], containers: dict[str, tuple[float, int | None]], *, errors: int
) -> dict[tuple[str, str, str], float]:
    """The same of one pod, as it is to be: CPU seconds and bytes of it and of its containers."""
    expected: dict[tuple[str, str, str], float] = {
        ("pod_cpu_usage_seconds_total", name, ""): whole[0],
        ("pod_memory_working_set_bytes", name, ""): whole[1],
        ("resource_scrape_error", "", ""): errors,
    }
    for container, (cpu, memory) in containers.items():
        expected["container_cpu_usage_seconds_total", name, container] = cpu
        expected["container_start_time_seconds", name, container] = 1_772_366_400
        if memory is not None:
            expected["container_memory_working_set_bytes", name, container] = memory
    return expected


@pytest.mark.parametrize("layout", ["v1", "v2", "hybrid"])
@pytest.mark.parametrize("driver", ["cgroupfs", "systemd"])
def test_pods_and_their_containers_are_written_as_kubelet_writes_them(tmp_path: Path, layout, driver):
    machine = Machine(tmp_path, layout)
    paths = pod_paths(driver, {UIDS[0]: "burstable"})
    path = paths[UIDS[0]]
    for name, seconds, usage in ((APP, 1.25, 3000), (SIDE, 0.5, 500), (SANDBOX, 0.01, 10)):
        inner = f"{path}/{NAMES[driver].format(name)}"
        machine.cpu(inner, seconds)
        machine.memory(inner, usage, 100)
    machine.cpu(path, 1.76)
    machine.memory(path, 3510, 200)
    text = metrics_of(machine, paths, [pod(UIDS[0], "web-1", "app", "side")]).text()
    where = 'namespace="shop",pod="web-1"'
    assert f'container_cpu_usage_seconds_total{{container="app",{where}}} 1.25 1772366400500\n' in text
    assert read(text) == values("web-1", (1.76, 3310), {"app": (1.25, 2900), "side": (0.5, 400)}, errors=0)


def test_what_cannot_be_read_is_left_out_and_said(tmp_path: Path):
    machine = Machine(tmp_path, "v2")
    paths = pod_paths("cgroupfs", {UIDS[0]: "burstable", UIDS[1]: "burstable"})
    machine.cpu(paths[UIDS[0]], 1.0)
    machine.memory(paths[UIDS[0]], 100)
    machine.cpu(f"{paths[UIDS[0]]}/{APP}", 1.0)  # and no memory
    gone = {uid: path for uid, path in paths.items() if uid == UIDS[0]}
    pods = [pod(UIDS[0], "half", "app", "side"), pod(UIDS[1], "not-here", "app")]
    assert read(metrics_of(machine, gone, pods).text()) == values("half", (1.0, 100), {"app": (1.0, None)}, errors=1)


@pytest.mark.parametrize("started", ["10000-01-01T23:58:59Z", "", "soon", "2026-02-30T00:00:00Z"])
def test_a_container_whose_start_can_not_be_read_lacks_only_its_start(tmp_path: Path, started):
    machine = Machine(tmp_path, "v2")
    paths = pod_paths("cgroupfs", dict.fromkeys(UIDS[:2], "burstable"))
    for path in (path for pod_path in paths.values() for path in (pod_path, f"{pod_path}/{APP}")):
        machine.cpu(path, 1.0)
        machine.memory(path, 100)
    pods = [pod(UIDS[0], "bad", "app", started=started), pod(UIDS[1], "good", "app")]
    whole = [values(p["metadata"]["name"], (1.0, 100), {"app": (1.0, 100)}, errors=0) for p in pods]
    del whole[0]["container_start_time_seconds", "bad", "app"]
    assert read(metrics_of(machine, paths, pods).text()) == whole[0] | whole[1]


def test_a_static_pod_is_found_by_the_hash_of_its_manifest(tmp_path: Path):
    machine = Machine(tmp_path, "v2")
    paths = pod_paths("cgroupfs", {STATIC_UID: "burstable"})
    machine.cpu(paths[STATIC_UID], 2.0)
    machine.memory(paths[STATIC_UID], 100)
    found = read(metrics_of(machine, paths, [pod(UIDS[0], "static", mirror_of=STATIC_UID)]).text())
    assert found["pod_cpu_usage_seconds_total", "static", ""] == 2.0


def test_cgroups_are_read_once_a_second_however_often_somebody_asks(tmp_path: Path):
    machine, time = Machine(tmp_path, "v2"), Time()
    paths = pod_paths("cgroupfs", {UIDS[0]: "burstable"})
    machine.memory(paths[UIDS[0]], 100)
    metrics = metrics_of(machine, paths, [pod(UIDS[0], "web")], time)
    seen = []
    for step, seconds in enumerate((1.0, 2.0, 3.0)):
        time.now += 0.6 * bool(step)
        machine.cpu(paths[UIDS[0]], seconds)
        seen.append(read(metrics.text())["pod_cpu_usage_seconds_total", "web", ""])
    assert seen == [1.0, 1.0, 3.0]


@pytest.mark.parametrize(
    ("directory", "found"),
    [
        (APP, APP),
        (f"cri-containerd-{APP}.scope", APP),
        (f"crio-{APP}.scope", APP),
        (f"crio-conmon-{APP}.scope", None),
        ("besteffort", None),
        (f"pod{UIDS[0]}", None),
    ],
)
def test_a_container_is_reported_by_its_directory(directory, found):
    assert container_id(directory) == found


# Who gets to see it


def known_for(audience: str) -> Answer:
    user = {"username": "op", "groups": ["g"]}
    return says(201, {"status": {"authenticated": True, "audiences": [audience], "user": user}})


KNOWN = known_for(metrics_audience("n1"))
UNKNOWN = says(201, {"status": {"authenticated": False}})
MAY, MAY_NOT = (says(201, {"status": {"allowed": allowed}}) for allowed in (True, False))
TOKEN, ACCESS = (
    "POST /apis/authentication.k8s.io/v1/tokenreviews",
    "POST /apis/authorization.k8s.io/v1/subjectaccessreviews",
)
JUDGED: dict[str, tuple[str | None, list[Answer], int, list[str]]] = {
    "nobody": (None, [MAY], 401, []),
    "a password": ("Basic b3A6b3A=", [MAY], 401, []),
    "an empty token": ("Bearer ", [MAY], 401, []),
    "a token of other letters than tokens have": ("Bearer \udcff", [MAY], 401, []),
    "a token that is not valid": ("Bearer t", [UNKNOWN], 401, [TOKEN]),
    "a token for the API server": ("Bearer t", [known_for("https://kubernetes")], 401, [TOKEN]),
    "a token that was shown to another agent": ("Bearer t", [known_for(metrics_audience("n2"))], 401, [TOKEN]),
    "a caller without the right": ("Bearer t", [KNOWN, MAY_NOT], 403, [TOKEN, ACCESS]),
    "a caller with the right": ("Bearer t", [KNOWN, MAY], 200, [TOKEN, ACCESS]),
    "a caller with a token for all agents": ("Bearer t", [known_for(METRICS_AUDIENCE), MAY], 200, [TOKEN, ACCESS]),
    "an API server that fails": ("Bearer t", [says(500)], 503, [TOKEN]),
    "an API server that answers nonsense": ("Bearer t", [says(201, {})], 503, [TOKEN]),
}


@pytest.mark.parametrize(("header", "answers", "status", "asked"), JUDGED.values(), ids=JUDGED)
async def test_the_api_server_says_who_may_read(header, answers, status, asked):
    async with faulty(answers) as server:
        assert (await AccessReviewer(server.session, read_pod_metrics("n1")).judge(header)).status == status
        assert server.seen == asked


@pytest.mark.parametrize(
    ("answers", "kept", "status"),
    [([KNOWN, MAY], 60, 200), ([KNOWN, MAY_NOT], 10, 403), ([UNKNOWN], 10, 401), ([says(500)], 0, 503)],
    ids=["allowed", "without the right", "unknown", "not known now"],
)
async def test_a_verdict_is_remembered_for_a_while_and_a_failure_is_not(answers, kept, status):
    time = Time()
    async with faulty(answers) as server:
        callers = AccessReviewer(server.session, read_pod_metrics("n1"), clock=time)
        await callers.judge("Bearer t")
        once = len(server.seen)
        time.now += kept - 0.1
        await callers.judge("Bearer t")
        assert len(server.seen) == (once if kept else 2 * once)
        time.now += 0.2
        await callers.judge("Bearer t")
        assert len(server.seen) > once, f"{status} is asked again in the end"


async def test_strangers_cannot_fill_the_memory():
    async with faulty([UNKNOWN]) as server:
        callers = AccessReviewer(server.session, read_pod_metrics("n1"))
        for number in range(100):
            await callers.judge(f"Bearer {number}")
        assert len(callers._known) == 64


async def test_strangers_do_not_push_out_who_may_read():
    async with faulty([KNOWN, MAY, UNKNOWN]) as server:
        callers = AccessReviewer(server.session, read_pod_metrics("n1"))
        await callers.judge("Bearer good")
        for number in range(100):
            await callers.judge(f"Bearer {number}")
        before = len(server.seen)
        assert (await callers.judge("Bearer good")).status == 200
        assert len(server.seen) == before


HEAD = b"GET /metrics/resource HTTP/1.1\r\nHost: n1\r\n"
STRANGERS: dict[str, tuple[bool, bytes]] = {
    "connects and sends nothing": (False, b""),
    "does not end its handshake": (False, b"\x16\x03\x01\x02\x00"),
    "does not end its request": (True, HEAD),
    "has no token": (True, HEAD + b"\r\n"),
    "asks a thousand times at once": (True, (HEAD + b"\r\n") * 1000),
    "asks with a token of bytes": (True, HEAD + b"Authorization: Bearer \xff\xfe\r\n\r\n"),
}


@pytest.mark.parametrize(("over_tls", "words"), STRANGERS.values(), ids=STRANGERS)
async def test_few_strangers_are_let_in_at_a_time_and_those_who_may_read_get_through(tmp_path: Path, over_tls, words):
    certificate, trusting = make_certificate(), ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    settings = ConnectionLimits(connections=4, handshakes=4, handshake_seconds=60.0, pause_seconds=0.0)
    async with faulty([KNOWN, MAY]) as api:
        metrics = metrics_of(Machine(tmp_path, "v2"), {}, [])
        runner, endpoint = await serve(
            "127.0.0.1:0", metrics, AccessReviewer(api.session, read_pod_metrics("n1")), certificate, settings
        )
        strangers = []
        try:
            for _ in range(20):
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", endpoint.port, ssl=trusting if over_tls else None
                )
                writer.write(words)
                strangers.append((reader, writer))
            pinned = aiohttp.Fingerprint(bytes.fromhex(endpoint.certificate_sha256))
            url, token = f"https://127.0.0.1:{endpoint.port}{PATH}", {"Authorization": "Bearer t"}
            async with aiohttp.ClientSession() as client, client.get(url, ssl=pinned, headers=token) as answer:
                assert answer.status == 200
            # All but the last few were shown out
            async with asyncio.timeout(20):
                await asyncio.gather(*(reader.read() for reader, _ in strangers[:12]), return_exceptions=True)
        finally:
            for _, writer in strangers:
                writer.transport.abort()
            await runner.cleanup()


async def test_it_is_served_over_tls_by_the_certificate_that_it_is_given(tmp_path: Path):
    certificate = make_certificate()
    async with faulty([KNOWN, MAY]) as api:
        metrics = metrics_of(Machine(tmp_path, "v2"), {}, [])
        runner, endpoint = await serve(
            "127.0.0.1:0", metrics, AccessReviewer(api.session, read_pod_metrics("n1")), certificate
        )
        try:
            assert endpoint.address == "127.0.0.1"
            presented = ssl.PEM_cert_to_DER_cert(
                await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", endpoint.port))
            )
            assert hashlib.sha256(presented).hexdigest() == endpoint.certificate_sha256 == certificate.sha256
            url = f"https://127.0.0.1:{endpoint.port}{PATH}"
            pinned = aiohttp.Fingerprint(bytes.fromhex(endpoint.certificate_sha256))
            async with aiohttp.ClientSession() as client:
                async with client.get(url, ssl=pinned) as answer:
                    assert answer.status == 401
                async with client.get(url, ssl=pinned, headers={"Authorization": "Bearer t"}) as answer:
                    assert (answer.status, "resource_scrape_error 0" in await answer.text()) == (200, True)
        finally:
            await runner.cleanup()


def test_each_start_has_a_certificate_of_its_own():
    assert make_certificate().sha256 != make_certificate().sha256


async def test_a_wildcard_is_no_address(tmp_path: Path):
    async with faulty([MAY]) as api:
        callers = AccessReviewer(api.session, read_pod_metrics("n1"))
        runner, endpoint = await serve("0.0.0.0:0", metrics_of(Machine(tmp_path, "v2"), {}, []), callers, make_certificate())  # fmt: skip # noqa: E501
        await runner.cleanup()
    assert endpoint.address == ""
    assert endpoint.to_raw() == {"port": endpoint.port, "certificateSHA256": endpoint.certificate_sha256}
    assert await callers.judge(None) == Verdict(401, "a bearer token is needed")
