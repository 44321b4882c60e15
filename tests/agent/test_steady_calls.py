from __future__ import annotations

import asyncio

import pytest

from concerto_agent.steady_calls import call_steadily

PERIOD = 0.125


class Calls:
    """Calls that take the given times by a clock that stands still between them; the last one ends them."""

    def __init__(self, *seconds: float, error: Exception | None = None) -> None:
        self.now = 100.0
        self.at: list[float] = []
        self.missed: list[int] = []
        self._seconds = list(seconds)
        self._error = error
        self._done = asyncio.Event()

    def call(self) -> None:
        self.at.append(round(self.now, 6))
        self.now += self._seconds.pop(0)
        if not self._seconds:
            self._done.set()
            if self._error is not None:
                raise self._error

    async def run(self) -> None:
        task = asyncio.ensure_future(call_steadily(self.call, PERIOD, lambda: self.now, self.missed.append))
        await self._done.wait()
        task.cancel()
        await task


def test_a_late_call_takes_the_place_of_those_missed_and_the_grid_stays():
    calls = Calls(0.125, 0.3125, 0.0625, 0.0)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(calls.run())
    assert calls.at == [100.0, 100.125, 100.4375, 100.5]
    assert calls.missed == [2]


def test_what_a_call_raises_ends_the_calls():
    calls = Calls(PERIOD, PERIOD, error=OSError("no more"))

    async def run() -> None:
        await call_steadily(calls.call, PERIOD, lambda: calls.now, calls.missed.append)

    with pytest.raises(OSError, match="no more"):
        asyncio.run(run())
    assert len(calls.at) == 2


def test_cancelled_calls_end():
    calls = Calls(*[PERIOD] * 4)

    async def run() -> None:
        with pytest.raises(asyncio.CancelledError):
            await calls.run()
        calls._seconds = [PERIOD] * 5
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(calls._seconds) == 5

    asyncio.run(run())
