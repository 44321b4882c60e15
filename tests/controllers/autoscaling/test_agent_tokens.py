"""Tokens for node agents: one for each node, kept while it is good, and asked for again when it is not."""

from __future__ import annotations

import json

from aiohttp import web

from concerto.controllers.autoscaling.sources import AgentTokens
from support.faulty_server import faulty

PATH = "POST /api/v1/namespaces/concerto-system/serviceaccounts/concerto-operator/token"


class Clock:
    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        return self.now


async def issues(request: web.Request) -> web.Response:
    """A token that says whom it is for; for half an hour, whatever is asked."""
    asked = json.loads(await request.read())["spec"]
    issues.count += 1
    token = f"{issues.count} for {','.join(asked['audiences'])}"
    return web.json_response({"spec": asked | {"expirationSeconds": 1800}, "status": {"token": token}}, status=201)


async def test_each_node_is_shown_a_token_of_its_own_for_as_long_as_the_api_server_says():
    issues.count, clock = 0, Clock()
    async with faulty([issues]) as api:
        tokens = AgentTokens(api.session, "concerto-system", "concerto-operator", clock)
        first = await tokens.token("n1")
        assert first == "1 for agents.concerto.dev/n1"
        assert await tokens.token("n2") == "2 for agents.concerto.dev/n2"
        clock.now += 0.8 * 1800 - 1
        assert await tokens.token("n1") == first
        clock.now += 2
        assert await tokens.token("n1") == "3 for agents.concerto.dev/n1"
        assert api.seen == [PATH] * 3


async def test_a_token_that_is_refused_is_replaced_but_not_at_each_refusal():
    issues.count, clock = 0, Clock()
    async with faulty([issues]) as api:
        tokens = AgentTokens(api.session, "concerto-system", "concerto-operator", clock)
        first = await tokens.token("n1")
        tokens.refused("n1", first)
        assert await tokens.token("n1") == first
        clock.now += 60
        tokens.refused("n1", "another")
        assert await tokens.token("n1") == first
        tokens.refused("n1", first)
        assert await tokens.token("n1") == "2 for agents.concerto.dev/n1"


async def test_a_clock_that_went_back_makes_no_token_good_for_ever():
    issues.count, clock = 0, Clock()
    async with faulty([issues]) as api:
        tokens = AgentTokens(api.session, "concerto-system", "concerto-operator", clock)
        await tokens.token("n1")
        clock.now -= 5
        assert await tokens.token("n1") == "2 for agents.concerto.dev/n1"
