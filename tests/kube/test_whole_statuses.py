"""Statuses: a late request replaces none that was made later, and one that is changed is not written for ever."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aiohttp import web

from concerto.kube import Conflict
from concerto.kube.resources import POD_RESERVATIONS, SUBSPACE_SNAPSHOTS
from concerto.kube.status_writes import StatusChanged, raise_if_changed, write_status
from support.faulty_server import faulty, hangs_up, refuses, says

Object = dict[str, Any]
BEFORE: Object = {"metadata": {"namespace": "team", "name": "x", "uid": "u", "resourceVersion": "7"}}
STATUS = {"phase": "Active"}
CONFLICT = refuses(409, "Conflict")


def stored(version: str = "8", uid: str = "u", **status: str) -> Object:
    return {"metadata": BEFORE["metadata"] | {"uid": uid, "resourceVersion": version}, "status": status or STATUS}


async def test_a_write_names_the_object_and_the_version_that_it_was_made_from():
    bodies: list[Object] = []

    async def takes(request: web.Request) -> web.StreamResponse:
        bodies.append(json.loads(await request.read()))
        return web.json_response(stored())

    cluster_scoped = {"metadata": {"name": "cluster", "uid": "u", "resourceVersion": "7"}}
    async with faulty([takes]) as server:
        assert await write_status(server.session, POD_RESERVATIONS, BEFORE, STATUS) == stored()
        await write_status(server.session, SUBSPACE_SNAPSHOTS, cluster_scoped, STATUS)
    assert bodies == 2 * [{"metadata": {"uid": "u", "resourceVersion": "7"}, "status": STATUS}]
    assert [line.partition("concerto.dev/v1alpha1/")[2] for line in server.seen] == [
        "namespaces/team/podreservations/x/status",
        "subspacesnapshots/cluster/status",
    ]


async def test_what_the_status_has_no_more_is_removed():
    """The time at which a reservation ends stayed when ttlSeconds was removed: each look at it found a difference."""
    bodies: list[Object] = []

    async def takes(request: web.Request) -> web.StreamResponse:
        bodies.append(json.loads(await request.read())["status"])
        return web.json_response(stored())

    before = BEFORE | {
        "status": {"expiresAt": "later", "metrics": {"fresh": 1, "old": 2}, "placements": [{"node": "n"}]}
    }
    async with faulty([takes]) as server:
        status = {"phase": "Active", "metrics": {"fresh": 3}, "placements": []}
        await write_status(server.session, POD_RESERVATIONS, before, status)
    assert bodies == [status | {"expiresAt": None, "metrics": {"fresh": 3, "old": None}}]


CONFLICTS = {
    "an attempt without an answer was carried out": ([hangs_up, CONFLICT, says(200, stored())], None),
    "somebody else has changed it": ([CONFLICT, says(200, stored(phase="Pending"))], Conflict),
    "another one has its name": ([CONFLICT, says(200, stored(uid="another"))], Conflict),
}


@pytest.mark.parametrize(("script", "problem"), CONFLICTS.values(), ids=CONFLICTS)
async def test_after_a_conflict_the_object_is_read_back(script, problem):
    async with faulty(script) as server:
        if problem is None:
            assert await write_status(server.session, POD_RESERVATIONS, BEFORE, STATUS) == stored()
        else:
            with pytest.raises(problem):
                await write_status(server.session, POD_RESERVATIONS, BEFORE, STATUS)


def test_a_status_that_was_changed_names_the_fields():
    sent, found = {"phase": "Active", "used": 1, "extra": 1}, {"phase": "Odd", "used": 1, "more": 2}
    with pytest.raises(
        StatusChanged, match=r"in status\.extra, status\.more, status\.phase: does an admission webhook"
    ):
        raise_if_changed(BEFORE, stored(), sent, found)


def test_a_status_that_is_changed_in_the_same_way_each_time_needs_no_other_write():
    raise_if_changed(BEFORE, stored(version="7"), {"phase": "Active"}, {"phase": "Odd"})
    raise_if_changed(BEFORE, stored(), {"phase": "Active"}, {"phase": "Active"})


def test_a_status_of_an_object_that_was_edited_meanwhile_is_not_held_against_a_webhook():
    """The edit would not be looked at before the wait after a failure was over, which may be a minute."""
    edited = stored(phase="Odd")
    edited["metadata"]["generation"] = 2
    raise_if_changed(BEFORE, edited, {"phase": "Active"}, {"phase": "Odd"})
