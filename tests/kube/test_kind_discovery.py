"""Where a kind is served: in the version that a reference names, else in the group's preferred one."""

from __future__ import annotations

import pytest
from aiohttp import web

from concerto.api.predictivehpa import ObjectReference
from concerto.kube.discovery import Kinds, UnknownKind
from concerto.kube.errors import TooLarge
from support.faulty_server import faulty, says

SERVED = {
    "/apis/example.com": {"preferredVersion": {"version": "v2"}},
    **{
        f"/apis/example.com/{version}": {"resources": [{"name": "webs", "kind": "Web", "namespaced": True}]}
        for version in ("v1", "v2")
    },
}


async def serve(request: web.Request) -> web.StreamResponse:
    found = SERVED.get(request.path)
    return web.json_response(found or {}, status=404 if found is None else 200)


def web_in(version: str, kind: str = "Web") -> ObjectReference:
    return ObjectReference(kind, "w", f"example.com/{version}")


async def test_of_an_answer_without_end_little_is_taken_in() -> None:
    """Another server may answer for a group."""
    async with faulty([says(200, {"x": "x" * 2**21})]) as server:
        with pytest.raises(TooLarge):
            await Kinds(server.session, lambda: 0.0).find(web_in("v1"))


async def test_a_kind_is_asked_for_in_the_version_of_its_reference() -> None:
    now = 0.0
    async with faulty([serve]) as server:
        kinds = Kinds(server.session, lambda: now)
        for _ in range(2):
            assert [(await kinds.find(web_in(v))).version for v in ("v1", "v2", "v3")] == ["v1", "v2", "v2"]
        asked = len(server.seen)
        with pytest.raises(UnknownKind):
            await kinds.find(web_in("v1", "Nothing"))
        assert len(server.seen) > asked
        now = 301.0
        for number in range(10):
            await kinds.find(web_in(f"v{number}"))
            now += 301.0
        assert len(kinds._cache) == 1, "what users have asked for is not kept for ever"
