"""Lists of objects as large as the API server takes them are read without holding all of them decoded."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from concerto.api.poddisruptionbudget import trim_budget
from concerto.controllers.runtime.page_decoding import decode_page
from concerto.controllers.runtime.watched_kinds import FollowedKind
from concerto.kube.errors import Unreachable
from concerto.kube.resources import POD_DISRUPTION_BUDGETS
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


async def test_of_a_page_of_large_objects_one_is_decoded_at_a_time() -> None:
    text, turns, seen = orjson.dumps(PAGE).decode(), 0, list[int]()

    def trim(obj: dict[str, Any]) -> dict[str, Any]:
        seen.append(turns)
        return trim_budget(obj)

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with faulty([says(200, text)]) as server:
        kind = FollowedKind(server.session, POD_DISRUPTION_BUDGETS, trim=trim)
        counting = asyncio.ensure_future(count_turns())
        try:
            with traced_memory() as memory:
                await kind.reflector._list()
        finally:
            counting.cancel()
    assert [*kind.store.values()] == [trim_budget(budget) for budget in BUDGETS]
    assert memory.peak < 8 * len(text), "decoded, all of them take some ten times as much as their text"
    assert seen[0] < seen[-1], "others have turns meanwhile"


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
