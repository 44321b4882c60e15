"""What the autoscaler's scenarios share: the autoscaler itself, workloads for it, and what is said of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from concerto.controllers.autoscaling.controller import AutoscaledKinds, PredictiveHPAController
from concerto.controllers.autoscaling.settings import PredictiveHPASettings
from concerto.controllers.autoscaling.sources import AgentMetrics
from concerto.controllers.runtime.context import Context
from concerto.controllers.runtime.metrics import Metrics
from concerto.controllers.runtime.watched_kinds import FollowedKind
from concerto.kube import ClusterConfig, Session
from concerto.kube.events import EventRecorder
from e2e.testbed.clusters import Cluster
from e2e.testbed.metrics_api.readings import PodReading

Object = dict[str, Any]


def autoscaler_config(cluster: Cluster) -> ClusterConfig:
    """The cluster as the autoscaler's service account sees it."""
    admin = ClusterConfig.from_kubeconfig(cluster.kubeconfig)
    return ClusterConfig(
        server=admin.server,
        token=cluster.service_account_token("concerto-system", "concerto-autoscaler"),
        certificate_authority=admin.certificate_authority,
        certificate_authority_data=admin.certificate_authority_data,
    )


@dataclass(frozen=True)
class Shown:
    """One and the same token to show to agents."""

    text: str

    async def token(self, node: str) -> str:
        return self.text

    def refused(self, node: str, token: str) -> None:
        return


@asynccontextmanager
async def autoscaler(
    session: Session, settings: PredictiveHPASettings, agents: AgentMetrics | None = None
) -> AsyncIterator[PredictiveHPAController]:
    """The autoscaler, for as long as the context lasts; it must not end by itself."""
    recorder = EventRecorder(session, "concerto-autoscaler", "e2e")
    context = Context(session, "concerto-system", recorder, Metrics(), time.time)
    kinds = AutoscaledKinds.followed_by(partial(FollowedKind, session))
    controller = PredictiveHPAController(context, kinds, settings, agents)
    runs = (controller.run, recorder.run, *(kind.run for kind in kinds.all))
    tasks = [asyncio.ensure_future(run()) for run in runs]
    try:
        yield controller
        for task in tasks:
            assert not task.done(), task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def deployment(name: str, replicas: int, requests: dict[str, str] | None = None, **pod: Any) -> Object:
    """A Deployment whose pods nobody starts, unless ``pod`` says more of them."""
    container = {"name": "app", "image": "none.invalid/none", "resources": {"requests": requests or {}}}
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]} | pod},
        },
    }


def cpu_metric(utilization: int = 50) -> Object:
    """CPU at so many percent of what is requested."""
    target = {"type": "Utilization", "averageUtilization": utilization}
    return {"type": "Resource", "resource": {"name": "cpu", "target": target}}


def phpa(name: str, kind: str = "Deployment", target: str | None = None, **spec: Any) -> Object:
    """A PredictiveHPA for CPU at 50 %, without forecasts, unless ``spec`` says otherwise."""
    version = spec.pop("api_version", "apps/v1")
    body = {
        "scaleTargetRef": {"apiVersion": version, "kind": kind, "name": target or name},
        "maxReplicas": 10,
        "metrics": [cpu_metric()],
        "prediction": {"mode": "Off"},
    }
    return {
        "apiVersion": "concerto.dev/v1alpha1",
        "kind": "PredictiveHPA",
        "metadata": {"name": name},
        "spec": body | spec,
    }


def apply(cluster: Cluster, namespace: str, *objects: Object) -> None:
    """Apply objects in a namespace."""
    cluster.apply(*({**o, "metadata": {**o["metadata"], "namespace": namespace}} for o in objects))


def reading(app: str, cpu: str) -> PodReading:
    """What the metrics API says of a pod."""
    return PodReading({"app": app}, {"app": {"cpu": cpu, "memory": "64Mi"}})


def replicas(cluster: Cluster, namespace: str, name: str) -> int:
    """How many a Deployment is to have."""
    return int(cluster.get("deployment", name, "-n", namespace)["spec"]["replicas"])


def status(cluster: Cluster, namespace: str, name: str) -> Object:
    """Of a PredictiveHPA; empty before the first."""
    return dict(cluster.get("phpa", name, "-n", namespace).get("status") or {})


def condition(cluster: Cluster, namespace: str, name: str, kind: str) -> tuple[str, str, str] | None:
    """A PredictiveHPA's condition of that type: status, reason, message."""
    conditions = status(cluster, namespace, name).get("conditions") or ()
    found = next((c for c in conditions if c["type"] == kind), None)
    return (found["status"], found["reason"], found["message"]) if found else None
