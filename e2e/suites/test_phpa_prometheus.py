"""Metrics of PredictiveHPAs from a real Prometheus, on a real API server. No series is scraped: PromQL makes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from concerto.autoscaling.settings import ControllerSettings
from concerto.controllers.autoscaling.settings import PredictiveHPASettings
from concerto.controllers.autoscaling.sources import PrometheusServer
from concerto.kube import Session
from e2e.testbed import phpa_helpers
from e2e.testbed.clusters import Cluster
from e2e.testbed.phpa_helpers import (
    Object,
    apply,
    autoscaler_config,
    condition,
    cpu_metric,
    deployment,
    phpa,
    replicas,
    status,
)
from e2e.testbed.prometheus import Prometheus
from e2e.testbed.requirements import require_prometheus
from e2e.testbed.waiting import eventually_async


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    require_prometheus()
    with Prometheus(tmp_path_factory.mktemp("prometheus"), []) as server:
        yield server


@asynccontextmanager
async def autoscaler(cluster: Cluster, server: PrometheusServer) -> AsyncIterator[None]:
    """The autoscaler with its own rights."""
    controller = ControllerSettings(sync_seconds=1.0)
    settings = PredictiveHPASettings(controller=controller, prometheus=server)
    async with (
        await Session.open(autoscaler_config(cluster)) as session,
        phpa_helpers.autoscaler(session, settings),
    ):
        yield


def metric(query: str) -> Object:
    """A metric whose target is 10 a pod; 2 is not yet load."""
    target = {"type": "AverageValue", "averageValue": "10"}
    return {
        "type": "Prometheus",
        "prometheus": {"name": "queue", "query": query, "target": target, "activationValue": 2},
    }


def formula(expression: str, **queries: str) -> Object:
    """A formula over queries whose target is 10 a pod."""
    target = {"type": "AverageValue", "averageValue": "10"}
    inputs = [{"name": name, "prometheus": {"query": query}} for name, query in queries.items()]
    return {
        "type": "Formula",
        "formula": {"name": "load", "expression": expression, "inputs": inputs, "target": target},
    }


async def test_replicas_follow_a_query_and_an_error_is_in_the_conditions(
    concerto_cluster: Cluster, prometheus: Prometheus, namespace: str, tmp_path: Path
) -> None:
    cluster = concerto_cluster
    queries = {
        "web": "sum(vector(12) or label_replace(vector(30), 'a', 'b', '', ''))",
        "idle": "vector(2)",
        "two": "vector(1) or label_replace(vector(2), 'a', 'b', '', '')",
        "words": "sum(",
    }
    metrics = {name: metric(query) for name, query in queries.items()}
    metrics["sum"] = formula("queue + 2 * jobs", queue="vector(20)", jobs="vector(5.5)")
    metrics["gap"] = formula("queue / jobs", queue="vector(20)", jobs="vector(0)")
    for name, used in metrics.items():
        scaled = phpa(name, minReplicas=0, metrics=[used])
        apply(cluster, namespace, deployment(name, 0 if name == "idle" else 2), scaled)
    errors = {
        "two": ("FailedGetPrometheusMetric", "returned 2 series instead of one: write it like sum(...)"),
        "words": ("FailedGetPrometheusMetric", "parse error"),
        "gap": ("FailedGetFormulaMetric", "the formula divides by zero"),
    }
    async with autoscaler(cluster, PrometheusServer(prometheus.url)):
        await eventually_async("42 are five replicas of 10", lambda: replicas(cluster, namespace, "web") == 5)
        await eventually_async("31 are four replicas of 10", lambda: replicas(cluster, namespace, "sum") == 4)
        for name, (reason, words) in errors.items():

            def reported(name: str = name, reason: str = reason, words: str = words) -> bool:
                found = condition(cluster, namespace, name, "ScalingActive") or ("", "", "")
                return found[:2] == ("False", reason) and words in found[2]

            await eventually_async(f"{name}: {words}", reported)
        shown = await asyncio.to_thread(status, cluster, namespace, "web")
    assert shown["currentMetrics"][0]["prometheus"]["name"] == "queue"
    assert [replicas(cluster, namespace, name) for name in ("idle", *errors)] == [0, 2, 2, 2]


async def test_the_history_of_a_new_object_is_loaded_and_an_error_is_a_condition(
    concerto_cluster: Cluster, prometheus: Prometheus, namespace: str
) -> None:
    cluster = concerto_cluster
    asking = {"web": {"query": "3 + 0 * vector(time())"}, "derived": {}}
    for name, initial in asking.items():
        scaled = phpa(name, metrics=[metric("vector(15)")], prediction={"initialHistory": initial})
        if not initial:
            scaled["spec"]["metrics"].append(cpu_metric())
        apply(cluster, namespace, deployment(name, 2, {"cpu": "100m"}), scaled)
    loaded = {"web": ("True", "h of history from before"), "derived": ("False", "no series")}
    async with autoscaler(cluster, PrometheusServer(prometheus.url)):
        for name, (state, words) in loaded.items():

            def is_shown(name: str = name, state: str = state, words: str = words) -> bool:
                found = condition(cluster, namespace, name, "HistoryLoaded") or ("", "", "")
                return found[0] == state and words in found[2]

            await eventually_async(f"{name}: {words}", is_shown)
    rings = status(cluster, namespace, "web")["history"]
    values = next(ring["values"] for ring in rings if ring["stepSeconds"] == 300)
    assert (len(values) >= 862, set(values[:860])) == (True, {3000})
