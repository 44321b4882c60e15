"""Who may get /metrics: what the API server is asked, and what its answers mean."""

from __future__ import annotations

import pytest
from aiohttp import web

from concerto.kube.access_review import READ_METRICS, AccessReviewer
from support.faulty_server import faulty, says

USER = {"username": "system:serviceaccount:monitoring:prometheus", "uid": "u", "groups": ["g"], "extra": {"k": ["v"]}}


async def test_a_token_is_reviewed_for_the_api_server_and_its_user_for_the_path():
    bodies = []

    async def api_server(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        status = {"TokenReview": {"authenticated": True, "user": USER}, "SubjectAccessReview": {"allowed": True}}
        return web.json_response({"status": status[bodies[-1]["kind"]]}, status=201)

    async with faulty([api_server]) as server:
        assert (await AccessReviewer(server.session, READ_METRICS).judge("Bearer t")).status == 200
    token, access = bodies
    assert token["spec"] == {"token": "t"}
    assert access["spec"] == {
        "user": USER["username"],
        "uid": "u",
        "groups": ["g"],
        "extra": {"k": ["v"]},
        "nonResourceAttributes": {"path": "/metrics", "verb": "get"},
    }


@pytest.mark.parametrize(
    ("answer", "status", "reason"),
    [
        ({"authenticated": False}, 401, "the token is not valid"),
        ({"authenticated": True, "user": USER, "allowed": False}, 403, f"{USER['username']} may not get /metrics"),
        ({"authenticated": True, "user": USER, "allowed": "true"}, 403, f"{USER['username']} may not get /metrics"),
        ({"authenticated": True}, 503, "the API server did not answer who may read: 'user'"),
        ({"authenticated": True, "user": None}, 503, None),
    ],
)
async def test_only_an_answer_that_allows_lets_a_caller_through(answer, status, reason):
    async with faulty([says(201, {"status": answer})]) as server:
        verdict = await AccessReviewer(server.session, READ_METRICS).judge("Bearer t")
    assert verdict.status == status
    assert reason in (None, verdict.reason)


async def test_a_token_that_is_too_long_is_refused_without_a_question():
    async with faulty([says(201)]) as server:
        assert (await AccessReviewer(server.session, READ_METRICS).judge("Bearer " + "t" * 20_000)).status == 401
        assert server.seen == []
