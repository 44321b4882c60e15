"""Writes that must happen once: repeated until their outcome is known, and never sent once the Lease is lost.

A timeout is not a failure, and a refusal of a second attempt may follow a first one that was carried out. So the object
is read back after each attempt whose outcome is open, and only what it shows ends the write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from concerto.api.doubling import doubling_waits
from concerto.kube.errors import ApiError, Conflict, KubeError, ServerError, TooManyRequests, seconds_asked
from concerto.kube.failpoints import point

_LOOK_AGAIN_SECONDS = 0.1
"""Between two looks whether this process leads again."""

T = TypeVar("T")


@dataclass(frozen=True)
class WriteSettings:
    """How a write is repeated.

    Attributes:
        first_backoff_seconds: wait before the second attempt; doubles each time. ``Retry-After`` may make it longer.
        max_backoff_seconds: the doubling ends there.
        give_up_after_seconds: when a write that is known not to have been carried out is no longer repeated. A write
            whose outcome is unknown is repeated for ever.
        max_webhook_failures: after how many attempts that failed at an admission webhook the write counts as refused.
        max_webhook_seconds: or after how long, where the webhook takes long to fail.
        repeats_conflicts: whether a write that was refused with a conflict is repeated where a read shows nothing that
            explains it: the read was of a moment before, or the refusal is a webhook's, which may last.
    """

    first_backoff_seconds: float = 0.1
    max_backoff_seconds: float = 5.0
    give_up_after_seconds: float = float("inf")
    max_webhook_failures: int = 3
    max_webhook_seconds: float = 15.0
    repeats_conflicts: bool = False


class NotWritten(KubeError):
    """The write is known not to have been carried out, and it is not repeated any further."""


OnFailure = Callable[[KubeError, float], None]
"""Given the failure of an attempt, and the seconds since the first attempt began."""


def failure_reason(failure: KubeError) -> str:
    """A failure in a word, for metrics: ``Webhook``, the API server's reason, or the kind of error."""
    if _is_webhook_failure(failure):
        return "Webhook"
    return failure.reason if isinstance(failure, ApiError) else type(failure).__name__


def _is_webhook_failure(failure: KubeError) -> bool:
    """Whether an admission webhook did not answer: admission comes before storage, so nothing was written."""
    return "failed calling webhook" in str(failure)


async def wait_unless_leading(may_write: Callable[[], bool]) -> None:
    """Return at once while this process leads, and otherwise not before it leads again.

    A process that was stopped for a while (SIGSTOP) continues anywhere, before any timer fires. So every write that
    only the leader may send awaits this last. The process ends soon after it has lost its Lease. It goes on where it
    can renew the Lease once more, because nobody has taken it over meanwhile.
    """
    while not may_write():  # noqa: ASYNC110 - another thread renews the Lease
        await asyncio.sleep(_LOOK_AGAIN_SECONDS)


async def write_until_known(
    write: Callable[[], Awaitable[T]],
    read_back: Callable[[], Awaitable[T | None]],
    *,
    may_write: Callable[[], bool] = lambda: True,
    settings: WriteSettings | None = None,
    on_failure: OnFailure = lambda failure, seconds: None,
    name: str = "write",
) -> T:
    """Repeat a write until its outcome is known.

    Args:
        write: sends one attempt (``attempts=1``) with a timeout of its own, and returns what was written.
        read_back: what the object shows: the result of a write that was carried out (or of somebody else's that makes
            it superfluous), or None where nothing was written. A KubeError means that nothing can be learned now.
        may_write: whether this process leads; asked before each attempt. While it answers no, nothing is sent.
        settings: waits.
        on_failure: given each failed attempt that is repeated.
        name: of the write, in the names of failpoints.

    Raises:
        ApiError: the write was refused, and is known not to have been carried out by an earlier attempt.
        NotWritten: it was not carried out in time, or a webhook kept failing.
    """
    settings = settings or WriteSettings()
    clock = asyncio.get_running_loop().time
    began = clock()
    waits = doubling_waits(settings.first_backoff_seconds, settings.max_backoff_seconds)
    open_outcome = False  # whether an earlier attempt may have been carried out
    webhook_failures = 0
    while True:
        await wait_unless_leading(may_write)
        wait = next(waits)
        point(f"before-{name}")
        try:
            written = await write()
            point(f"after-{name}")
            return written
        except KubeError as error:
            failure = error
        if isinstance(failure, TooManyRequests):
            wait = max(wait, seconds_asked(failure))
        is_refusal = isinstance(failure, ApiError) and not isinstance(failure, TooManyRequests | ServerError)
        if is_refusal and not open_outcome and not isinstance(failure, Conflict):
            raise failure
        on_failure(failure, clock() - began)
        webhook_failed = _is_webhook_failure(failure)
        webhook_failures += webhook_failed
        open_outcome |= (not isinstance(failure, ApiError) or isinstance(failure, ServerError)) and not webhook_failed
        if open_outcome or isinstance(failure, Conflict):
            point(f"before-read-back-{name}")
            try:
                found = await read_back()
            except KubeError:
                await asyncio.sleep(wait)
                continue
            if found is not None:
                return found
        elapsed = clock() - began
        is_repeated = settings.repeats_conflicts and isinstance(failure, Conflict)
        if is_refusal and not (is_repeated and elapsed <= settings.give_up_after_seconds):
            raise failure
        if webhook_failures >= settings.max_webhook_failures or (
            webhook_failed and elapsed >= settings.max_webhook_seconds
        ):
            raise NotWritten(str(failure)) from failure
        if elapsed > settings.give_up_after_seconds:
            raise NotWritten(f"the API server did not accept it in time: {failure}") from failure
        await asyncio.sleep(wait)
