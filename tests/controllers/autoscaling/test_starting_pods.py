"""Pods that wait for a node and pods that start, through the controller: what it learns, shows and looks ahead for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from concerto.api.timestamps import format_timestamp
from support.autoscaling_world import NOW, Clock, World, autoscaling, load, phpa
from support.crd_schemas import problems


def pod(name: str, wait: float | None, start: float = 30.0) -> dict[str, Any]:
    """A pod of the target, created 5 minutes ago; without a wait it still has no node."""
    created = NOW - 300.0
    meta = {"namespace": "n", "name": name, "uid": name, "labels": {"app": "web"}}
    obj = {"metadata": meta | {"creationTimestamp": format_timestamp(created)}, "spec": {"containers": []}}
    if wait is None:
        return obj | {"status": {"phase": "Pending"}}
    times = {"PodScheduled": created + wait, "Ready": created + wait + start}
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": format_timestamp(at)} for kind, at in times.items()
    ]
    status = {"phase": "Running", "startTime": format_timestamp(created + wait), "conditions": conditions}
    return obj | {"spec": {"containers": [], "nodeName": "a"}, "status": status}


async def test_what_pods_wait_for_a_node_is_shown_and_looked_ahead_for_and_is_no_start_up():
    world, clock = World(), Clock()
    world.metrics = {"requests": load("2")}
    made = phpa("web")
    async with autoscaling(world, clock) as autoscaler:
        for each in (pod("a", 90.0), pod("b", 90.0), pod("c", 90.0), pod("d", None)):
            autoscaler.observer.pods.on_change(None, each)
        autoscaler.on_object(None, made)
        autoscaler.start_due()
        await asyncio.gather(*autoscaler._tasks)
        registry = autoscaler._metrics.registry
        shown = {
            name: registry.get_sample_value(f"concerto_phpa_{name}", {"namespace": "n", "name": "web"})
            for name in ("start_seconds", "wait_seconds", "waiting_pods", "forecast_horizon_seconds")
        }
    status = world.statuses["web"]
    assert (status["initialization"]["seconds"], status["initialization"]["waitSeconds"]) == (30.0, 90.0)
    assert status["waitingPods"] == {"count": 1, "since": format_timestamp(NOW - 300.0)}
    half_a_sync = autoscaler.settings.controller.sync_seconds / 2
    assert shown == {
        "start_seconds": 30.0,
        "wait_seconds": 90.0,
        "waiting_pods": 1.0,
        "forecast_horizon_seconds": 120.0 + half_a_sync,
    }
    assert problems(made | {"status": status}) == []


UNREADY = {
    "as in autoscaling/v2": (1, 1, ("True", "TooFewReplicas")),
    "of more than one as well": (2, 2, ("True", "TooFewReplicas")),
    "but the last one of a target that may go to zero is kept for the load": (0, 1, ("False", "DesiredWithinRange")),
}


@pytest.mark.parametrize(("least", "want", "limited"), UNREADY.values(), ids=UNREADY)
async def test_while_no_pod_is_ready_a_value_asks_for_none(least, want, limited):
    world, clock = World(), Clock()
    world.metrics = {"requests": load("4")}
    made = phpa("web", mode="Off")
    external = {"metric": {"name": "requests"}, "target": {"type": "Value", "value": "1"}}
    made["spec"] |= {
        "minReplicas": least,
        "metrics": [{"type": "External", "external": external}],
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
    }
    async with autoscaling(world, clock) as autoscaler:
        for name in ("a", "b"):
            autoscaler.observer.pods.on_change(None, pod(name, None))
        autoscaler.on_object(None, made)
        autoscaler.start_due()
        await asyncio.gather(*autoscaler._tasks)
    assert world.scaled.get("web", 2) == want
    assert world.condition("web", "ScalingLimited") == limited
