"""How the process searches for garbage while it holds many objects."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import orjson
import pytest

from concerto.api.pod import PodView
from concerto.api.pod_decoding import PodDecoder
from concerto.api.schedulingprofile import ProfileSettings
from concerto.api.shared_parts import SharedParts
from concerto.controllers.runtime.garbage import NEW_OBJECTS, FullSearches, search_new_objects_only
from concerto.kube import KubeError, Session
from concerto.scheduling.cycle import schedule
from concerto.scheduling.profile import Profile
from concerto.scheduling.state.cluster import ClusterState
from support.faulty_server import faulty, refuses, resets, says, streams
from support.scheduling_builders import NOW, node, raw_pod


@pytest.fixture(autouse=True)
def collector_as_it_was() -> Iterator[None]:
    thresholds, callbacks = gc.get_threshold(), list(gc.callbacks)
    yield
    gc.set_threshold(*thresholds)
    gc.callbacks[:] = callbacks
    gc.unfreeze()


class Cyclic:
    """Garbage that only a search finds."""

    def __init__(self) -> None:
        self.itself = self


def searched(act: Callable[[], object]) -> list[int]:
    """How many objects each of the searches while that ran was among."""
    sizes: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            sizes.append(sum(len(gc.get_objects(each)) for each in range(info["generation"] + 1)))

    gc.callbacks.insert(0, note)
    try:
        act()
    finally:
        gc.callbacks.remove(note)
    return sizes


def test_no_search_is_among_many_objects_however_many_there_are() -> None:
    kept: list[Any] = []
    search_new_objects_only()
    sizes = searched(lambda: kept.extend([{"number": [n]}] for n in range(12 * NEW_OBJECTS // 3)))
    assert len(sizes) >= 10
    assert max(sizes) < 1.1 * NEW_OBJECTS


def test_garbage_in_cycles_is_found() -> None:
    search_new_objects_only()
    gone = weakref.ref(Cyclic())
    for _ in range(NEW_OBJECTS):
        Cyclic()
    assert gone() is None


def test_what_was_in_use_is_freed_by_its_last_use() -> None:
    search_new_objects_only()
    kept = [Cyclic() for _ in range(100)]
    gone = [weakref.ref(each) for each in kept]
    gc.collect()
    for each in kept:
        del each.itself
    del kept, each
    assert all(ref() is None for ref in gone)


def test_what_was_in_use_and_is_in_a_cycle_later_is_found_when_much_more_is_held() -> None:
    search_new_objects_only()
    kept = Cyclic()
    gone = weakref.ref(kept)
    gc.collect()
    del kept
    blocks = iter([100, 124, 126, 110, 120])
    searches = FullSearches(lambda: next(blocks))
    searches.search_if_due()
    searches.search_if_due()
    gc.collect()
    assert gone() is not None
    searches.search_if_due()
    assert gone() is None
    assert gc.get_freeze_count() > 10_000, "what is in use is not searched again"
    assert searched(searches.search_if_due) == [], "110 blocks were in use after the last search"


async def test_requests_that_fail_during_searches_leave_nothing_for_good() -> None:
    search_new_objects_only()
    async with faulty([resets]) as server:

        async def fail(times: int) -> None:
            for _ in range(times):
                asked = asyncio.ensure_future(server.session.request("GET", "/api/v1/nodes", attempts=3))
                await server.asked(len(server.seen) + 1)
                gc.collect()
                with contextlib.suppress(KubeError):
                    await asked
            gc.collect()

        await fail(3)
        others = sys.getallocatedblocks() - 400_000  # what tests before this one have left does not count
        searches = FullSearches(lambda: sys.getallocatedblocks() - others)
        searches.search_if_due()
        left, in_use = [Cyclic() for _ in range(200_000)], sys.getallocatedblocks()
        gc.collect()
        del left
        await fail(3)
        assert sys.getallocatedblocks() > 0.99 * in_use, "what is in cycles now was in use when it was searched"
        searches.search_if_due()
        assert sys.getallocatedblocks() < in_use - 300_000
        assert searched(searches.search_if_due) == []


def garbage() -> list[object]:
    """What a search finds, among all objects."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        return list(gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


def come_and_go(cluster: ClusterState, decoder: PodDecoder, wave: int, count: int = 60) -> None:
    """Different pods come. Most of them find a node, start and end. All of them go."""
    raw = [raw_pod(f"p{wave}-{i}", labels={"wave": f"{wave}-{i}"}, requests={"cpu": f"{i}m"}) for i in range(count)]
    raw[0] = raw_pod(f"p{wave}-0", requests={"cpu": "90"})
    waiting = [seen(decoder, each) for each in raw]
    for each in waiting:
        cluster.set_pod(each, NOW)
    generator, profiles = np.random.default_rng(wave), {"concerto": Profile.build(ProfileSettings("concerto"))}
    result = schedule(cluster, waiting, profiles, now=NOW, generator=generator)
    assert (len(result.decisions), len(result.unschedulable)) == (count - 1, 1)
    for decision, each in zip(result.decisions, raw[1:], strict=True):
        for phase in ("Pending", "Running", "Succeeded"):
            bound = {**each, "status": {"phase": phase}}
            bound["spec"] = each["spec"] | {"nodeName": decision.assignment.node}
            cluster.set_pod(seen(decoder, bound), NOW)
    for each in waiting:
        cluster.remove_pod(each.uid)


def seen(decoder: PodDecoder, raw: dict[str, Any]) -> PodView:
    """The pod as it comes from the API server."""
    raw = raw | {"metadata": raw["metadata"] | {"resourceVersion": "1"}}
    return PodView.from_raw(decoder.event(orjson.dumps({"type": "MODIFIED", "object": raw}))["object"])


def test_no_part_of_a_pod_and_of_its_placement_is_in_a_cycle() -> None:
    cluster, decoder = ClusterState(), PodDecoder(SharedParts())
    for number in range(3):
        cluster.set_node(node(f"n{number}"))
    come_and_go(cluster, decoder, wave=0)
    gc.collect()
    gc.disable()
    try:
        come_and_go(cluster, decoder, wave=1)
        assert garbage() == []
    finally:
        gc.enable()


async def test_no_request_and_no_watch_that_ends_as_it_should_is_in_a_cycle() -> None:
    event = orjson.dumps({"type": "ADDED", "object": {"metadata": {"name": "a"}}}) + b"\n"
    answers = [says(200, {"kind": "Node"}), refuses(409, "Conflict"), streams(event, event)]

    async def use(session: Session) -> None:
        await session.get("/api/v1/nodes/a")
        with contextlib.suppress(KubeError):
            await session.create("/api/v1/nodes", {"kind": "Node"})
        async with session.stream("/api/v1/nodes", params={"watch": "true"}, inactivity_seconds=20) as batches:
            assert [line async for lines in batches for line in lines] == [event.strip()] * 2

    async with faulty([*answers, *answers]) as server:
        await use(server.session)
        gc.collect()
        gc.disable()
        try:
            await use(server.session)
            assert garbage() == []
        finally:
            gc.enable()
