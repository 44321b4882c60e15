"""Rolling updates at a load that does not change: neither the metrics of now nor demand may follow the surge."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from concerto.api.pod import PodView
from concerto.api.pod_requests import ContainerResources
from concerto.autoscaling.behavior import Memory
from concerto.autoscaling.decision import combine, decide
from concerto.autoscaling.pods import Gone, MetricError, Sample
from concerto.autoscaling.replicas import PodReadings, resource_utilization_replicas
from concerto.autoscaling.settings import Bounds, ControllerSettings
from support.pod_views import target_pod

LOAD, REQUEST, PERCENT = 5000, 1000, 50
"""Thousandths of a core, of a pod, and the target: ten replicas."""
STEP, SYNC = 5, 15
CONTAINERS = (ContainerResources("c", {"cpu": REQUEST}),)


@dataclass
class Pod:
    name: str
    created: float
    startup: float
    new: bool

    def ready_at(self) -> float:
        return self.created + self.startup


class Rollout:
    """A Deployment of ten that is replaced, a surge at a time, and what its pods use and show."""

    def __init__(self, startup: float, surge: int, unavailable: int, age: float, window: float) -> None:
        self.startup, self.surge, self.unavailable, self.age, self.window = startup, surge, unavailable, age, window
        self.pods = [Pod(f"old{i}", -7200.0, 10.0, False) for i in range(10)]
        self.used: dict[str, dict[float, float]] = {}
        self.made = 0
        self.gone: list[Gone] = []

    def tick(self, now: float, replicas: int) -> None:
        ready = [p for p in self.pods if p.ready_at() <= now]
        for pod in self.pods:
            burst = REQUEST if now < pod.ready_at() else LOAD / len(ready)
            self.used.setdefault(pod.name, {})[now] = burst
        if now < 300:
            return
        old = [p for p in self.pods if not p.new]
        new = [p for p in self.pods if p.new]
        spare = len(ready) - (replicas - self.unavailable)
        leaving = old[: max(min(spare, len(old)), 0)] if old else new[replicas:]
        self.gone += [Gone(p.ready_at(), now) for p in leaving if p in ready]
        self.pods = [p for p in self.pods if p not in leaving]
        missing = min(replicas + self.surge - len(self.pods), replicas - len(new))
        for _ in range(max(missing, 0)):
            self.made += 1
            self.pods.append(Pod(f"new{self.made}", now, self.startup, True))

    def seen(self, now: float) -> tuple[list[PodView], dict[str, Sample]]:
        views, samples = [], {}
        at = now - self.age
        for pod in self.pods:
            ready = pod.ready_at() <= now
            since = pod.ready_at() if ready else pod.created
            views.append(
                target_pod(
                    pod.name,
                    ready=str(ready),
                    ready_since=since,
                    started=pod.created,
                    containers=CONTAINERS,
                    first_ready=since if ready and pod.new else None,
                )
            )
            values = [v for t, v in self.used.get(pod.name, {}).items() if at - self.window < t <= at]
            if len(values) * STEP >= self.window:
                samples[pod.name] = Sample(round(sum(values) / len(values)), at, self.window)
        return views, samples


# Seconds to start, and whether starts are recognised that take longer than the five minutes of autoscaling/v2
@pytest.mark.parametrize(
    ("startup", "start_up_aware"), [(5.0, False), (40.0, False), (200.0, False), (40.0, True), (400.0, True)]
)
@pytest.mark.parametrize(("surge", "unavailable"), [(3, 0), (10, 0), (3, 2), (0, 3)])
@pytest.mark.parametrize(("age", "window"), [(0.0, 10.0), (15.0, 30.0), (30.0, 60.0)])
def test_a_rolling_update_does_not_ratchet(startup, surge, unavailable, age, window, start_up_aware):
    settings = ControllerSettings(first_readiness=start_up_aware)
    rollout, bounds, memory, replicas = (
        Rollout(startup, surge, unavailable, age, window),
        Bounds(100, controller=settings),
        Memory(),
        10,
    )
    highest, demands = replicas, []
    for tick in range(3000 // STEP):
        now = float(tick * STEP)
        rollout.tick(now, replicas)
        if tick % (SYNC // STEP) or now < 120:
            continue
        views, samples = rollout.seen(now)
        try:
            proposal = resource_utilization_replicas(
                PodReadings(replicas, views, samples, bounds.tolerances, bounds.controller, now, rollout.gone),
                resource="cpu",
                container=None,
                target_percent=PERCENT,
            )
        except MetricError:
            continue
        decision = decide(bounds, memory, current=replicas, metrics=combine([proposal], replicas), floor=None, now=now)
        memory, replicas = decision.memory, decision.replicas
        highest = max(highest, replicas)
        demands += [] if proposal.demand is None else [proposal.demand]
    assert all(p.new for p in rollout.pods), "the update is over"
    assert highest == 10
    assert min(demands) >= 6.9 and max(demands) <= 10.5, "what forecasts are made of"
