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
_MORE_AGAIN = 32
"""Pages with fewer objects, after which more are asked for again: a user's few large objects come one after another."""


async def read_pages(
    send: SendOnce, path: str, selected: Mapping[str, str], limit: int, max_bytes: int, first_attempts: int | None
) -> AsyncIterator[Object]:
    """See ``Session.pages``.

    Args:
        send: sends a request for a page.
        path: of the collection.
        selected: selectors, as parameters.
        limit: objects asked for at a time; fewer where they are so large that a page would be too large.
        max_bytes: of a page with more than one object.
        first_attempts: for the first page.
    """
    number, pages = limit, 0  # objects asked for, and pages of so many

    async def read(attempts: int | None, token: str) -> Object:
        nonlocal number, pages
        if pages >= _MORE_AGAIN:
            number, pages = min(limit, number * _FEWER), 0
        while True:
            params = {**selected, "limit": str(number)} | ({"continue": token} if token else {})
            try:
                page = await send(Outgoing("GET", path, params), attempts, max_bytes if number > 1 else None)
            except TooLarge:
                number, pages = max(1, number // _FEWER), 0
            else:
                pages += 1
                return page

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
