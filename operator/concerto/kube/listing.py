"""Lists that come page by page, each page small enough to be held whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

from concerto.kube.errors import TooLarge
from concerto.kube.request_bodies import Object
from concerto.kube.transport import Outgoing

SendOnce = Callable[[Outgoing, int | None, int | None], Awaitable[Object]]
"""Sends a request, given how often it is tried and how large its answer may be; None: as often as any, of any size."""

_FEWER = 8
"""Part of the objects of a page that was too large which are asked for next."""


async def read_pages(
    send: SendOnce, path: str, selected: Mapping[str, str], limit: int, max_bytes: int, first_attempts: int | None
) -> AsyncIterator[Object]:
    """See ``Session.pages``.

    Args:
        send: sends a request for a page.
        path: of the collection.
        selected: selectors, as parameters.
        limit: objects asked for at a time, unless they are so large that a page would be too large.
        max_bytes: of a page with more than one object.
        first_attempts: for the first page.
    """

    async def read(attempts: int | None, token: str) -> Object:
        nonlocal limit
        while True:
            params = {**selected, "limit": str(limit)} | ({"continue": token} if token else {})
            try:
                return await send(Outgoing("GET", path, params), attempts, max_bytes if limit > 1 else None)
            except TooLarge:
                limit = max(1, limit // _FEWER)

    coming = asyncio.ensure_future(read(first_attempts, ""))
    try:
        while True:
            page = await coming
            token = (page.get("metadata") or {}).get("continue")
            if token:
                # The API server makes the next page while this one is taken in
                coming = asyncio.ensure_future(read(None, token))
            yield page
            if not token:
                return
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
