"""Leader election on a Lease, after client-go, made for fencing.

Why not the elections of the official client (``kubernetes.leaderelection`` and ``kubernetes.aio.leaderelection``, read
at 37.0.2)? The first blocks its thread. The second is of the same build, and neither can be fenced with: a renewal in
flight has no timeout, so that one hung request outlives the deadline, the lease, and the next leader's start; what is
measured is the wall clock; the deadline runs from the start of a round rather than from the last renewal; an
``aiohttp.ClientError`` (API server away) ends ``run()`` without stopping what leads; the lease is never released; and
local time is written as UTC.

Safety here rests on one inequality. A leader's right ends ``renew_deadline`` after the *sending* of its last renewal
that was confirmed. Nobody else takes over before ``lease_duration`` after they *saw* that renewal, which is later. So
for ``lease_duration - renew_deadline`` after a leader has stopped there is no other: whatever it had sent (bindings)
must have ended, by its timeout, within that time. Only durations on each one's own monotonic clock enter.

A Lease that is deleted ends nobody's right: its holder makes it again with its next renewal, and candidates who saw a
holder wait ``lease_duration`` from when they first missed it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from concerto.api.timestamps import format_micro_timestamp
from concerto.kube.errors import Conflict, KubeError, NotFound
from concerto.kube.resources import LEASES
from concerto.kube.session import Object, Session

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LeaseSettings:
    """The durations of an election.

    Attributes:
        lease_duration_seconds: how long others leave a lease alone that is not renewed; whole seconds.
        renew_deadline_seconds: how long a leader leads without a confirmed renewal.
        retry_period_seconds: between two looks at the lease, and between two renewals.
    """

    lease_duration_seconds: int = 15
    renew_deadline_seconds: float = 10.0
    retry_period_seconds: float = 2.0

    @property
    def request_timeout_seconds(self) -> float:
        """For one request: one that hangs leaves time for another before the deadline."""
        return self.renew_deadline_seconds / 2

    def __post_init__(self) -> None:
        """Check that the durations make an election.

        Raises:
            ValueError: they are not in the order retry < deadline < lease.
        """
        if not 0 < self.retry_period_seconds < self.renew_deadline_seconds < self.lease_duration_seconds:
            raise ValueError(f"retry period < renew deadline < lease duration must hold: {self}")


class LeaderElection:
    """One candidate for one Lease."""

    def __init__(
        self,
        session: Session,
        *,
        namespace: str,
        name: str,
        identity: str,
        settings: LeaseSettings | None = None,
        owners: Sequence[Object] = (),
        on_lost: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is asked for before `run`.

        Args:
            session: the way to the API server.
            namespace: of the Lease.
            name: of the Lease.
            identity: of this candidate; must be new at each start of a process, as a lease that bears it is taken for
                one's own.
            settings: durations.
            owners: owner references of a Lease that is created here, in its namespace; it goes when they have gone.
            on_lost: called at once, synchronously, when leadership is lost; where nothing may happen afterwards it
                ends the process.
            clock: seconds, monotonic.
        """
        self.identity = identity
        self._session = session
        self._namespace = namespace
        self._name = name
        self._settings = settings or LeaseSettings()
        self._owners = owners
        self._on_lost = on_lost
        self._clock = clock
        self._path = LEASES.path(namespace, name)
        self._renewed_at: float | None = None  # sending time of the last confirmed renewal, while leading
        self._lease: Object | None = None  # as last read or written
        self._observed: tuple[Any, ...] | None = None  # what a holder changes with each renewal
        self._observed_at = 0.0
        self._last_spec: Object = {}  # of the Lease as it was last seen, also after it has been deleted

    @property
    def holder(self) -> str | None:
        """Who holds the lease, as far as is known here."""
        return ((self._lease or {}).get("spec") or {}).get("holderIdentity") or None

    def remaining_seconds(self) -> float:
        """For how long this candidate may still act as the leader; 0 when it may not.

        What must not happen twice asks this last thing before it is sent: a process that was stopped for a while
        (SIGSTOP, a paused machine) wakes up in the middle of whatever it did, before any timer fires.
        """
        if self._renewed_at is None:
            return 0.0
        return max(0.0, self._renewed_at + self._settings.renew_deadline_seconds - self._clock())

    async def run(self, lead: Callable[[], Awaitable[None]]) -> bool:
        """Wait for leadership, then run ``lead`` for as long as it lasts.

        The lease is given back when ``lead`` has ended by itself, by an exception, or because this call was cancelled,
        so that a successor need not wait. It is not when it was lost.

        Returns:
            True when ``lead`` has ended by itself, False when leadership was lost first.
        """
        await self._acquire()
        logger.info("%s leads (lease %s/%s)", self.identity, self._namespace, self._name)
        leading = asyncio.ensure_future(lead())
        holding = asyncio.create_task(self._hold())
        try:
            await asyncio.wait({leading, holding}, return_when=asyncio.FIRST_COMPLETED)
            if leading.done():
                leading.result()
                return True
            holding.result()
            return False
        finally:
            holding.cancel()
            leading.cancel()
            # What leads gets its chance to clean up while the lease, if it was not lost, is still held
            await asyncio.gather(leading, holding, return_exceptions=True)
            await self._release()

    async def _acquire(self) -> None:
        while True:
            if await self._try():
                return
            await asyncio.sleep(self._settings.retry_period_seconds * random.uniform(1.0, 1.2))

    async def _hold(self) -> None:
        """Renew until it is lost; returns then."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(self._settings.retry_period_seconds, self.remaining_seconds()))
            expiry = loop.time() + self.remaining_seconds()
            try:
                # The deadline holds for the whole round: a request that hangs must not keep a leader alive
                async with asyncio.timeout_at(expiry):
                    await self._try()
            except TimeoutError:
                pass
            if self.remaining_seconds() <= 0 or self.holder != self.identity:
                self._renewed_at = None
                logger.error("%s lost lease %s/%s to %s", self.identity, self._namespace, self._name, self.holder)
                if self._on_lost:
                    self._on_lost()
                return

    async def _try(self) -> bool:
        """One look at the lease, and one write where it is ours to take or to renew.

        Returns:
            whether it is confirmed to be ours.
        """
        try:
            await self._read()
            if not self._is_mine_to_write():
                return False
            sent_at = self._clock()
            # One attempt: a repeated write might be confirmed long after it was sent first
            body = build_lease(
                self._lease,
                namespace=self._namespace,
                name=self._name,
                identity=self.identity,
                lease_duration_seconds=self._settings.lease_duration_seconds,
                now=time.time(),
                owners=self._owners,
            )
            method, path = ("POST", LEASES.path(self._namespace)) if self._lease is None else ("PUT", self._path)
            written = await self._session.request(
                method, path, body=body, attempts=1, timeout_seconds=self._settings.request_timeout_seconds
            )
        except Conflict:
            return False  # somebody else was faster: the next look shows who
        except KubeError as error:
            logger.warning("lease %s/%s: %s", self._namespace, self._name, error)
            return False
        self._lease = written
        self._renewed_at = sent_at
        return True

    async def _read(self) -> None:
        try:
            self._lease = await self._session.request(
                "GET", self._path, attempts=1, timeout_seconds=self._settings.request_timeout_seconds
            )
        except NotFound:
            self._lease = None
        if self._lease is not None:
            self._last_spec = self._lease.get("spec") or {}
        spec = self._last_spec
        observed = (
            self._lease is None,
            *(spec.get(key) for key in ("holderIdentity", "renewTime", "leaseTransitions")),
        )
        if observed != self._observed:
            self._observed, self._observed_at = observed, self._clock()

    def _is_mine_to_write(self) -> bool:
        spec = self._last_spec
        if not spec.get("holderIdentity") or spec["holderIdentity"] == self.identity:
            return True
        return self._clock() >= self._observed_at + float(spec.get("leaseDurationSeconds") or 0)

    async def _release(self) -> None:
        if self._renewed_at is None or self._lease is None:
            return
        self._renewed_at = None
        spec = {**self._lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
        try:
            # With its resourceVersion: if it is not as we wrote it, it is not ours to give back
            await self._session.request(
                "PUT",
                self._path,
                body={**self._lease, "spec": spec},
                attempts=1,
                timeout_seconds=self._settings.retry_period_seconds,
            )
        except KubeError as error:
            logger.info("lease %s/%s was not given back, it will run out: %s", self._namespace, self._name, error)


def build_lease(
    lease: Object | None,
    *,
    namespace: str,
    name: str,
    identity: str,
    lease_duration_seconds: int,
    now: float,
    owners: Sequence[Object] = (),
) -> Object:
    """The lease as ``identity`` takes or renews it.

    Args:
        lease: as it was read, None if there is none; its resourceVersion is kept, so that a change since is a conflict.
        namespace: of a new one.
        name: of a new one.
        identity: the holder to be.
        lease_duration_seconds: how long others are to leave it alone.
        now: seconds since the epoch.
        owners: owner references of a new one.
    """
    before = (lease or {}).get("spec") or {}
    renewal = before.get("holderIdentity") == identity
    moment = format_micro_timestamp(now)
    transitions = before.get("leaseTransitions") or 0
    new = {"namespace": namespace, "name": name, **({"ownerReferences": list(owners)} if owners else {})}
    return {
        "apiVersion": LEASES.api_version,
        "kind": LEASES.kind,
        "metadata": (lease or {}).get("metadata") or new,
        "spec": {
            "holderIdentity": identity,
            "leaseDurationSeconds": lease_duration_seconds,
            "acquireTime": before.get("acquireTime") if renewal else moment,
            "renewTime": moment,
            "leaseTransitions": transitions if renewal or lease is None else transitions + 1,
        },
    }
