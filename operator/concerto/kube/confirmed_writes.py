"""Writes that must happen once: repeated until their outcome is known, and never sent once the Lease is lost.

A timeout is not a failure, and a refusal of a second attempt may follow a first one that was carried out. So the object
is read back after each attempt whose outcome is open, and only what it shows ends the write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from concerto.kube.errors import ApiError, Conflict, KubeError, ServerError, TooManyRequests

T = TypeVar("T")


@dataclass(frozen=True)
class WriteSettings:
    """How a write is repeated.

    Attributes:
        first_backoff_seconds: wait before the second attempt; doubles each time. ``Retry-After`` may make it longer.
        max_backoff_seconds: the doubling ends there.
        give_up_after_seconds: when a write that is known not to have been carried out is no longer repeated. A write
            whose outcome is unknown is repeated for ever.
    """

    first_backoff_seconds: float = 0.1
    max_backoff_seconds: float = 5.0
    give_up_after_seconds: float = float("inf")


class NotWritten(KubeError):
    """The write is known not to have been carried out, and ``give_up_after_seconds`` have passed."""


async def wait_unless_leading(may_write: Callable[[], bool]) -> None:
    """Return at once while this process leads; never return when it does not.

    A process that was stopped for a while (SIGSTOP) continues anywhere, before any timer fires. So every write that
    only the leader may send awaits this last. The process ends soon after it has lost its Lease.
    """
    if not may_write():
        await asyncio.Event().wait()


async def write_until_known(
    write: Callable[[], Awaitable[T]],
    read_back: Callable[[], Awaitable[T | None]],
    *,
    may_write: Callable[[], bool] = lambda: True,
    settings: WriteSettings | None = None,
) -> T:
    """Repeat a write until its outcome is known.

    Args:
        write: sends one attempt (``attempts=1``) with a timeout of its own, and returns what was written.
        read_back: what the object shows: the result of a write that was carried out (or of somebody else's that makes
            it superfluous), or None where nothing was written. A KubeError means that nothing can be learned now.
        may_write: whether this process still leads; asked before each attempt. Once it answers no, nothing is sent and
            this call does not return.
        settings: waits.

    Raises:
        ApiError: the write was refused, and is known not to have been carried out by an earlier attempt.
        NotWritten: it was not carried out in time.
    """
    settings = settings or WriteSettings()
    clock = asyncio.get_running_loop().time
    began, backoff = clock(), settings.first_backoff_seconds
    open_outcome = False  # whether an earlier attempt may have been carried out
    while True:
        await wait_unless_leading(may_write)
        wait = backoff
        backoff = min(backoff * 2, settings.max_backoff_seconds)
        try:
            return await write()
        except KubeError as error:
            failure = error
        if isinstance(failure, TooManyRequests):
            wait = max(wait, failure.retry_after or 0.0)
        is_refusal = isinstance(failure, ApiError) and not isinstance(failure, TooManyRequests | ServerError)
        if is_refusal and not open_outcome and not isinstance(failure, Conflict):
            raise failure
        open_outcome |= not isinstance(failure, ApiError) or isinstance(failure, ServerError)
        if open_outcome or isinstance(failure, Conflict):
            try:
                found = await read_back()
            except KubeError:
                await asyncio.sleep(wait)
                continue
            if found is not None:
                return found
        if is_refusal:
            raise failure
        if clock() - began > settings.give_up_after_seconds:
            raise NotWritten(f"the API server did not take it in time: {failure}") from failure
        await asyncio.sleep(wait)
