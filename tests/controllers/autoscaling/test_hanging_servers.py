"""Servers behind the API server that do not answer, those of metrics and of kinds, and conversion webhooks."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest
from aiohttp import web

from concerto.api.predictivehpa import ObjectReference
from concerto.kube import KubeError
from concerto.kube.discovery import Kinds
from support.autoscaling_world import GADGETS, NOW, Clock, World, autoscaling, load, phpa, scale
from support.faulty_server import faulty, says


class Hanging(World):
    """Of the group slow.dev, one of these has no answer: the list of its kinds (``v1``), or each ``scale``."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.never = what, asyncio.Event()
        self.metrics = {"requests": load("4")}

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        parts = request.path.strip("/").split("/")
        if parts[1] != "slow.dev":
            return await super().__call__(request)
        if parts[-1] == self.what:
            await self.never.wait()
        group: dict[str, Any] = {"preferredVersion": {"version": "v1"}}
        return await says(200, group if parts[-1] == "slow.dev" else GADGETS)(request)


def slow(name: str) -> dict[str, Any]:
    obj = phpa(name)
    obj["spec"]["scaleTargetRef"]["apiVersion"] = "slow.dev/v1"
    return obj


@pytest.mark.parametrize("what", ["v1", "scale"])
async def test_a_kind_that_hangs_keeps_no_target_of_another_kind_from_being_scaled(what):
    world = Hanging(what)
    async with autoscaling(world, Clock()) as autoscaler:
        for number in range(100):
            autoscaler.on_object(None, slow(f"slow-{number}"))
        autoscaler.on_object(None, phpa("web"))
        async with asyncio.timeout(4):
            autoscaler.start_due()
            await world.seen("web")
        assert world.scaled == {"web": 4}
        assert not [name for name in world.statuses if name != "web"]
        world.never.set()


async def test_a_group_that_hangs_is_given_up_before_the_next_syncs_pile_up(monkeypatch):
    monkeypatch.setattr("concerto.kube.discovery._TIMEOUT_SECONDS", 0.1)
    world = Hanging("v1")
    async with faulty([world]) as server:
        kinds, gadget = Kinds(server.session, lambda: NOW), ObjectReference("Gadget", "web", "slow.dev/v1")
        async with asyncio.timeout(10):
            with pytest.raises(KubeError, match=r"slow\.dev"):
                await kinds.find(gadget)
        assert kinds.known(gadget) is None
        world.never.set()
        assert (await kinds.find(gadget)).plural == "gadgets"
        assert kinds.known(gadget) is not None


def answering(**answers: Any) -> Any:
    """A group odd.dev with these answers by the last part of the path."""

    class Odd(World):
        known: ClassVar[dict[str, Any]] = {"odd.dev": {"preferredVersion": {"version": "v1"}}, "v1": GADGETS} | answers

        async def __call__(self, request: web.Request) -> web.StreamResponse:
            parts = request.path.strip("/").split("/")
            if parts[1] != "odd.dev":
                return await super().__call__(request)
            return await says(200, self.known[parts[-1]])(request)

    return Odd()


NO_SCALE = "is not a Scale of autoscaling/v1"
ODD: dict[str, tuple[dict[str, Any], str]] = {
    "a kind without namespaces": (
        {"v1": {"resources": [{"name": "gadgets", "kind": "Gadget", "namespaced": False}]}},
        "kind 'Gadget' is not namespaced",
    ),
    "no list of kinds": ({"v1": {"resources": 7}}, "what is served in odd.dev/v1 is not a list of kinds"),
    "kinds without names": ({"v1": {"resources": [{}]}}, "what is served in odd.dev/v1 is not a list of kinds"),
    "replicas that are no number": ({"scale": {"kind": "Scale", "spec": {"replicas": "3"}}}, NO_SCALE),
    "replicas that are null": ({"scale": {"kind": "Scale", "spec": {"replicas": None}}}, NO_SCALE),
    "another object": ({"scale": {"kind": "Gadget", "spec": {"replicas": 3}}}, NO_SCALE),
    "no spec": ({"scale": {"kind": "Scale", "spec": [3]}}, NO_SCALE),
    "a list": ({"scale": [1]}, NO_SCALE),
}


@pytest.mark.parametrize(("answers", "words"), ODD.values(), ids=ODD)
async def test_a_target_of_an_odd_kind_is_an_error_where_the_person_looks(answers, words):
    world = answering(**answers)
    world.metrics = {"requests": load("4")}
    async with autoscaling(world, Clock()) as autoscaler:
        odd = phpa("odd")
        odd["spec"]["scaleTargetRef"]["apiVersion"] = "odd.dev/v1"
        for obj in (odd, phpa("web")):
            autoscaler.on_object(None, obj)
        autoscaler.start_due()
        await world.seen("web")
        status = await world.seen("odd")
        assert world.condition("odd", "AbleToScale") == ("False", "FailedGetScale")
        (message,) = (c["message"] for c in status["conditions"] if c["type"] == "AbleToScale")
        assert words in message
        assert world.scaled == {"web": 4}


class Queried(World):
    """With a Prometheus, whose every query has the value 4."""

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/api/v1/query":
            return await says(200, {"data": {"resultType": "scalar", "result": [1.5, "4"]}})(request)
        return await super().__call__(request)


async def test_a_metrics_api_that_hangs_keeps_nobody_from_prometheus_in_however_many_namespaces():
    world, never = Queried(), asyncio.Event()

    async def hangs(request: web.Request) -> web.StreamResponse:
        await never.wait()
        return web.Response()

    world.metrics = {"slow": hangs}
    async with autoscaling(world, Clock()) as autoscaler:
        for number in range(400):
            made = phpa(f"slow-{number}", "slow")
            made["metadata"]["namespace"] = f"n{number % 40}"
            autoscaler.on_object(None, made)
        other = phpa("web")
        prometheus = {"name": "queue", "query": "q", "target": {"type": "AverageValue", "averageValue": "1"}}
        other["spec"]["metrics"] = [{"type": "Prometheus", "prometheus": prometheus}]
        autoscaler.on_object(None, other)
        async with asyncio.timeout(8):
            autoscaler.start_due()
            await world.seen("web")
        assert world.scaled == {"web": 4}
        never.set()


async def test_an_object_whose_targets_kind_is_no_longer_served_claims_no_pods():
    world, clock = answering(scale=scale()), Clock()
    world.metrics = {"requests": load("4")}
    async with autoscaling(world, clock) as autoscaler:
        odd = phpa("odd")
        odd["spec"]["scaleTargetRef"]["apiVersion"] = "odd.dev/v1"
        autoscaler.on_object(None, odd)
        autoscaler.start_due()
        await world.seen("odd")
        selectors = autoscaler.observer.selectors
        assert selectors.claimants("n", [{"app": "web"}], 1000).keys == [("n", "odd")]
        world.known["v1"] = {"resources": []}
        clock.now += 600  # until it is asked for anew
        await asyncio.gather(*autoscaler._tasks)
        autoscaler.start_due()
        await world.seen("odd", 2)
        assert world.condition("odd", "AbleToScale") == ("False", "FailedGetScale")
        assert selectors.claimants("n", [{"app": "web"}], 1000).keys == []
