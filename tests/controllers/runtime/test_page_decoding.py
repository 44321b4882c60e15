"""Lists of objects as large as the API server takes them are read without holding all of them decoded."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest
from aiohttp import web

from concerto.api.pod_trimming import trim_pod
from concerto.api.poddisruptionbudget import trim_budget
from concerto.controllers.runtime.page_decoding import decode_page
from concerto.controllers.runtime.watched_kinds import FollowedKind, Trim
from concerto.kube.errors import Unreachable
from concerto.kube.resources import POD_DISRUPTION_BUDGETS, PODS, Resource
from support.faulty_server import faulty, says
from support.traced_memory import traced_memory

NUMBER = 12
BUDGETS = [
    {
        "metadata": {"namespace": "n", "name": f"b{n}", "uid": f"u{n}", "resourceVersion": "7"},
        "spec": {"selector": {"matchLabels": {f"k{n}-{i}": "v" for i in range(10_000)}}},
    }
    for n in range(NUMBER)
]
PAGE = {"metadata": {"resourceVersion": "9"}, "items": BUDGETS}


POD_PAGE = {
    "metadata": {"resourceVersion": "9"},
    "items": [
        {
            "metadata": {"namespace": "n", "name": f"p{n}", "uid": f"u{n}", "resourceVersion": "7"},
            "spec": {"containers": [{"name": f"c{n}-{i}", "image": "i"} for i in range(5_000)]},
        }
        for n in range(NUMBER)
    ],
}
PAGES = {"budgets": (POD_DISRUPTION_BUDGETS, PAGE, trim_budget), "pods": (PODS, POD_PAGE, trim_pod)}


@pytest.mark.parametrize(("resource", "page", "trim"), PAGES.values(), ids=PAGES)
async def test_of_a_page_of_large_objects_one_is_decoded_at_a_time(
    resource: Resource, page: dict[str, Any], trim: Trim
) -> None:
    text, turns, seen = orjson.dumps(page).decode(), 0, list[int]()

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with faulty([says(200, text)]) as server:
        kind = FollowedKind(server.session, resource, trim=trim)
        kind.reflector._streams = False
        unchanged = kind.reflector._unchanged
        kind.reflector._unchanged = lambda item: seen.append(turns) or unchanged(item)  # type: ignore[method-assign]
        counting = asyncio.ensure_future(count_turns())
        try:
            with traced_memory() as memory:
                await kind.reflector._list()
        finally:
            counting.cancel()
    assert [*kind.store.values()] == [trim(item) for item in page["items"]]
    assert memory.peak < 8 * len(text), "decoded, all of them take some ten times as much as their text"
    assert seen[0] < seen[-1], "others have turns meanwhile"


async def test_a_page_of_pods_of_which_one_is_no_json_is_no_answer() -> None:
    text = b'{"metadata":{"resourceVersion":"9"},"items":[{"metadata":{"name":"\xff"}}]}'

    async def answers(request: web.Request) -> web.StreamResponse:
        return web.Response(body=text)

    async with faulty([answers]) as server:
        kind = FollowedKind(server.session, PODS, trim=trim_pod)
        kind.reflector._streams = False
        with pytest.raises(Unreachable, match="is not JSON"):
            await kind.reflector._list()


def test_a_page_is_what_it_is_if_it_is_decoded_whole() -> None:
    found = decode_page(orjson.dumps(PAGE))
    assert {**found, "items": list(found["items"])} == PAGE
    assert list(decode_page(b'{"metadata": {}, "items": null}')["items"]) == []
    assert list(decode_page(b'{"items": [{"a": 1}]}')["items"]) == [{"a": 1}]
    assert decode_page(b'{"kind": "Status"}') == {"kind": "Status"}
    for bad in (b"<html>", b'{"items": [' + b"[" * 200_000, b'{"metadata": ' + b"[" * 200_000):
        with pytest.raises(ValueError):
            decode_page(bad)
    with pytest.raises((Unreachable, ValueError)):
        list(decode_page(b'{"metadata": {}, "items": [{"a": "\xff"}]}')["items"])
