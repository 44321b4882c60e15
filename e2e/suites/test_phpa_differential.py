"""PredictiveHPA without forecasts against the real HorizontalPodAutoscaler controller, scenario by scenario.

Each scenario has twins: the same target kind, pods, readings and spec, one scaled by kube-controller-manager and one by
us. Readings move in steps that last several sync periods of both, so that both have settled when they are compared.
Behaviours use windows and periods that are either over within a step or longer than the test: at their edges the two
would differ by which of them looked first, which is no difference.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from concerto.autoscaling.settings import ControllerSettings
from concerto.controllers.autoscaling.settings import PredictiveHPASettings
from concerto.kube import ClusterConfig, Resource, Session
from concerto.kube.resources import PODS, PREDICTIVE_HPAS
from e2e.testbed import REPOSITORY
from e2e.testbed.clusters import LocalControlPlane
from e2e.testbed.metrics_api import MetricsAPI, Readings
from e2e.testbed.metrics_api.readings import PodReading
from e2e.testbed.phpa_helpers import autoscaler
from e2e.testbed.requirements import require_binaries
from e2e.testbed.waiting import eventually, eventually_async

SCENARIOS = int(os.environ.get("PHPA_SCENARIOS", "20"))
"""`make test` runs a sample; PHPA_SCENARIOS=300 runs 300 of all kinds (10 min)."""
ALL_KINDS = SCENARIOS > 50
"""A sample leaves out behaviours without policies of their own: the default ones take 15 s to let a rise through."""
BATCH = 50
STEPS = 4 if ALL_KINDS else 3
SYNC_SECONDS = 2.0
STEP_SECONDS = 19.0 if ALL_KINDS else 7.0
WINDOW_SECONDS = 4
LONG = 1800
HPAS = Resource("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", True)
TARGETS = Resource("apps", "v1", "replicasets", "ReplicaSet", True)
"""Scalable, known to both controllers from the start, and left alone: their own controller does not run here."""


@pytest.fixture(scope="module")
def plane(say: Callable[[str], None]) -> Iterator[LocalControlPlane]:
    """A control plane of its own, whose HPA controller is quick."""
    binaries = require_binaries(say)
    flags = [
        f"--horizontal-pod-autoscaler-sync-period={SYNC_SECONDS:.0f}s",
        f"--horizontal-pod-autoscaler-downscale-stabilization={WINDOW_SECONDS}s",
        "--concurrent-horizontal-pod-autoscaler-syncs=16",
        # The garbage collector would make Failed pods of those that are being deleted, at a moment that only one side
        # may have seen; the targets' pods are the scenarios' own
        "--controllers=*,-pod-garbage-collector-controller,-replicaset-controller",
        "--kube-api-qps=2000",
        "--kube-api-burst=2000",
    ]
    with LocalControlPlane(binaries, controller_manager_flags=flags) as started:
        crd = REPOSITORY / "crds" / "predictivehpas.yaml"
        started.kubectl("apply", "-f", str(crd))
        group = ("get", "--raw", "/apis/concerto.dev/v1alpha1")
        eventually("the kind is served", lambda: '"predictivehpas"' in started.kubectl(*group, check=False))
        yield started


@dataclass
class Pod:
    """A pod's part in a scenario."""

    name: str
    phase: str
    ready: str | None
    started_ago: float | None
    ready_ago: float
    reading: bool
    deleting: bool
    window: str = "30s"


@dataclass
class Scenario:
    """One scenario, without its twins' names."""

    name: str
    replicas: int
    pods: list[Pod]
    spec: dict[str, Any]
    loads: list[dict[str, float]]
    pod_level: bool
    """Whether pods request CPU as a whole, and an init container of theirs more memory than the others."""


HOUR = 3600.0
KINDS: dict[str, Callable[[str], Pod]] = {
    "ready": lambda n: Pod(n, "Running", "True", HOUR, HOUR, True, False),
    "ready and young": lambda n: Pod(n, "Running", "True", 100, 90, True, False, "1s"),
    "ready, its reading holds its start": lambda n: Pod(n, "Running", "True", 20, 10, True, False, "1h"),
    "young and not ready": lambda n: Pod(n, "Running", "False", 20, 20, True, False),
    "old and never ready": lambda n: Pod(n, "Running", "False", HOUR, HOUR - 10, True, False),
    "old and no longer ready": lambda n: Pod(n, "Running", "False", HOUR, 60, True, False),
    "without a Ready condition": lambda n: Pod(n, "Running", None, HOUR, 0, True, False),
    "pending": lambda n: Pod(n, "Pending", None, None, 0, False, False),
    "without a reading": lambda n: Pod(n, "Running", "True", HOUR, HOUR, False, False),
    "failed": lambda n: Pod(n, "Failed", "False", HOUR, 60, True, False),
    "being deleted": lambda n: Pod(n, "Running", "True", HOUR, HOUR, True, True),
}


def scenario(index: int) -> Scenario:
    """The scenario of that number, always the same."""
    rng = random.Random(f"phpa-{index}")
    replicas = rng.randint(2, 6)
    count = max(1, replicas + rng.choice([-1, 0, 0, 0, 1]))
    plain = rng.random() < 0.35
    pods = [
        KINDS["ready" if plain or i == 0 or rng.random() < 0.5 else rng.choice(list(KINDS))](f"p{i}")
        for i in range(count)
    ]
    metrics = [_metric(rng) for _ in range(rng.choice([1, 1, 1, 2]))]
    low = rng.randint(1, 3)
    spec: dict[str, Any] = {"minReplicas": low, "maxReplicas": rng.randint(max(low, 5), 14), "metrics": metrics}
    if rng.random() < 0.6:
        policies = not ALL_KINDS or rng.random() < 0.6
        spec["behavior"] = {
            direction: rules for direction in ("scaleUp", "scaleDown") if (rules := _rules(rng, direction, policies))
        }
    names = ("cpu", "memory", "qps", "object", "external")
    loads = [{name: round(rng.uniform(0.15, 2.6), 2) for name in names} for _ in range(STEPS)]
    if rng.random() < 0.15:
        for name in rng.sample(names, 2):
            loads[rng.randrange(STEPS)].pop(name)
    return Scenario(f"s{index}", replicas, pods, spec, loads, _with_oddities(metrics, random.Random(f"odd-{index}")))


def _with_oddities(metrics: list[dict[str, Any]], rng: random.Random) -> bool:
    """Targets of both types, and selectors that are not valid; whether pods have requests as a whole."""
    pod_level = rng.random() < 0.25
    for metric in metrics:
        body = metric[metric["type"][0].lower() + metric["type"][1:]]
        if metric["type"] == "Object" and rng.random() < 0.5:
            body["target"] |= {"value": "100", "averageValue": "25"}
        if "metric" in body and rng.random() < 0.1:
            nothing = {"matchExpressions": [{"key": "queue", "operator": "In"}]}
            body["metric"]["selector"] = rng.choice([{"matchLabels": {"queue": "a,b"}}, nothing])
        if pod_level and metric["type"] == "Resource" and rng.random() < 0.6:
            body |= {"name": "memory", "target": {"type": "Utilization", "averageUtilization": 30}}
    return pod_level


def _metric(rng: random.Random) -> dict[str, Any]:
    utilization = {"type": "Utilization", "averageUtilization": rng.choice([30, 50, 80, 120])}
    match rng.choice(["Resource", "Resource", "memory", "ContainerResource", "Pods", "Object", "External"]):
        case "Resource":
            return {"type": "Resource", "resource": {"name": "cpu", "target": utilization}}
        case "memory":
            target = {"type": "AverageValue", "averageValue": "100Mi"}
            return {"type": "Resource", "resource": {"name": "memory", "target": target}}
        case "ContainerResource":
            body = {"name": "cpu", "container": "app", "target": utilization}
            return {"type": "ContainerResource", "containerResource": body}
        case "Pods":
            target = {"type": "AverageValue", "averageValue": "10"}
            return {"type": "Pods", "pods": {"metric": {"name": "qps"}, "target": target}}
        case "Object":
            described = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "gate"}
            body = {"metric": {"name": "object"}, "describedObject": described, "target": _total(rng)}
            return {"type": "Object", "object": body}
    return {"type": "External", "external": {"metric": {"name": "external"}, "target": _total(rng)}}


def _total(rng: random.Random) -> dict[str, str]:
    if rng.random() < 0.5:
        return {"type": "Value", "value": "100"}
    return {"type": "AverageValue", "averageValue": "25"}


def _rules(rng: random.Random, direction: str, policies: bool) -> dict[str, Any]:
    """Rules of one direction, with policies in both or in none.

    autoscaling/v2 forgets a change after the longest period of the policies of *its* direction, though those of the
    other direction count it for theirs; with 15 s upwards and 1800 s downwards the two would differ for that reason.
    """
    rules: dict[str, Any] = {}
    if rng.random() < 0.6:
        rules["stabilizationWindowSeconds"] = rng.choice([0, 0, WINDOW_SECONDS, LONG])
    elif direction == "scaleDown":
        rules["stabilizationWindowSeconds"] = WINDOW_SECONDS
    if policies:
        rules["selectPolicy"] = rng.choice(["Max", "Min", "Max", "Disabled"])
        rules["policies"] = [
            {
                "type": rng.choice(["Pods", "Percent"]),
                "value": rng.choice([1, 2, 4, 25, 50, 100]),
                "periodSeconds": LONG,
            }
            for _ in range(rng.choice([1, 2]))
        ]
    if rng.random() < 0.3:
        rules["tolerance"] = rng.choice(["0", "50m", "300m"])
    return rules


def readings(found: list[Scenario], namespace: str, step: int) -> Readings:
    """What all twins' pods, gates and queues read in a step."""
    pods: dict[tuple[str, str], PodReading] = {}
    objects: dict[tuple[str, str, str, str], str] = {}
    external: dict[tuple[str, str], tuple[str, ...]] = {}
    for s in found:
        load = s.loads[step]
        for twin in ("real", "ours"):
            for index, pod in enumerate(s.pods):
                share = 1 + 0.1 * (index % 3)
                usage = {
                    name: amount
                    for name, amount in (
                        ("cpu", f"{round(50 * load.get('cpu', 0) * share)}m"),
                        ("memory", f"{round(100 * load.get('memory', 0) * share * 1024)}Ki"),
                    )
                    if name in load
                }
                custom = {"qps": f"{round(10_000 * load['qps'] * share)}m"} if "qps" in load else {}
                reading = PodReading(
                    {"app": f"{s.name}-{twin}"},
                    {"app": usage, "side": dict.fromkeys(usage, "1m")} if usage else {},
                    pod.window,
                    custom,
                )
                if pod.reading:
                    pods[namespace, f"{s.name}-{twin}-{pod.name}"] = reading
    # Gates and queues are the namespace's: all scenarios of a step see the same
    load = found[0].loads[step]
    if "object" in load:
        objects[namespace, "replicasets.apps", "gate", "object"] = f"{round(100 * load['object'])}"
    if "external" in load:
        half = f"{round(50_000 * load['external'])}m"
        external[namespace, "external"] = (half, half)
    return Readings(pods, objects, external)


def target(name: str, replicas: int) -> dict[str, Any]:
    """What is scaled."""
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "app", "image": "none.invalid/none"}]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": name}, "spec": spec}


async def create(session: Session, namespace: str, s: Scenario, twin: str, limit: asyncio.Semaphore) -> None:
    name, now = f"{s.name}-{twin}", time.time()
    containers = [
        {"name": c, "image": "none.invalid/none", "resources": {"requests": {"cpu": r, "memory": "100Mi"}}}
        for c, r in (("app", "100m"), ("side", "10m"))
    ]
    async with limit:
        await session.create(TARGETS.path(namespace), target(name, s.replicas))
        await session.patch(TARGETS.path(namespace, name, "status"), {"status": {"replicas": s.replicas}})
        for pod in s.pods:
            meta: dict[str, Any] = {"name": f"{name}-{pod.name}", "labels": {"app": name}}
            if pod.deleting:
                meta["finalizers"] = ["e2e.concerto.dev/stay"]
            spec: dict[str, Any] = {"containers": containers}
            if s.pod_level:
                first = {"name": "first", "image": "none.invalid/none", "resources": {"requests": {"memory": "350Mi"}}}
                spec |= {"resources": {"requests": {"cpu": "130m"}}, "initContainers": [first]}
            body = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
            await session.create(PODS.path(namespace), body)
            if pod.phase != "Pending":
                await session.patch(PODS.path(namespace, meta["name"], "status"), {"status": _pod_status(pod, now)})
            if pod.deleting:
                await session.delete(PODS.path(namespace, meta["name"]))


def _pod_status(pod: Pod, now: float) -> dict[str, Any]:
    status: dict[str, Any] = {"phase": pod.phase}
    if pod.started_ago is not None:
        status["startTime"] = _time(now - pod.started_ago)
    if pod.ready is not None:
        status["conditions"] = [
            {"type": "Ready", "status": pod.ready, "lastTransitionTime": _time(now - pod.ready_ago)}
        ]
    return status


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def outcome(target: dict[str, Any], scaler: dict[str, Any]) -> dict[str, Any]:
    """What is compared."""
    conditions = {c["type"]: (c["status"], c["reason"]) for c in scaler.get("status", {}).get("conditions", ())}
    reported = {t: conditions.get(t) for t in ("AbleToScale", "ScalingActive", "ScalingLimited")}
    return {"replicas": target["spec"]["replicas"], **reported}


def outcomes_of(
    plane: LocalControlPlane, namespace: str, found: list[Scenario]
) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Of each scenario, what came of the real autoscaler's twin and of ours."""
    targets, real, ours = (
        {o["metadata"]["name"]: o for o in plane.get(kind, "-n", namespace)["items"]} for kind in ("rs", "hpa", "phpa")
    )
    return {
        s.name: (outcome(targets[f"{s.name}-real"], real[s.name]), outcome(targets[f"{s.name}-ours"], ours[s.name]))
        for s in found
    }


@pytest.mark.timeout(1800)
async def test_both_choose_the_same_replicas_at_every_step(plane: LocalControlPlane, say: Callable[[str], None]):
    differences: list[str] = []
    compared = 0
    config = ClusterConfig.from_kubeconfig(plane.kubeconfig)
    controller_settings = ControllerSettings(sync_seconds=SYNC_SECONDS, downscale_stabilization_seconds=WINDOW_SECONDS)
    with MetricsAPI(plane, plane.work_dir) as api:
        settings = PredictiveHPASettings(controller=controller_settings)
        async with await Session.open(config) as session, autoscaler(session, settings):
            for first in range(0, SCENARIOS, BATCH):
                found = [scenario(i) for i in range(first, min(first + BATCH, SCENARIOS))]
                compared += await _batch(plane, session, api, f"batch-{first}", found, differences)
    say(f"PredictiveHPA and HorizontalPodAutoscaler: {compared} comparisons, {len(differences)} differences")
    assert not differences, "\n".join(differences)


async def _batch(
    plane: LocalControlPlane,
    session: Session,
    api: MetricsAPI,
    namespace: str,
    found: list[Scenario],
    differences: list[str],
) -> int:
    plane.make_namespace(namespace)
    await session.create(TARGETS.path(namespace), target("gate", 1))
    api.readings = readings(found, namespace, 0)
    limit = asyncio.Semaphore(8)
    twins = [(s, twin) for s in found for twin in ("real", "ours")]
    await asyncio.gather(*(create(session, namespace, s, twin, limit) for s, twin in twins))
    # Both watch pods: one that has not yet seen a deletion may scale up, and then rightly stays there
    await asyncio.sleep(2 * SYNC_SECONDS)
    for s, twin in twins:
        kind, resource = ("HorizontalPodAutoscaler", HPAS) if twin == "real" else ("PredictiveHPA", PREDICTIVE_HPAS)
        reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"{s.name}-{twin}"}
        spec = {"scaleTargetRef": reference, **s.spec}
        if twin == "ours":
            spec["prediction"] = {"mode": "Off"}
        body = {"apiVersion": resource.api_version, "kind": kind, "metadata": {"name": s.name}, "spec": spec}
        await session.create(resource.path(namespace), body)

    def same() -> bool:
        return all(real == ours for real, ours in outcomes_of(plane, namespace, found).values())

    compared = 0
    for step in range(STEPS):
        api.readings = readings(found, namespace, step)
        await asyncio.sleep(STEP_SECONDS)
        # A busy machine makes one of the two later, which is no difference
        with contextlib.suppress(AssertionError):
            await eventually_async("both are where they will be", same)
        outcomes = outcomes_of(plane, namespace, found)
        for s in found:
            real, ours = outcomes[s.name]
            compared += 1
            if real != ours:
                shape = json.dumps({"pods": [p.__dict__ for p in s.pods], "spec": s.spec, "load": s.loads[step]})
                differences.append(f"{s.name} step {step}: HPA {real}, PredictiveHPA {ours}\n    {shape}")
            for twin in ("real", "ours"):
                path = TARGETS.path(namespace, f"{s.name}-{twin}", "status")
                await session.patch(path, {"status": {"replicas": outcomes[s.name][twin == "ours"]["replicas"]}})
    for kind in ("hpa", "phpa"):
        plane.kubectl("delete", kind, "--all", "-n", namespace)
    return compared
