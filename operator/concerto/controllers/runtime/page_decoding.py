"""Decodes a page of a list object by object, so that what is not kept of one is gone before the next is decoded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
import orjson

from concerto.kube.errors import TooLarge, Unreachable

MAX_VALUES = 2_000_000
"""Values in an answer of another server than the API server: 5,000 nodes with 300 labels each. In memory a value takes
50 bytes, however short its text is."""
_MAX_ITEM_BYTES = 2**20
_MAX_OTHER_BYTES = 2**16


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


def decode_foreign_list(payload: bytes) -> Any:
    """A list that another server than the API server answers, in any form; only its items are read, as `decode_page`.

    Raises:
        ValueError: it is not JSON.
        TooLarge: it has too many values, or is large and not a list.
        Unreachable, TooLarge: while items are read: one of them is not JSON, or too large.
    """
    if has_too_many_values(payload, MAX_VALUES):
        raise TooLarge(f"the answer has more than {MAX_VALUES} values")
    try:
        items = _PAGE.decode(payload).items
    except (msgspec.MsgspecError, RecursionError):
        items = None
    if items is not None:
        return {"items": _decoded(items, _MAX_ITEM_BYTES)}
    if len(payload) > _MAX_OTHER_BYTES:
        raise TooLarge(f"the answer has more than {_MAX_OTHER_BYTES} bytes, and is not a list")
    return orjson.loads(payload)


def has_too_many_values(payload: bytes, most: int) -> bool:
    """Whether a JSON text may have more than so many values: each but the first comes after one of these characters."""
    return len(payload) > most and sum(map(payload.count, (b",", b"[", b"{"))) > most


def readable(decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """A decoder of lists whose items raise Unreachable, and not a ValueError, if they are not JSON."""

    def decode_readable(payload: bytes) -> Any:
        page = decode(payload)
        return page | {"items": _read(page["items"])} if isinstance(page, dict) and page.get("items") else page

    return decode_readable


def _read(items: Iterable[Any]) -> Iterator[Any]:
    try:
        yield from items
    except ValueError as error:
        raise Unreachable(f"an object of a list is not JSON: {error}") from error


def _decoded(items: Sequence[msgspec.Raw], max_bytes: int | None = None) -> Iterator[Any]:
    for item in items:
        if max_bytes is not None and len(memoryview(item)) > max_bytes:
            raise TooLarge(f"an object of the list has more than {max_bytes} bytes")
        try:
            yield orjson.loads(bytes(item))
        except ValueError as error:
            raise Unreachable(f"an object of a list is not JSON ({bytes(item)[:80]!r})") from error
