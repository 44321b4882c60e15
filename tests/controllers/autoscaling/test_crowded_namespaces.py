"""Namespaces with so many objects, pods or parts of selectors that comparing them takes long."""

from __future__ import annotations

import asyncio
from collections import Counter

from prometheus_client import CollectorRegistry

from concerto.autoscaling.schedules import CronTimes
from concerto.controllers.autoscaling.forecast_metrics import ForecastMetrics, ShownLoad
from concerto.controllers.autoscaling.sync_budget import SyncBudget
from support.autoscaling_world import Clock, World, autoscaling, load, phpa


def pod(number: int) -> dict:
    meta = {"namespace": "n", "name": f"p{number}", "uid": f"p{number}", "labels": {"app": "web", "pod": f"p{number}"}}
    return {"metadata": {**meta, "creationTimestamp": "2026-03-01T12:00:00Z"}, "spec": {"containers": []}}


def test_syncs_that_take_long_count_as_several():
    budget = SyncBudget(10, 15.0)
    assert budget.take("n", 0.0)
    budget.charge("n", 8, 1.0)
    assert budget.take("n", 1.0)
    assert not budget.take("n", 2.0)
    assert budget.take("m", 2.0)
    budget.charge("n", 100, 14.0)
    assert budget.take("n", 15.0), "a new period"


async def test_a_selector_without_end_costs_only_its_own_object():
    world = World()
    world.metrics = {"requests": load("4")}
    world.selector = ",".join(f"!a{number}" for number in range(2000))
    async with autoscaling(world, Clock()) as autoscaler:
        for number in range(200):
            autoscaler.observer.pods.on_change(None, pod(number))
        autoscaler.on_object(None, phpa("web"))
        autoscaler.start_due()
        status = await world.seen("web")
        assert world.condition("web", "ScalingActive") == ("False", "InvalidSelector")
        (message,) = (c["message"] for c in status["conditions"] if c["type"] == "ScalingActive")
        assert "shorten the selector" in message
        assert world.scaled == {}


async def test_a_namespace_whose_selectors_take_long_is_synced_less_often():
    world, clock = World(), Clock()
    world.metrics = {"requests": load("4")}
    world.selector = ",".join(["pod in (p1)", *(f"!a{number}" for number in range(400))])
    async with autoscaling(world, clock, max_syncs_per_namespace=20) as autoscaler:
        for number in range(100):
            autoscaler.observer.pods.on_change(None, pod(number))
        for number in range(10):
            made = phpa(f"web-{number}", mode="Preview")
            autoscaler.on_object(None, made)
        autoscaler.start_due()
        await asyncio.gather(*autoscaler._tasks)
        assert autoscaler._budget._used["n"] >= 10 + 10 * 2


async def test_objects_with_many_schedules_are_looked_at_one_a_turn_and_count_as_several(monkeypatch):
    """32 schedules whose times come every 28 years take 0.2 s, and hundreds of objects may be due together."""
    world, clock, turns = World(), Clock(), 0
    world.metrics = {"requests": load("4")}
    searched_in: Counter[int] = Counter()
    last = CronTimes.last

    def counting(self, *args):
        searched_in[turns] += 1
        return last(self, *args)

    async def count_turns():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(CronTimes, "last", counting)
    counting_turns = asyncio.ensure_future(count_turns())
    windows = [{"name": f"s{n}", "start": f"{n} 0 * 2 0#5", "end": f"{n} 1 * 2 0#5", "replicas": 1} for n in range(32)]
    async with autoscaling(world, clock, max_syncs_per_namespace=200) as autoscaler:
        for number in range(10):
            made = phpa(f"web-{number}", mode="Preview")
            made["spec"]["schedules"] = windows
            autoscaler.on_object(None, made)
        autoscaler.start_due()
        await asyncio.gather(*autoscaler._tasks)
        assert autoscaler._budget._used["n"] >= 10 + 10 * 16
    counting_turns.cancel()
    assert searched_in.total() == 10 * 64
    assert max(searched_in.values()) == 64


async def test_of_hundreds_that_scale_one_target_each_names_a_few():
    world = World()
    world.metrics = {"requests": load("4")}
    async with autoscaling(world, Clock()) as autoscaler:
        for number in range(40):
            made = phpa(f"web-{number:02}")
            made["spec"]["scaleTargetRef"]["name"] = "web"
            autoscaler.on_object(None, made)
        autoscaler.start_due()
        status = await world.seen("web-00")
        (message,) = (c["message"] for c in status["conditions"] if c["type"] == "ScalingActive")
        assert message.count("PredictiveHPA web-") == 8
        assert "and 31 more: delete one of them" in message


LOAD = ShownLoad(demand=1.0, replicas=1, desired=1, waiting_pods=0, start_seconds=None, wait_seconds=None)


def test_a_namespace_with_many_objects_leaves_series_to_those_of_others():
    registry = CollectorRegistry()
    metrics = ForecastMetrics(registry, max_objects=6)
    keys = [("many", f"o{n}") for n in range(20)] + [("few", "a"), ("few", "b"), ("one", "c")]

    def sync() -> dict[str, list[str]]:
        for key in keys:
            metrics.observe(key, None, LOAD)
        samples = [s for family in registry.collect() for s in family.samples if s.name == "concerto_phpa_replicas"]
        found: dict[str, list[str]] = {}
        for sample in samples:
            found.setdefault(sample.labels["namespace"], []).append(sample.labels["name"])
        return found

    first = sync()
    assert {namespace: len(names) for namespace, names in first.items()} == {"many": 3, "few": 2, "one": 1}
    assert sync() == first, "none takes the place of another in turn"
    assert registry.get_sample_value("concerto_phpa_objects_without_series") == 17
    metrics.forget("few", "a")
    keys.remove(("few", "a"))
    assert {namespace: len(names) for namespace, names in sync().items()} == {"many": 4, "few": 1, "one": 1}
