"""Kinds that are followed once, for all parts of the operator."""

from __future__ import annotations

import asyncio

from concerto.controllers.runtime.supervision import Supervisor
from concerto.controllers.runtime.watched_kinds import FollowedKind, WatchedKinds
from concerto.kube.resources import NODES, PODS
from support.faulty_server import faulty, refuses


def node(name, version="1"):
    return {"metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": version}}


async def test_a_subscriber_is_given_what_is_there_and_then_each_change():
    async with faulty([refuses(404, "NotFound")]) as server:
        first, later = [], []
        kind = FollowedKind(server.session, NODES, lambda old, new: first.append((old, new)))
        kind.reflector.store["", "a"] = node("a")
        kind.subscribe(lambda old, new: later.append((old, new)))
        kind._on_change(None, node("b"))
    assert later == [(None, node("a")), (None, node("b"))]
    assert first == [(None, node("b"))]


async def test_an_error_of_a_handler_costs_it_the_one_object_and_the_others_nothing():
    async with faulty([refuses(404, "NotFound")]) as server:
        seen, after = [], []

        def fails(old, new):
            seen.append(new["metadata"]["name"])
            raise RuntimeError("of ours")

        kind = FollowedKind(server.session, NODES, fails)
        kind.subscribe(fails)
        kind.add(lambda old, new: after.append(new["metadata"]["name"]))
        kind._on_change(None, node("a"))
        kind._on_change(None, node("b"))
    assert (seen, after) == (["a", "a", "b", "b"], ["a", "b"])


async def test_a_new_leader_does_not_wait_for_a_kind_that_is_followed_on_demand():
    async with faulty([refuses(403, "Forbidden")]) as server:
        supervisor = Supervisor(lambda: None)
        nodes, pods = FollowedKind(server.session, NODES), FollowedKind(server.session, PODS, on_demand=True)
        reading = asyncio.ensure_future(WatchedKinds({"nodes": nodes, "pods": pods}, supervisor).read_afresh())
        await server.asked(1)
        nodes.reflector.synced.set()
        async with asyncio.timeout(20):
            await reading
        assert not any("pods" in each for each in server.seen)
        pods.demand()
        async with asyncio.timeout(20), server.arrival:
            await server.arrival.wait_for(lambda: any("pods" in each for each in server.seen))
        await supervisor.stop()
