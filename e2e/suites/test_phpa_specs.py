"""What the API server takes as a HorizontalPodAutoscaler it takes as a PredictiveHPA: random specs, both on trial."""

from __future__ import annotations

import asyncio
import json
import os
import random
from typing import Any

import pytest

from concerto.kube import ApiError, ClusterConfig, Resource, Session
from concerto.kube.resources import PREDICTIVE_HPAS
from e2e.testbed.clusters import Cluster

SPECS = int(os.environ.get("PHPA_SPECS", "400"))
"""PHPA_SPECS=6000 tries so many (1 min)."""
HPAS = Resource("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", True)
QUANTITIES = ["1", "500m", "1.5", "100Mi", "2e3", "1E", ".5", "5.", "+5", "100n", "12k", 5, 100, "9223372036854775807",
              "1e30", "0", "-5m", "1e", "abc", "", -1, "0x10", None, True]  # fmt: skip
NAMES = ["cpu", "memory", "requests_per_second", "http:requests", "a.b/c", "Queue Length", "nvidia.com/gpu", ""]


class Specs:
    """Specs of autoscaling/v2, most of them right."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def maybe(self, share: float, **members: Any) -> dict[str, Any]:
        return members if self.rng.random() < share else {}

    def target(self, *types: str) -> dict[str, Any]:
        pick = self.rng.choice
        kind = pick(types)
        amount = {
            "Utilization": {"averageUtilization": pick([1, 50, 100, 1000, 2147483647, 0, 2147483648])},
            "AverageValue": {"averageValue": pick(QUANTITIES)},
            "Value": {"value": pick(QUANTITIES)},
        }[kind]
        return {"type": kind, **amount}

    def metric_name(self) -> dict[str, Any]:
        pick = self.rng.choice
        operator = pick(["In", "NotIn", "Exists", "DoesNotExist"])
        expression = {"key": "k", "operator": operator, **self.maybe(0.5, values=pick([["a"], ["a", "b"], []]))}
        labels = {pick(["a", "x/y", "app.kubernetes.io/name", "-bad"]): pick(["b", "", "B_1.c", "bad value!"])}
        selector = pick([{}, {"matchLabels": labels}, {"matchExpressions": [expression]}])
        return {"name": pick(NAMES), **self.maybe(0.5, selector=selector)}

    def metric(self) -> dict[str, Any]:
        pick = self.rng.choice
        version = self.maybe(0.8, apiVersion=pick(["v1", "networking.k8s.io/v1", "apps/v1", ""]))
        described = {"kind": "Ingress", "name": pick(["main-route", "a.b", "x" * 200]), **version}
        kind, body = pick(
            [
                ("Resource", {"name": pick(NAMES), "target": self.target("Utilization", "AverageValue")}),
                (
                    "ContainerResource",
                    {"name": pick(NAMES), "container": pick(["app", "a" * 63, ""]),
                     "target": self.target("Utilization", "AverageValue")},
                ),
                ("Pods", {"metric": self.metric_name(), "target": self.target("AverageValue")}),
                (
                    "Object",
                    {"metric": self.metric_name(), "describedObject": described,
                     "target": self.target("Value", "AverageValue")},
                ),
                ("External", {"metric": self.metric_name(), "target": self.target("Value", "AverageValue")}),
            ]
        )  # fmt: skip
        return {"type": kind, kind[0].lower() + kind[1:]: body}

    def rules(self) -> dict[str, Any]:
        pick = self.rng.choice
        policy = {
            "type": pick(["Pods", "Percent"]),
            "value": pick([1, 900, 2147483647]),
            "periodSeconds": pick([1, 1800, 1801]),
        }
        return {
            **self.maybe(0.5, stabilizationWindowSeconds=pick([0, 1, 3600, 3601, None])),
            **self.maybe(0.5, selectPolicy=pick(["Max", "Min", "Disabled", None])),
            **self.maybe(0.5, policies=[policy] * pick([0, 1, 1, 3])),
            **self.maybe(0.5, tolerance=pick(["0", "0.1", "50m", 0.05, 0, 1, "1.5", 2, "100", "1e-2", "-0.1", None])),
        }

    def spec(self) -> dict[str, Any]:
        pick = self.rng.choice
        directions = {d: self.rules() for d in ("scaleUp", "scaleDown") if self.rng.random() < 0.6}
        version = pick(["apps/v1", "argoproj.io/v1alpha1", "apps/v1", "v1"])
        return {
            "scaleTargetRef": {
                "apiVersion": version,
                "kind": pick(["Deployment", "Rollout"]),
                "name": pick(["web", "a.b"]),
            },
            "maxReplicas": pick([1, 5, 10, 2147483647, 0]),
            **self.maybe(0.6, minReplicas=pick([1, 2, 0, None, -1])),
            **self.maybe(0.9, metrics=[self.metric() for _ in range(pick([0, 1, 1, 1, 2]))]),
            **self.maybe(0.6, behavior=pick([directions, directions, None])),
        }


async def test_whatever_is_taken_as_a_horizontal_pod_autoscaler_is_taken_as_a_predictive_one(
    concerto_cluster: Cluster, namespace, say
):
    made, limit = Specs(7), asyncio.Semaphore(8)

    async def refused(session: Session, resource: Resource, spec: dict[str, Any]) -> str | None:
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": "x"}, "spec": spec}
        try:
            async with limit:
                await session.create(resource.path(namespace) + "?dryRun=All", body)
        except ApiError as error:
            return str(error)
        return None

    async with await Session.open(ClusterConfig.from_kubeconfig(concerto_cluster.kubeconfig)) as session:

        async def both(spec: dict[str, Any]) -> tuple[dict[str, Any], str | None, str | None]:
            return spec, await refused(session, HPAS, spec), await refused(session, PREDICTIVE_HPAS, spec)

        tried = await asyncio.gather(*(both(made.spec()) for _ in range(SPECS)))
    taken = [(spec, ours) for spec, theirs, ours in tried if theirs is None]
    say(f"{len(tried)} specs, {len(taken)} of them taken as a HorizontalPodAutoscaler")
    assert len(taken) > SPECS / 8
    assert [f"{ours}\n  {json.dumps(spec)}" for spec, ours in taken if ours is not None] == []


SCHEDULE = {"name": "office", "start": "0 8 * * 1-5", "end": "0 18 * * 1-5", "minReplicas": 5}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a field of autoscaling/v1": ({"targetCPUUtilizationPercentage": 60}, "is a field of autoscaling/v1"),
    "a cron expression of four": (
        {"schedules": [{**SCHEDULE, "start": "0 8 * *"}]},
        "must be a cron expression",
    ),
    "a minute that does not exist": ({"schedules": [{**SCHEDULE, "end": "60 8 * * *"}]}, "must be a cron expression"),
    "two numbers": ({"schedules": [{**SCHEDULE, "replicas": 3}]}, "either minReplicas, a lower bound, or replicas"),
    "one name twice": ({"schedules": [SCHEDULE, SCHEDULE]}, "Duplicate value"),
    "a fallback of a week": ({"fallback": {"replicas": 3, "after": "168h"}}, "spec.fallback.after must be at most 24h"),
}


@pytest.mark.parametrize(("wrong", "words"), REFUSED.values(), ids=REFUSED)
async def test_what_has_no_meaning_is_refused_with_a_hint(concerto_cluster: Cluster, namespace, wrong, words):
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    spec = {"scaleTargetRef": target, "maxReplicas": 9, **wrong}
    body = {"apiVersion": PREDICTIVE_HPAS.api_version, "kind": PREDICTIVE_HPAS.kind, "metadata": {"name": "x"}}
    async with await Session.open(ClusterConfig.from_kubeconfig(concerto_cluster.kubeconfig)) as session:
        path = PREDICTIVE_HPAS.path(namespace) + "?dryRun=All"
        with pytest.raises(ApiError, match=words):
            await session.create(path, {**body, "spec": spec})
        await session.create(path, {**body, "spec": {**spec, **_mended(wrong)}})


def _mended(wrong: dict[str, Any]) -> dict[str, Any]:
    right = {"schedules": [SCHEDULE], "fallback": {"replicas": 3}, "targetCPUUtilizationPercentage": None}
    return {field: right[field] for field in wrong}
