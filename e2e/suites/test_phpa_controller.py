"""The autoscaler on a real API server, with its own rights: what it scales, what not, and what it says."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from concerto.autoscaling.settings import ControllerSettings
from concerto.controllers.autoscaling.settings import PredictiveHPASettings
from concerto.kube import Session
from e2e.testbed import phpa_helpers
from e2e.testbed.clusters import Cluster
from e2e.testbed.metrics_api import MetricsAPI, Readings
from e2e.testbed.metrics_api.readings import PodReading
from e2e.testbed.phpa_helpers import apply, autoscaler_config, condition, deployment, phpa, reading, replicas
from e2e.testbed.processes import autoscaler_process, operator_process
from e2e.testbed.system import hollow_nodes
from e2e.testbed.waiting import eventually, eventually_async

SYNC_SECONDS = 1.0


@pytest.fixture(scope="module")
def api(concerto_cluster: Cluster) -> Iterator[MetricsAPI]:
    with MetricsAPI(concerto_cluster, concerto_cluster.work_dir) as served:
        yield served


@asynccontextmanager
async def autoscaler(cluster: Cluster) -> AsyncIterator[None]:
    """The autoscaler with its own rights."""
    controller = ControllerSettings(sync_seconds=SYNC_SECONDS, downscale_stabilization_seconds=5.0)
    async with (
        await Session.open(autoscaler_config(cluster)) as session,
        phpa_helpers.autoscaler(session, PredictiveHPASettings(controller=controller, metrics_timeout_seconds=2.0)),
    ):
        yield


def running(cluster: Cluster, namespace: str, count: int) -> list[str]:
    """Make the pods of a namespace run, once there are so many, as a kubelet would; returns their names."""

    def there() -> list[str]:
        return [p["metadata"]["name"] for p in cluster.get("pods", "-n", namespace)["items"]]

    names = eventually(f"{count} pods are made", lambda: len(found := there()) >= count and found)
    long_ago = "2026-01-01T00:00:00Z"
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": long_ago}
    status = json.dumps({"status": {"phase": "Running", "startTime": long_ago, "conditions": [ready]}})
    cluster.kubectl("patch", "pod", *names, "-n", namespace, "--subresource=status", "--type=merge", "-p", status)
    return list(names)


def decision(cluster: Cluster, namespace: str, name: str) -> Any:
    """The last one of a PredictiveHPA."""
    return phpa_helpers.status(cluster, namespace, name).get("lastDecision", {"replicas": 0, "message": ""})


def rescales(cluster: Cluster, namespace: str) -> list[str]:
    """What the events of rescales say."""
    found = cluster.get("events", "-n", namespace, "--field-selector", "reason=SuccessfulRescale")["items"]
    return [e["message"] for e in found]


async def test_a_deployment_is_scaled_up_and_down_and_both_are_explained(concerto_cluster, api, namespace):
    cluster = concerto_cluster
    apply(cluster, namespace, deployment("web", 2, {"cpu": "100m"}), phpa("web"))
    names = await asyncio.to_thread(running, cluster, namespace, 2)
    api.readings = Readings({(namespace, n): reading("web", "100m") for n in names})
    async with autoscaler(cluster):
        await eventually_async("twice the target, twice the replicas", lambda: replicas(cluster, namespace, "web") == 4)
        words = "replicas: current metrics ask for"
        await eventually_async("the status says so", lambda: words in decision(cluster, namespace, "web")["message"])
        event = "New size: 4; reason: cpu resource utilization (percentage of request) above target"
        await eventually_async("the event", lambda: event in rescales(cluster, namespace))
        api.readings = Readings({(namespace, n): reading("web", "10m") for n in names})
        await eventually_async("idle, one replica", lambda: replicas(cluster, namespace, "web") == 1)
    assert condition(cluster, namespace, "web", "Ready")[0] == "True"


def rising(cluster: Cluster, namespace: str, name: str) -> None:
    """What an operator that is gone has left behind: minutes in which the load rose from half a replica to two."""
    values = [500 + 60 * i for i in range(26)]
    history = [{"stepSeconds": 15, "last": int(time.time() // 15), "count": 1, "values": values}]
    status = json.dumps({"status": {"history": history}})
    cluster.kubectl("patch", "phpa", name, "-n", namespace, "--subresource=status", "--type=merge", "-p", status)


async def test_a_restarted_operator_goes_on_from_the_status(concerto_cluster, api, namespace):
    cluster = concerto_cluster
    apply(cluster, namespace, deployment("web", 2, {"cpu": "100m"}, schedulerName="concerto"))
    names = await asyncio.to_thread(running, cluster, namespace, 2)
    api.readings = Readings({(namespace, n): reading("web", "50m") for n in names})
    apply(cluster, namespace, phpa("web", prediction={"horizon": "2m", "reserveCapacity": True}))
    rising(cluster, namespace, "web")
    async with autoscaler(cluster):
        await eventually_async(
            "the forecast of a history it did not see", lambda: replicas(cluster, namespace, "web") > 2
        )
        why = await eventually_async("the event", lambda: rescales(cluster, namespace))
        assert "reason: forecast (" in why[0], "current metrics ask for no more than there are"

        def reserved() -> bool:
            found = cluster.get("pres", "-n", namespace)["items"]
            return [r["spec"]["count"] for r in found] == [replicas(cluster, namespace, "web") - 2]

        await eventually_async("room for the new ones is held", reserved)
        is_active = ("True", "ForecastActive")
        await eventually_async(
            "the status says so",
            lambda: (condition(cluster, namespace, "web", "Forecasting") or ())[:2] == is_active,
        )
    forecast = phpa_helpers.status(cluster, namespace, "web")["forecast"]
    assert forecast["replicas"] > 2
    assert forecast["backtest"]["errorPercent"] <= forecast["backtest"]["persistenceErrorPercent"]


async def test_room_that_a_forecast_has_reserved_is_used_up_by_the_pods_of_the_rise(concerto_cluster, api, namespace):
    cluster = concerto_cluster
    apply(cluster, namespace, deployment("web", 2, {"cpu": "100m"}, schedulerName="concerto"))
    names = await asyncio.to_thread(running, cluster, namespace, 2)
    api.readings = Readings({(namespace, n): reading("web", "50m") for n in names})
    apply(cluster, namespace, phpa("web", prediction={"horizon": "2m", "reserveCapacity": True}))
    with hollow_nodes(cluster, 2, "--api-only", "--prefix", "phpa"):
        for name in names:
            bind(cluster, namespace, name, "phpa-0000")
        rising(cluster, namespace, "web")
        processes = (
            operator_process(cluster, cluster.work_dir, "operator-phpa"),
            autoscaler_process(cluster, cluster.work_dir, [f"--autoscaling-sync-period={SYNC_SECONDS}s"]),
        )
        for process in processes:
            process.start()
        try:

            def users() -> Any:
                found = cluster.get("pres", "-n", namespace)["items"]
                status = found[0].get("status") or {} if found else {}
                return status.get("phase") == "Consumed" and {u["name"] for u in status.get("consumedBy") or ()}

            names_of_users = await eventually_async("the room is used up, and by whom is said", users)
        finally:
            for process in processes:
                process.stop()
    pods = {p["metadata"]["name"] for p in cluster.get("pods", "-n", namespace)["items"]}
    assert names_of_users <= pods - set(names), "and not by those that were there"


def bind(cluster: Cluster, namespace: str, pod: str, node: str) -> None:
    """Place a pod, as a scheduler would."""
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": pod, "namespace": namespace},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/binding"
    cluster.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(binding))


async def more_syncs(api: MetricsAPI, count: int = 3) -> None:
    """Return when the autoscaler has asked so often again."""
    before = api.requests["metrics.k8s.io"]
    await eventually_async("it asks again", lambda: api.requests["metrics.k8s.io"] >= before + count)


async def test_a_preview_says_what_it_would_do_and_does_nothing(concerto_cluster, api, namespace):
    cluster = concerto_cluster
    apply(cluster, namespace, deployment("web", 2, {"cpu": "100m"}), phpa("web", prediction={"mode": "Preview"}))
    names = await asyncio.to_thread(running, cluster, namespace, 2)
    api.readings = Readings({(namespace, n): reading("web", "100m") for n in names})

    async with autoscaler(cluster):
        await eventually_async("a decision", lambda: decision(cluster, namespace, "web").get("replicas") == 4)
        await more_syncs(api)
    assert decision(cluster, namespace, "web")["message"].startswith("Would scale from 2 to 4 replicas")
    assert replicas(cluster, namespace, "web") == 2


NO_SELECTOR = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "bares.e2e.concerto.dev"},
    "spec": {
        "group": "e2e.concerto.dev",
        "scope": "Namespaced",
        "names": {"kind": "Bare", "plural": "bares", "singular": "bare"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
                "subresources": {
                    "status": {},
                    "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"},
                },
            }
        ],
    },
}

POD_METRIC = {
    "type": "Pods",
    "pods": {"metric": {"name": "unheard-of"}, "target": {"type": "AverageValue", "averageValue": "1"}},
}
EXTERNAL = {
    "type": "External",
    "external": {"metric": {"name": "queue"}, "target": {"type": "AverageValue", "averageValue": "1"}},
}
FORMULA = {
    "type": "Formula",
    "formula": {
        "name": "load",
        "expression": "queue / 2",
        "inputs": [{"name": "queue", "external": {"metric": {"name": "queue"}}}],
        "target": {"type": "AverageValue", "averageValue": "1"},
    },
}
# Each: a deployment's requests, the PredictiveHPA, and the condition that says what is wrong
BAD: dict[str, tuple[dict[str, str], dict[str, Any], tuple[str, str, str]]] = {
    "no-target": ({"cpu": "100m"}, phpa("x", target="nobody"), ("AbleToScale", "FailedGetScale", "nobody")),
    "no-scale": (
        {"cpu": "100m"},
        phpa("x", "ConfigMap", target="kube-root-ca.crt", api_version="v1"),
        ("AbleToScale", "FailedGetScale", ""),
    ),
    "no-kind": (
        {"cpu": "100m"},
        phpa("x", "Spaceship", api_version="example.org/v1"),
        ("AbleToScale", "FailedGetScale", "Spaceship"),
    ),
    "no-selector": (
        {"cpu": "100m"},
        phpa("x", "Bare", target="bare", api_version="e2e.concerto.dev/v1"),
        ("ScalingActive", "InvalidSelector", "missing a selector"),
    ),
    "no-requests": ({}, phpa("x"), ("ScalingActive", "FailedGetResourceMetric", "missing request for cpu")),
    "unknown-metric": (
        {"cpu": "100m"},
        phpa("x", metrics=[POD_METRIC]),
        ("ScalingActive", "FailedGetPodsMetric", "unheard-of"),
    ),
    "no-series": (
        {"cpu": "100m"},
        phpa("x", metrics=[EXTERNAL]),
        ("ScalingActive", "FailedGetExternalMetric", "no metrics returned"),
    ),
    "negative": ({"cpu": "100m"}, phpa("x"), ("ScalingActive", "FailedGetResourceMetric", "usage cannot be negative")),
    "nan": ({"cpu": "100m"}, phpa("x"), ("ScalingActive", "FailedGetResourceMetric", "'NaN' is not a quantity")),
    "no-such-input": (
        {"cpu": "100m"},
        phpa("x", metrics=[FORMULA]),
        ("ScalingActive", "FailedGetFormulaMetric", "input queue: "),
    ),
    "no-agents": (
        {"cpu": "100m"},
        phpa("x", prediction={"mode": "Off", "metricsSource": "Agents"}),
        ("ScalingActive", "FailedGetResourceMetric", "no node agent has readings of these pods"),
    ),
}


async def test_bad_input_is_said_and_nothing_is_scaled_by_it(concerto_cluster, api, namespace):
    cluster = concerto_cluster
    cluster.apply(NO_SELECTOR)
    cluster.wait("--for=condition=Established", "crd/bares.e2e.concerto.dev")
    objects: list[dict[str, Any]] = [
        {"apiVersion": "e2e.concerto.dev/v1", "kind": "Bare", "metadata": {"name": "bare"}, "spec": {"replicas": 3}}
    ]
    for name, (requests, obj, _) in BAD.items():
        reference = obj["spec"]["scaleTargetRef"]
        reference = {**reference, "name": name if reference["name"] == "x" else reference["name"]}
        scaler = {**obj, "metadata": {"name": name}, "spec": {**obj["spec"], "scaleTargetRef": reference}}
        objects += [deployment(name, 3, requests), scaler]
    apply(cluster, namespace, *objects)
    pods: dict[tuple[str, str], PodReading] = {}
    for pod in await asyncio.to_thread(running, cluster, namespace, 3 * len(BAD)):
        app = pod.rsplit("-", 2)[0]
        pods[namespace, pod] = reading(app, {"negative": "-50m", "nan": "NaN"}.get(app, "300m"))
    api.readings = Readings(pods)

    def reported(name: str, wanted: tuple[str, str, str]) -> bool:
        kind, reason, words = wanted
        found = condition(cluster, namespace, name, kind) or ("", "", "")
        # on a busy machine something else may be wrong for a moment, as a timeout is
        return found[:2] == ("False", reason) and words in found[2]

    async with autoscaler(cluster):
        for name, (_, _, wanted) in BAD.items():
            await eventually_async(
                lambda n=name, w=wanted: f"{n}: {w}, not {condition(cluster, namespace, n, w[0])}",
                lambda n=name, w=wanted: reported(n, w),
            )
        await more_syncs(api, 10)
    for name in BAD:
        assert replicas(cluster, namespace, name) == 3, name
        assert condition(cluster, namespace, name, "Ready")[0] == "False", name


async def test_zero_that_a_person_asked_for_by_clock_or_annotation_ends_with_that(concerto_cluster, api, namespace):
    cluster = concerto_cluster
    night = {"name": "night", "start": "* * * * *", "end": "0 0 1 1 *", "replicas": 0}
    mars = night | {"name": "mars", "timeZone": "Mars/Base"}
    paused = phpa("paused")
    paused["metadata"]["annotations"] = {"concerto.dev/paused-replicas": "0"}
    apply(cluster, namespace, *(deployment(name, 2, {"cpu": "100m"}) for name in ("paused", "asleep")))
    apply(cluster, namespace, paused, phpa("asleep", schedules=[night, mars]))
    async with autoscaler(cluster):
        for name in ("paused", "asleep"):
            await eventually_async(f"{name} at zero", lambda n=name: replicas(cluster, namespace, n) == 0)
            words = ("True", "ScaledToZero")
            await eventually_async(
                f"{name}: its condition",
                lambda n=name, w=words: (condition(cluster, namespace, n, "ScaledToZero") or ())[:2] == w,
            )
        shown = phpa_helpers.status(cluster, namespace, "asleep")
        assert shown["openSchedules"] == ["night"]
        assert "spec.schedules[mars].timeZone 'Mars/Base' is not a time zone" in shown["schedulesMessage"]
        cluster.kubectl("annotate", "phpa", "paused", "-n", namespace, "concerto.dev/paused-replicas-")
        cluster.kubectl("patch", "phpa", "asleep", "-n", namespace, "--type=merge", "-p", '{"spec":{"schedules":[]}}')
        for name in ("paused", "asleep"):
            await eventually_async(f"{name} wakes up", lambda n=name: replicas(cluster, namespace, n) == 1)


async def test_two_on_the_same_pods_both_stop_and_say_so(concerto_cluster, api, namespace):
    cluster = concerto_cluster
    apply(
        cluster, namespace, deployment("web", 2, {"cpu": "100m"}), phpa("one", target="web"), phpa("two", target="web")
    )
    names = await asyncio.to_thread(running, cluster, namespace, 2)
    api.readings = Readings({(namespace, n): reading("web", "300m") for n in names})
    async with autoscaler(cluster):
        for name in ("one", "two"):
            await eventually_async(
                f"{name}: AmbiguousSelector",
                lambda n=name: (
                    (condition(cluster, namespace, n, "ScalingActive") or ("", ""))[1] == "AmbiguousSelector"
                ),
            )
        cluster.kubectl("delete", "phpa", "two", "-n", namespace)
        await eventually_async("the one that is left scales", lambda: replicas(cluster, namespace, "web") > 2)
        spec = {k: v for k, v in phpa("web")["spec"].items() if k != "prediction"}
        kind = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler"}
        apply(cluster, namespace, {**kind, "metadata": {"name": "old"}, "spec": spec})

        def stopped() -> bool:
            found = condition(cluster, namespace, "one", "ScalingActive") or ("", "", "")
            return found[1] == "AmbiguousSelector" and "HorizontalPodAutoscaler old" in found[2]

        await eventually_async("one: a HorizontalPodAutoscaler has the same target", stopped)


async def test_a_metrics_api_that_is_broken_or_hangs_scales_nothing_down(concerto_cluster, api, namespace):
    cluster = concerto_cluster
    apply(cluster, namespace, deployment("web", 3, {"cpu": "100m"}), phpa("web"))
    names = await asyncio.to_thread(running, cluster, namespace, 3)
    fine = {(namespace, n): reading("web", "50m") for n in names}
    api.readings = Readings(fine)

    def active(status: str) -> Any:
        found = condition(cluster, namespace, "web", "ScalingActive")
        return found if found and found[0] == status else None

    async with autoscaler(cluster):
        await eventually_async("metrics", lambda: active("True"))
        for trouble in ({"broken": frozenset({"metrics.k8s.io"})}, {"hanging": frozenset({"metrics.k8s.io"})}):
            api.readings = Readings({}, **trouble)
            found = await eventually_async(f"{trouble} is said", lambda: active("False"))
            assert found[1] == "FailedGetResourceMetric"
            api.readings = Readings(fine)
            await eventually_async("it goes on when the API answers again", lambda: active("True"))
    assert replicas(cluster, namespace, "web") == 3
