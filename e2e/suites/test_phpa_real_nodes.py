"""One Deployment up and down on real nodes, beside its twin under the real HorizontalPodAutoscaler.

Pods burn CPU while a file is on their node. The twins read the real metrics-server; a third reads the node's agent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import pytest

from e2e.testbed import metrics_server
from e2e.testbed.clusters import LocalControlPlane
from e2e.testbed.images import BUSYBOX_IMAGE
from e2e.testbed.phpa_helpers import Object, apply, cpu_metric, deployment, phpa, replicas, status
from e2e.testbed.processes import autoscaler_process
from e2e.testbed.requirements import require_binaries, require_kubelet, require_metrics_server
from e2e.testbed.system import System, install, real_system
from e2e.testbed.waiting import eventually_async

pytestmark = pytest.mark.realnode

NODE = "phpa-real"
SYNC = "3s"
# Both controllers alike; the autoscalers' own defaults would make this a matter of minutes
TIMES = {"downscale-stabilization": "5s", "cpu-initialization-period": "5s", "initial-readiness-delay": "5s"}
BURN = "while :; do if [ -e /burn/on ]; then i=0; while [ $i -lt 5000 ]; do i=$((i+1)); done; else sleep 0.2; fi; done"
MOST = 3
TWINS = {"hpa": "HorizontalPodAutoscaler", "api": "PredictiveHPA", "agents": "PredictiveHPA"}


@pytest.fixture(scope="module")
def system(say: Callable[[str], None]) -> Iterator[System]:
    """A real node, its agent, an operator, and both autoscalers with short times."""
    binaries = require_binaries(say)
    require_kubelet(binaries)
    require_metrics_server(say)
    real = [f"--horizontal-pod-autoscaler-{name}={value}" for name, value in {"sync-period": SYNC, **TIMES}.items()]
    ours = [f"--autoscaling-{name}={value}" for name, value in {"sync-period": SYNC, **TIMES}.items()]
    with LocalControlPlane(binaries, controller_manager_flags=real) as plane:
        install(plane)
        with real_system(plane, say, [NODE]) as started:
            autoscaler = autoscaler_process(plane, plane.logs, ours).start()
            try:
                yield started
            finally:
                autoscaler.stop()


def burner(name: str) -> Object:
    """A Deployment of one pod, which uses four times what it requests while the file is there."""
    container = {
        "name": "app",
        "image": BUSYBOX_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", BURN],
        "resources": {"requests": {"cpu": "25m"}, "limits": {"cpu": "100m"}},
        "volumeMounts": [{"name": "burn", "mountPath": "/burn"}],
    }
    volume = {"name": "burn", "hostPath": {"path": "/run/burn", "type": "DirectoryOrCreate"}}
    return deployment(
        name,
        1,
        schedulerName="concerto",
        dnsPolicy="Default",
        terminationGracePeriodSeconds=0,
        containers=[container],
        volumes=[volume],
    )


def scaler(name: str) -> Object:
    """The autoscaler of a twin: the spec is the same, but for where ours reads.

    Without forecasts: after a load that came and went at once they stay ready for the next, and it would not show when
    readings have fallen.
    """
    spec = phpa(name, maxReplicas=MOST, metrics=[cpu_metric(100)])
    del spec["spec"]["prediction"]
    if name == "hpa":
        return {**spec, "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler"}
    source = "MetricsAPI" if name == "api" else "Auto"
    return {**spec, "spec": {**spec["spec"], "prediction": {"mode": "Off", "metricsSource": source}}}


async def test_twins_go_up_and_down_together(system: System, say: Callable[[str], None]):
    plane, namespace = system.cluster, "twins"
    assert isinstance(plane, LocalControlPlane) and system.real is not None
    node = system.real[NODE]
    plane.make_namespace(namespace)
    apply(plane, namespace, *(burner(name) for name in TWINS))

    async def all_at(count: int) -> dict[str, float]:
        """Seconds from now until each twin is to have so many replicas."""
        began, reached = time.monotonic(), {}

        def look() -> bool:
            for name in TWINS:
                if name not in reached and replicas(plane, namespace, name) == count:
                    reached[name] = round(time.monotonic() - began, 1)
            return len(reached) == len(TWINS)

        await eventually_async(lambda: f"{count} replicas of all twins, as these have: {reached}", look)
        return reached

    async def when_its_agent_is_killed() -> None:
        """Once the twin that reads it is back at 1; returns when that reads something else."""
        await eventually_async(
            "the one that reads its agent is down", lambda: replicas(plane, namespace, "agents") == 1
        )
        await agents_are_read()
        system.agents[NODE].kill()

        def stood_in_for() -> bool:
            now = status(plane, namespace, "agents")
            why = now.get("metricsSourceMessage", "")
            nobody = f"node {NODE}: nothing answers at 127.0.0.1, port "
            return now.get("metricsSource") == "MetricsAPI" and why.startswith(nobody)

        await eventually_async("metrics.k8s.io stands in for a killed agent", stood_in_for)

    async def agents_are_read() -> None:
        await eventually_async(
            "agents are read", lambda: status(plane, namespace, "agents").get("metricsSource") == "Agents"
        )

    with metrics_server.start(plane, say):
        apply(plane, namespace, *(scaler(name) for name in TWINS))
        await agents_are_read()
        node.exec("touch", "/run/burn/on")
        up = await all_at(MOST)
        assert status(plane, namespace, "api")["metricsSource"] == "MetricsAPI"
        message = status(plane, namespace, "agents")["lastDecision"]["message"]
        assert "replicas: current metrics ask for" in plane.kubectl("describe", "phpa", "agents", "-n", namespace)
        node.exec("rm", "/run/burn/on")
        down, _ = await asyncio.gather(all_at(1), when_its_agent_is_killed())
        say(f"autoscalers on a real node, seconds to {MOST} replicas and back to 1: {up}, {down}; {message}")
