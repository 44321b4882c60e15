"""What a thousand PredictiveHPAs cost one operator: the forecasts alone, and whole rounds on a real API server."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from pytest_benchmark.fixture import BenchmarkFixture

from concerto.api.pod_requests import ContainerResources
from concerto.autoscaling.forecast_influence import Subject, predict
from concerto.autoscaling.forecast_settings import ForecastSettings
from concerto.autoscaling.history import Ring
from concerto.autoscaling.settings import ControllerSettings
from concerto.controllers.autoscaling.settings import PredictiveHPASettings
from concerto.controllers.autoscaling.sources import AgentMetrics
from concerto.kube import ClusterConfig, Resource, Session
from concerto.kube.resources import PODS, PREDICTIVE_HPAS
from concerto.serving.certificate import make_certificate
from concerto_agent.pod_metrics_server import PATH
from e2e.testbed import REPOSITORY
from e2e.testbed.clusters import Cluster
from e2e.testbed.metrics_api import MetricsAPI, Readings
from e2e.testbed.metrics_api.readings import PodReading
from e2e.testbed.phpa_helpers import Shown, autoscaler
from support.pod_views import target_pod

pytestmark = pytest.mark.bench

OBJECTS = 1000
SYNC_SECONDS = 15.0
ROUNDS = 3
REPLICA_SETS = Resource("apps", "v1", "replicasets", "ReplicaSet", True)
OUTPUT = REPOSITORY / "build" / "bench-phpa.json"


def full_subjects() -> list[Subject]:
    """Objects whose rings are full, each with a load of its own."""
    rng = np.random.default_rng(1)
    subjects = []
    for _ in range(OBJECTS):
        load = np.abs(rng.normal(5000, 500, 1824) + 3000 * np.sin(np.arange(1824) / rng.uniform(20, 80)))
        values = tuple(int(v) for v in load)
        fine = Ring(15, 240, last=1_000_000, values=values[:240], count=1)
        coarse = Ring(300, 864, last=50_000, values=values[240:1104], count=1)
        weekly = Ring(1800, 720, last=8_333, values=values[1104:], count=1)
        horizon = float(rng.choice([30, 60, 135, 300]))
        subjects.append(Subject(fine, coarse, horizon, 15_000_007.0, weekly=weekly))
    return subjects


def test_forecasts_of_a_thousand_objects(benchmark: BenchmarkFixture) -> None:
    subjects = full_subjects()
    benchmark(predict, subjects, 15_000_010.0, ForecastSettings(), stale_seconds=120.0)


class CountingSession(Session):
    """Counts what is asked."""

    asked: Counter[str]

    async def request(self, method: str, path: str, **kwargs: Any) -> dict[str, Any]:
        part = "status" if path.endswith("/status") else "scale" if path.endswith("/scale") else path.split("/")[2]
        self.asked[f"{method} {part}"] += 1
        return await super().request(method, path, **kwargs)


@pytest.mark.timeout(900)
async def test_rounds_of_a_thousand_objects(
    concerto_cluster: Cluster, namespace: str, say: Callable[[str], None]
) -> None:
    config = ClusterConfig.from_kubeconfig(concerto_cluster.kubeconfig)
    with MetricsAPI(concerto_cluster, concerto_cluster.work_dir) as api:
        async with await CountingSession.open(config) as session:
            session.asked = Counter()
            await _populate(session, namespace, api)
            settings = PredictiveHPASettings(controller=ControllerSettings(sync_seconds=SYNC_SECONDS))
            async with autoscaler(session, settings):
                await asyncio.sleep(2 * SYNC_SECONDS)
                session.asked.clear()
                before, readers, cpu = time.monotonic(), dict(api.requests), time.thread_time()
                await asyncio.sleep(ROUNDS * SYNC_SECONDS)
                cpu, rounds = time.thread_time() - cpu, (time.monotonic() - before) / SYNC_SECONDS
            lists = api.requests["metrics.k8s.io"] - readers.get("metrics.k8s.io", 0)
    calls = {name: round(count / rounds, 1) for name, count in sorted(session.asked.items())}
    figures = {
        "objects": OBJECTS,
        "cpuSecondsPerRound": round(cpu / rounds, 3),
        "callsPerRound": calls,
        "metricsListsPerRound": round(lists / rounds, 1),
    }
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(json.dumps(figures, indent=1))
    say(f"1,000 PredictiveHPAs, per round of {SYNC_SECONDS:.0f} s: {json.dumps(figures)}")
    assert all(count < 1.2 * OBJECTS for count in calls.values())


NODES, PODS_OF_A_NODE = 100, 30


def _serve(ready: threading.Event, where: dict[str, Any], questions: Counter[str]) -> None:
    """All nodes' agents, in a thread of their own: each says the same of its pods, and counts who asks."""
    loop = asyncio.new_event_loop()
    certificate = make_certificate()

    async def answer(request: web.Request) -> web.Response:
        questions["agents"] += 1
        node, stamp = request.host.split(":")[0].split(".")[-1], round(time.time() * 1000)
        lines = []
        for pod in range(PODS_OF_A_NODE):
            labels = f'{{container="app",namespace="n",pod="t{int(node) - 1 + NODES * pod}"}}'
            for family, value in (
                ("cpu_usage_seconds_total", time.monotonic() * 0.05),
                ("memory_working_set_bytes", 1e7),
                ("start_time_seconds", 1.0),
            ):
                lines.append(f"container_{family}{labels} {value!r} {stamp}")
        return web.Response(text="\n".join(lines) + "\n")

    async def start() -> None:
        app = web.Application()
        app.router.add_get(PATH, answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "0.0.0.0", 0, ssl_context=certificate.context).start()
        where.update(port=runner.addresses[0][1], certificateSHA256=certificate.sha256)
        ready.set()

    loop.run_until_complete(start())
    loop.run_forever()


async def test_rounds_of_a_thousand_objects_that_read_agents(say: Callable[[str], None]) -> None:
    """The readings alone: 1,000 objects of one pod, over 100 nodes of 30 pods, at their places in three rounds."""
    ready, where, questions = threading.Event(), dict[str, Any](), Counter[str]()
    threading.Thread(target=_serve, args=(ready, where, questions), daemon=True).start()
    assert ready.wait(30)
    capacities = {
        ("", f"n{i}"): {"status": {"agent": {"metrics": {**where, "address": f"127.0.0.{i + 1}"}}}}
        for i in range(NODES)
    }
    app = (ContainerResources("app"),)
    pods = [target_pod(f"t{i}", node_name=f"n{i % NODES}", host="", containers=app) for i in range(OBJECTS)]
    agents = AgentMetrics(capacities, Shown("t"), time.time)
    looks_a_second, found = OBJECTS / SYNC_SECONDS, 0

    async def one_round() -> None:
        nonlocal found
        began, done = time.monotonic(), 0
        while done < OBJECTS:
            await asyncio.sleep(0.25)
            due = min(OBJECTS, round((time.monotonic() - began) * looks_a_second))
            answers = await asyncio.gather(*(agents.usage("n", [pod]) for pod in pods[done:due]))
            found += sum(len(answer.usage) for answer in answers)
            done = due

    await one_round()
    found = 0
    questions.clear()
    cpu = time.thread_time()
    for _ in range(ROUNDS):
        await one_round()
    cpu = (time.thread_time() - cpu) / ROUNDS
    await agents.close()
    say(
        f"1,000 objects that read {NODES} agents, per round of {SYNC_SECONDS:.0f} s: {cpu:.3f} CPU-seconds, "
        f"{questions['agents'] / ROUNDS:.0f} questions, {found / ROUNDS:.0f} readings"
    )
    assert found == ROUNDS * OBJECTS
    assert questions["agents"] <= 3.2 * NODES * ROUNDS


async def _populate(session: Session, namespace: str, api: MetricsAPI) -> None:
    limit = asyncio.Semaphore(16)
    long_ago = "2026-01-01T00:00:00Z"

    async def one(index: int) -> None:
        name = f"t{index}"
        container = {"name": "app", "image": "none.invalid/none", "resources": {"requests": {"cpu": "100m"}}}
        labels = {"app": name}
        body = {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {"name": name},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
            },
        }
        reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name}
        utilization = {"type": "Utilization", "averageUtilization": 50}
        metrics = [{"type": "Resource", "resource": {"name": "cpu", "target": utilization}}]
        scaler = {
            "apiVersion": "concerto.dev/v1alpha1",
            "kind": "PredictiveHPA",
            "metadata": {"name": name},
            "spec": {"scaleTargetRef": reference, "maxReplicas": 5, "metrics": metrics},
        }
        async with limit:
            await session.create(REPLICA_SETS.path(namespace), body)
            await session.create(PREDICTIVE_HPAS.path(namespace), scaler)

    await asyncio.gather(*(one(i) for i in range(OBJECTS)))
    pods: list[dict[str, Any]] = []
    while len(pods) < OBJECTS:
        await asyncio.sleep(1)
        pods = (await session.list(PODS.path(namespace)))["items"]
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": long_ago}
    status = {"status": {"phase": "Running", "startTime": long_ago, "conditions": [ready]}}

    async def run(name: str) -> None:
        async with limit:
            await session.patch(PODS.path(namespace, name, "status"), status)

    await asyncio.gather(*(run(p["metadata"]["name"]) for p in pods))
    api.readings = Readings(
        {(namespace, p["metadata"]["name"]): PodReading(p["metadata"]["labels"], {"app": {"cpu": "50m"}}) for p in pods}
    )
