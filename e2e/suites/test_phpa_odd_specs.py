"""Specs that the API server accepts although they are odd: each has its effect, or its error stands in the object."""

from __future__ import annotations

import asyncio
from typing import Any

from concerto.autoscaling.settings import ControllerSettings
from concerto.controllers.autoscaling.settings import PredictiveHPASettings
from concerto.kube import Session
from e2e.suites.test_phpa_controller import EXTERNAL, running
from e2e.testbed import phpa_helpers
from e2e.testbed.clusters import Cluster
from e2e.testbed.metrics_api import MetricsAPI, Readings
from e2e.testbed.phpa_helpers import apply, autoscaler_config, condition, deployment, phpa, reading, replicas
from e2e.testbed.waiting import eventually_async

ALWAYS = {"start": "* * * * *", "end": "0 0 1 1 *"}
PROMETHEUS = {
    "type": "Prometheus",
    "prometheus": {"name": "queue", "query": "sum(", "target": {"type": "AverageValue", "averageValue": "1"}},
}
FINE = ("Ready", "True", "Scaling")
# Each: fields of the spec, replicas of the Deployment (two before, which the metrics ask for), and a condition
ODD: dict[str, tuple[dict[str, Any], int, tuple[str, str, str]]] = {
    "three-windows": (
        {
            "schedules": [
                {"name": "a", "minReplicas": 3, **ALWAYS},
                {"name": "b", "replicas": 5, **ALWAYS},
                {"name": "c", "minReplicas": 50, **ALWAYS},
            ]
        },
        10,
        FINE,
    ),
    "no-such-zone": ({"schedules": [{"name": "m", "minReplicas": 4, "timeZone": "Mars/Base", **ALWAYS}]}, 2, FINE),
    "no-such-day": ({"schedules": [{"name": "m", "replicas": 4, "start": "0 0 30 2 *", "end": "* * * * *"}]}, 2, FINE),
    "backwards": ({"schedules": [{"name": "m", "replicas": 4, **ALWAYS, "start": "30-10 8 * * *"}]}, 2, FINE),
    "no-season": ({"prediction": {"season": {"timeZone": "Mars/Base", "exceptions": ["2026-02-29"]}}}, 2, FINE),
    "far-season": (
        {"prediction": {"season": {"start": "2999-01-01T00:00:00Z"}, "shortage": "1m", "horizon": "1h"}},
        2,
        FINE,
    ),
    "no-lists": ({"metrics": [], "schedules": [], "behavior": {}, "prediction": {}}, 2, FINE),
    "nulls": ({"metrics": None, "schedules": None, "behavior": None, "prediction": None, "fallback": None}, 2, FINE),
    "most": (
        {
            "maxReplicas": 2**31 - 1,
            "schedules": [{"name": "x", "replicas": 2**31 - 1, "start": "0 0 1 1 *", "end": "* * * * *"}],
        },
        2,
        FINE,
    ),
    "fallback": (
        {"metrics": [EXTERNAL], "fallback": {"replicas": 500, "after": "0s", "earlierDays": True}},
        10,
        ("ScalingActive", "False", "FailedGetExternalMetric"),
    ),
    "no-server": ({"metrics": [PROMETHEUS]}, 2, ("ScalingActive", "False", "FailedGetPrometheusMetric")),
    "no-history": ({"prediction": {"initialHistory": {}}}, 2, ("HistoryLoaded", "False", "QueryFailed")),
}
WORDS = {
    "no-such-zone": "spec.schedules[m].timeZone 'Mars/Base' is not a time zone",
    "no-such-day": "spec.schedules[m].start '0 0 30 2 *' is not a cron expression",
    "backwards": "spec.schedules[m].start '30-10 8 * * *' is not a cron expression",
    "no-season": "spec.prediction.season.timeZone 'Mars/Base' is not a time zone",
    "no-server": "--autoscaling-prometheus-url",
    "no-history": "--autoscaling-prometheus-url",
}


async def test_an_odd_spec_has_its_effect_or_its_error_stands_in_the_object(concerto_cluster: Cluster, namespace: str):
    cluster = concerto_cluster
    apply(
        cluster,
        namespace,
        *(deployment(name, 2, {"cpu": "100m"}) for name in ODD),
        *(phpa(name, **fields) for name, (fields, _, _) in ODD.items()),
    )
    names = await asyncio.to_thread(running, cluster, namespace, 2 * len(ODD))
    controller = ControllerSettings(sync_seconds=1.0)
    settings = PredictiveHPASettings(controller=controller, metrics_timeout_seconds=2.0)
    with MetricsAPI(cluster, cluster.work_dir) as api:
        api.readings = Readings({(namespace, name): reading(name.rsplit("-", 2)[0], "50m") for name in names})
        async with (
            await Session.open(autoscaler_config(cluster)) as session,
            phpa_helpers.autoscaler(session, settings),
        ):
            for name, (_, count, wanted) in ODD.items():
                await eventually_async(
                    lambda n=name, c=count, w=wanted: (
                        f"{n}: {c} and {w}, not {replicas(cluster, namespace, n)} and "
                        f"{phpa_helpers.status(cluster, namespace, n)}"
                    ),
                    lambda n=name, c=count, w=wanted: (
                        replicas(cluster, namespace, n) == c
                        and (condition(cluster, namespace, n, w[0]) or ())[:2] == w[1:]
                    ),
                )

            def said(name: str) -> bool:
                described = cluster.kubectl("describe", "phpa", name, "-n", namespace)
                return WORDS[name] in " ".join(described.split())

            for name in WORDS:
                await eventually_async(f"{name}: kubectl describe has {WORDS[name]}", lambda n=name: said(n))
