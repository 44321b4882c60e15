"""Leader election in a thread of its own, where nothing that the leader does can keep it from renewing its Lease.

The thread has its own event loop and its own connection. A leader whose event loop is blocked for longer than the renew
deadline (by an object that takes seconds to decide on, say) therefore goes on leading, and a leader that has lost its
Lease learns of it by ``on_lost`` in that thread, even while its event loop is blocked. The thread is held up only by
what holds Python's global lock: one single call into C, such as the search of a regular expression.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from concerto.kube.lease import Candidate, LeaseLock, LeaseSettings, time_since_boot
from concerto.kube.session import Session

logger = logging.getLogger(__name__)


class LeaderElection:
    """One candidate for one Lease."""

    def __init__(
        self,
        session: Session,
        candidate: Candidate,
        settings: LeaseSettings | None = None,
        *,
        on_lost: Callable[[], None] | None = None,
        clock: Callable[[], float] = time_since_boot,
    ) -> None:
        """Nothing is asked for before `run`.

        Args:
            session: says which API server; the election opens a session of its own.
            candidate: who wants to lead, and by which Lease.
            settings: durations.
            on_lost: called at once, in the election's thread, when leadership is lost; where nothing may happen
                afterwards it ends the process.
            clock: seconds; must not be set, and run while the machine is suspended.
        """
        self.identity = candidate.identity
        self._session = session
        self._on_lost = on_lost
        self._candidate = candidate
        self._settings = settings or LeaseSettings()
        self._clock = clock
        self._lock: LeaseLock | None = None

    @property
    def holder(self) -> str | None:
        """Who holds the lease, as far as is known here."""
        return self._lock.holder if self._lock else None

    @property
    def field_manager(self) -> str:
        """The field manager of a leader's creations; manifests/base/policy-fencing.yaml refuses earlier leaders'.

        It bears this leader's number, the Lease's ``leaseTransitions`` when the Lease was last known to be ours.
        """
        return f"concerto-leader-{self._lock.number if self._lock else 0}"

    def remaining_seconds(self) -> float:
        """For how long this candidate may still act as the leader; 0 when it may not. Any thread may ask.

        What must not happen twice asks this last thing before it is sent: a process that was stopped for a while
        (SIGSTOP, a suspended machine) wakes up in the middle of whatever it did, before any timer fires.
        """
        return self._lock.remaining_seconds() if self._lock else 0.0

    async def run(self, lead: Callable[[], Awaitable[None]]) -> bool:
        """Wait for leadership, then run ``lead`` in this event loop for as long as it lasts.

        The lease is given back when ``lead`` has ended by itself, by an exception, or because this call was cancelled,
        so that a successor need not wait. It is not when it was lost.

        Returns:
            True when ``lead`` has ended by itself, False when leadership was lost first.
        """
        renewal = _Renewal(self._hold)
        leading: asyncio.Future[None] | None = None
        try:
            await renewal.wait_acquired()
            leading = asyncio.ensure_future(lead())
            await asyncio.wait({leading, renewal.ended}, return_when=asyncio.FIRST_COMPLETED)
            if leading.done():
                leading.result()
                return True
            renewal.ended.result()
            return False
        finally:
            if leading is not None:
                # What leads gets its chance to clean up while the lease, if it was not lost, is still held
                leading.cancel()
                await asyncio.gather(leading, return_exceptions=True)
            await renewal.stop()

    async def _hold(self, on_acquired: Callable[[], None]) -> None:
        """Get the lease and renew it until it is lost, in the election's thread; give it back when cancelled."""
        async with await Session.open(self._session.config, self._session.settings) as own:
            lock = self._lock = LeaseLock(own, self._candidate, self._settings, self._clock)
            try:
                await lock.acquire()
                logger.info("%s leads (%s)", self.identity, lock)
                on_acquired()
                await lock.hold()
                if self._on_lost:
                    self._on_lost()
            finally:
                await lock.release()


class _Renewal:
    """A thread with an event loop that runs ``hold``, as seen from the event loop that waits for it.

    Attributes:
        ended: done when ``hold`` has ended; holds its exception, if any.
    """

    def __init__(self, hold: Callable[[Callable[[], None]], Coroutine[Any, Any, None]]) -> None:
        """Start it."""
        self._hold = hold
        self._loop = asyncio.get_running_loop()
        self._acquired = asyncio.Event()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._own_loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._thread.start()

    async def wait_acquired(self) -> None:
        """Return when the lease is ours; raise what has kept ``hold`` from getting it."""
        acquired = asyncio.ensure_future(self._acquired.wait())
        try:
            waiting: set[asyncio.Future[Any]] = {acquired, self.ended}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if self.ended.done():
                self.ended.result()
        finally:
            acquired.cancel()

    async def stop(self) -> None:
        """Cancel ``hold``; return when it has given back the lease, and the thread has ended."""
        await asyncio.to_thread(self._started.wait)
        if self._own_loop is not None and self._task is not None:
            with contextlib.suppress(RuntimeError):  # its loop is closed: it has ended by itself
                self._own_loop.call_soon_threadsafe(self._task.cancel)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            asyncio.run(self._main())
        except asyncio.CancelledError:
            pass
        except BaseException as raised:
            error = raised
        finally:
            self._started.set()
        self._call_in_loop(self._end, error)

    async def _main(self) -> None:
        self._own_loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._started.set()
        await self._hold(lambda: self._call_in_loop(self._acquired.set))

    def _call_in_loop(self, function: Callable[..., object], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # nobody waits any more: the loop is closed
            self._loop.call_soon_threadsafe(function, *arguments)

    def _end(self, error: BaseException | None) -> None:
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)
