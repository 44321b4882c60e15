"""A Lease as a lock: take it, renew it, give it back; and for how long its holder may still act.

Why not the elections of the official client (``kubernetes.leaderelection`` and ``kubernetes.aio.leaderelection``, read
at 37.0.2)? The first blocks its thread. The second is of the same build, and neither can be fenced with: a renewal in
flight has no timeout, so that one hung request outlives the deadline, the lease, and the next leader's start; what is
measured is the wall clock; the deadline runs from the start of a round rather than from the last renewal; an
``aiohttp.ClientError`` (API server away) ends ``run()`` without stopping what leads; the lease is never released; and
local time is written as UTC.

Safety here rests on one inequality. A leader's right ends ``renew_deadline`` after the *sending* of its last renewal
that was confirmed. Nobody else takes over before ``lease_duration`` after they *saw* that renewal, which is later. So
for ``lease_duration - renew_deadline`` after a leader has stopped there is no other: whatever it had sent (bindings)
must have ended, by its timeout, within that time. Only durations on each one's own clock enter, and that clock
goes on while the machine is suspended. A Lease that is deleted ends nobody's right: its holder makes it again with its
next renewal, and candidates who saw a holder wait ``lease_duration`` from when they first missed it. A holder never
takes a Lease again that it finds without a holder: another one may have led and given it back while it stood still.
docs/architecture.md, "Leadership and fencing", lists what can still arrive late.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from concerto.api.timestamps import format_micro_timestamp
from concerto.kube.errors import Conflict, KubeError, NotFound
from concerto.kube.request_bodies import Object
from concerto.kube.resources import LEASES
from concerto.kube.session import Session

logger = logging.getLogger(__name__)


def time_since_boot() -> float:
    """Seconds on a clock that nobody sets, and that runs while the machine is suspended (monotonic time does not)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


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

    @property
    def last_renewal_seconds(self) -> float:
        """For one more renewal after the deadline, before a leader that nobody has succeeded gives up."""
        return (self.lease_duration_seconds - self.renew_deadline_seconds) / 2

    def __post_init__(self) -> None:
        """Check that the durations make an election.

        Raises:
            ValueError: they are not in the order retry < deadline < lease.
        """
        if not 0 < self.retry_period_seconds < self.renew_deadline_seconds < self.lease_duration_seconds:
            raise ValueError(f"retry period < renew deadline < lease duration must hold: {self}")


@dataclass(frozen=True)
class Candidate:
    """One candidate for one Lease.

    Attributes:
        namespace: of the Lease.
        name: of the Lease.
        identity: of this candidate; must be new at each start of a process, as a lease that bears it is taken for one's
            own.
        owners: owner references of a Lease that the candidate creates, in its namespace; it goes when they have gone.
    """

    namespace: str
    name: str
    identity: str
    owners: Sequence[Object] = ()


class LeaseLock:
    """One candidate's hold on one Lease. Used by one event loop; `remaining_seconds` and `holder` by any thread."""

    def __init__(
        self,
        session: Session,
        candidate: Candidate,
        settings: LeaseSettings,
        clock: Callable[[], float] = time_since_boot,
    ) -> None:
        """Nothing is asked for yet.

        Args:
            session: the way to the API server.
            candidate: whose hold it is, and on which Lease.
            settings: durations.
            clock: seconds; must not be set, and run while the machine is suspended.
        """
        self.identity = candidate.identity
        self._session = session
        self._candidate = candidate
        self._settings = settings
        self._clock = clock
        self._path = LEASES.path(candidate.namespace, candidate.name)
        self._number = 0
        self._renewed_at: float | None = None  # sending time of the last confirmed renewal, while leading
        self._lease: Object | None = None  # as last read or written
        self._observed: tuple[Any, ...] | None = None  # what a holder changes with each renewal
        self._observed_at = 0.0
        self._last_spec: Object = {}  # of the Lease as it was last seen, also after it has been deleted

    def __str__(self) -> str:
        """Its name, for logs."""
        return f"lease {self._candidate.namespace}/{self._candidate.name}"

    @property
    def holder(self) -> str | None:
        """Who holds the lease, as far as is known here."""
        return ((self._lease or {}).get("spec") or {}).get("holderIdentity") or None

    @property
    def number(self) -> int:
        """This leader's number, larger than those before it: the Lease's ``leaseTransitions`` when it was last ours."""
        return self._number

    def remaining_seconds(self) -> float:
        """For how long this candidate may still act as the leader; 0 when it may not."""
        renewed_at = self._renewed_at
        if renewed_at is None:
            return 0.0
        return max(0.0, renewed_at + self._settings.renew_deadline_seconds - self._clock())

    async def acquire(self) -> None:
        """Return when the lease is ours."""
        while True:
            if await self._try():
                return
            await asyncio.sleep(self._settings.retry_period_seconds * random.uniform(1.0, 1.2))

    async def hold(self) -> None:
        """Renew until the lease is lost; return then. `remaining_seconds` is 0 from then on."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(self._settings.retry_period_seconds, self.remaining_seconds()))
            # Past the deadline nobody here may write. If nobody has taken over, one more renewal makes that right again
            is_last = self.remaining_seconds() <= 0
            patience = self._settings.last_renewal_seconds if is_last else self.remaining_seconds()
            try:
                # Holds for the whole round: a request that hangs must not keep a leader alive
                async with asyncio.timeout_at(loop.time() + patience):
                    await self._try()
            except TimeoutError:
                pass
            is_taken = self._lease is not None and self.holder != self.identity
            if is_taken or (is_last and self.remaining_seconds() <= 0):
                self._renewed_at = None
                problem = "it could not renew it in time"
                if is_taken:
                    problem = f"it lost it to {self.holder}" if self.holder else "somebody else has given it back"
                logger.error("%s no longer holds %s: %s", self.identity, self, problem)
                return

    async def release(self) -> None:
        """Give the lease back if it is ours, so that a successor need not wait."""
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
            logger.info("%s was not released and will expire: %s", self, error)

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
                self._candidate,
                lease_duration_seconds=self._settings.lease_duration_seconds,
                now=time.time(),
                last_spec=self._last_spec,
            )
            collection = LEASES.path(self._candidate.namespace)
            method, path = ("POST", collection) if self._lease is None else ("PUT", self._path)
            written = await self._session.request(
                method, path, body=body, attempts=1, timeout_seconds=self._settings.request_timeout_seconds
            )
        except Conflict:
            return False  # somebody else was faster: the next look shows who
        except KubeError as error:
            logger.warning("%s: %s", self, error)
            return False
        self._lease, self._last_spec = written, written["spec"]
        self._number = int(written["spec"].get("leaseTransitions") or 0)  # before the right to write with it
        self._renewed_at = sent_at
        return True

    async def _read(self) -> None:
        try:
            self._lease = await self._session.request(
                "GET", self._path, attempts=1, timeout_seconds=self._settings.request_timeout_seconds
            )
            self._last_spec = self._lease.get("spec") or {}
        except NotFound:
            self._lease = None
        observed = (
            self._lease is None,
            *(self._last_spec.get(key) for key in ("holderIdentity", "renewTime", "leaseTransitions")),
        )
        if observed != self._observed:
            self._observed, self._observed_at = observed, self._clock()

    def _is_mine_to_write(self) -> bool:
        spec = self._last_spec
        if self._renewed_at is not None:
            # A holder renews and never takes: where the Lease is free, or gone after the deadline, another may have led
            is_ours = spec.get("holderIdentity") == self.identity
            return is_ours and (self._lease is not None or self.remaining_seconds() > 0)
        if not spec.get("holderIdentity") or spec["holderIdentity"] == self.identity:
            return True
        return self._clock() >= self._observed_at + float(spec.get("leaseDurationSeconds") or 0)


def build_lease(
    lease: Object | None,
    candidate: Candidate,
    *,
    lease_duration_seconds: int,
    now: float,
    last_spec: Object | None = None,
) -> Object:
    """The lease as the candidate takes or renews it.

    Args:
        lease: as it was read, or None; its resourceVersion is kept, so that a change since is a conflict.
        candidate: the holder to be.
        lease_duration_seconds: how long others are to leave it alone.
        now: seconds since the epoch.
        last_spec: spec of a lease that was deleted, whose count of transitions a new one continues.
    """
    before = (lease or {}).get("spec") or last_spec or {}
    renewal = before.get("holderIdentity") == candidate.identity
    moment = format_micro_timestamp(now)
    transitions = before.get("leaseTransitions") or 0
    new: Object = {"namespace": candidate.namespace, "name": candidate.name}
    if candidate.owners:
        new["ownerReferences"] = list(candidate.owners)
    return {
        "apiVersion": LEASES.api_version,
        "kind": LEASES.kind,
        "metadata": (lease or {}).get("metadata") or new,
        "spec": {
            "holderIdentity": candidate.identity,
            "leaseDurationSeconds": lease_duration_seconds,
            "acquireTime": before.get("acquireTime") if renewal else moment,
            "renewTime": moment,
            "leaseTransitions": transitions + 1 if before and not renewal else transitions,
        },
    }
