"""A collection as the first events of a watch, in which the API server sends all objects that there are.

It takes them from its cache, one by one (feature gate WatchList, on by default since Kubernetes 1.34). The pages of a
list are all of one moment, which etcd forgets after some minutes (410): a client that takes longer to read them would
begin again for ever.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

from concerto.kube.errors import Unreachable, api_error
from concerto.kube.request_bodies import Object
from concerto.kube.response_documents import Decode
from concerto.kube.session import Session

_END = "k8s.io/initial-events-end"


async def initial_events(
    session: Session, path: str, params: Mapping[str, str], *, decode: Decode, inactivity_seconds: float
) -> AsyncIterator[tuple[str, Object]]:
    """The events until the collection is known as of a moment after this call; the last one is a bookmark.

    Objects may also change and go before the bookmark: the cache may be older than this call at first.

    Args:
        session: the way to the API server.
        path: of the collection.
        params: selectors.
        decode: of an event.
        inactivity_seconds: the stream is given up when nothing came for so long.

    Yields:
        The event's type (ADDED, MODIFIED, DELETED, BOOKMARK) and its object.

    Raises:
        ApiError: the server refuses, maybe because its feature gate WatchList is off.
        Unreachable: the stream ended before the bookmark.
        ValueError: what came is no event.
    """
    asked = {
        "watch": "true",
        "sendInitialEvents": "true",
        "resourceVersionMatch": "NotOlderThan",
        "allowWatchBookmarks": "true",
        **params,
    }
    async with session.stream(path, params=asked, inactivity_seconds=inactivity_seconds) as batches:
        async for lines in batches:
            lines.reverse()
            while lines:
                kind, item = read_event(lines.pop(), decode)
                is_end = kind == "BOOKMARK" and (item["metadata"].get("annotations") or {}).get(_END) == "true"
                if is_end or kind != "BOOKMARK":
                    yield kind, item
                if is_end:
                    return
    raise Unreachable(f"GET {path}: the watch ended before all objects had come")


def read_event(line: bytes, decode: Decode) -> tuple[str, Object]:
    """Type and object of a watch event.

    Raises:
        ValueError: it is no event.
        ApiError: it is an error.
    """
    try:
        event = decode(line)
        kind, item = event["type"], event["object"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"not a watch event: {line[:200]!r}") from error
    if kind == "ERROR":
        raise api_error(int(item.get("code") or 500), item)
    return kind, item
