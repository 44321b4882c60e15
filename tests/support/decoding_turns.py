"""How much of a list is decoded in one turn of the event loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from concerto.controllers.runtime import page_decoding


@asynccontextmanager
async def decoding_turns(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Counter[int]]:
    """Count what `decode_page` decodes in the block, by how many turns others have had before."""
    turns, decoded_in = 0, Counter[int]()

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    def decoded(text: bytes) -> Any:
        decoded_in[turns] += 1
        return orjson.loads(text)

    monkeypatch.setattr(page_decoding, "orjson", SimpleNamespace(loads=decoded))
    task = asyncio.create_task(others())
    try:
        yield decoded_in
    finally:
        task.cancel()
