"""Decodes a page of a list object by object, so that what is not kept of one is gone before the next is decoded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import orjson

from concerto.kube.errors import Unreachable


class _Page(msgspec.Struct, gc=False):
    metadata: msgspec.Raw = msgspec.Raw()
    items: list[msgspec.Raw] | None = None


_PAGE: msgspec.json.Decoder[_Page] = msgspec.json.Decoder(_Page)


def decode_page(payload: bytes) -> Any:
    """A List as the API server sends it. Its items can be read once, one after the other.

    Decoded, an object may take ten times as much memory as its text, and a page has up to 500.

    Raises:
        ValueError: it is not JSON.
        Unreachable: while items are read: one of them is not JSON.
    """
    try:
        page = _PAGE.decode(payload)
    except (msgspec.MsgspecError, RecursionError):  # orjson has a ValueError for what is nested too deep
        return orjson.loads(payload)
    metadata = bytes(page.metadata)
    if not metadata and page.items is None:
        return orjson.loads(payload)  # no list
    return {"metadata": orjson.loads(metadata or b"{}"), "items": _decoded(page.items or ())}


def _decoded(items: Sequence[msgspec.Raw]) -> Iterator[Any]:
    for item in items:
        try:
            yield orjson.loads(bytes(item))
        except ValueError as error:
            raise Unreachable(f"an object of a list is not JSON ({bytes(item)[:80]!r})") from error
