"""A level-triggered work queue for one kind of low-rate objects.

A reflector marks the keys that have changed; what to do is decided from the object as the API server has it when the
key's turn comes. Every few minutes all objects are reconciled again as the reflector has them, which costs no request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from concerto.controllers.runtime.metrics import Metrics
from concerto.controllers.runtime.slow_turns import SlowTurns
from concerto.kube import KubeError, NotFound, Object, Reflector, Session
from concerto.kube.namespace_lanes import NamespaceLanes

logger = logging.getLogger(__name__)

Key = tuple[str, str]
Reconcile = Callable[[Key, Object | None], Awaitable[float | None]]


class Reconciler:
    """Runs one reconcile function for the keys that were marked, one key at a time, namespaces in turn.

    A turn that takes long, as the API server does not answer, goes on beside those of other namespaces (`SlowTurns`).

    Attributes:
        kind: for logs and metrics.
    """

    def __init__(
        self,
        session: Session,
        reflector: Reflector,
        reconcile: Reconcile,
        metrics: Metrics,
        *,
        selects: Callable[[Object], bool] = lambda obj: True,
        resync_seconds: float = 300.0,
        max_backoff_seconds: float = 60.0,
    ) -> None:
        """Nothing happens before `start`; its `on_change` is to be one of the reflector's handlers.

        Args:
            session: the way to the API server.
            reflector: follows the kind.
            reconcile: given the key and the object (None: it is gone); returns seconds after which to be called again,
                or None. What it raises is logged, and the key is tried again with a growing wait.
            metrics: where outcomes are counted.
            selects: which objects of the kind are reconciled.
            resync_seconds: how often every object is reconciled again.
            max_backoff_seconds: the longest wait after failures.
        """
        self.kind = reflector.resource.kind
        self._session = session
        self._reflector = reflector
        self._reconcile = reconcile
        self._metrics = metrics
        self._selects = selects
        self._resync_seconds = resync_seconds
        self._max_backoff = max_backoff_seconds
        self._started = False
        self._marked: NamespaceLanes[Key] = NamespaceLanes()  # of a namespace: first marked, first served
        self._resync: NamespaceLanes[Key] = NamespaceLanes()  # to be reconciled again once nothing is marked
        self._failures: dict[Key, int] = {}
        self._later: dict[Key, asyncio.TimerHandle] = {}
        self._work = asyncio.Event()
        self._turns = SlowTurns(self._work.set)

    def objects(self) -> list[Object]:
        """The objects that are reconciled, as the reflector has them."""
        return [obj for obj in self._reflector.store.values() if self._selects(obj)]

    def start(self) -> None:
        """Accept marks from now on, and queue every object: a standby, which reconciles nothing, collects no marks."""
        self._started = True
        self._queue_all()

    def on_change(self, old: Object | None, new: Object | None) -> None:
        """An object appeared, changed or went."""
        for obj in (new, old):
            if obj is not None and self._selects(obj):
                metadata = obj["metadata"]
                self.mark(metadata.get("namespace"), metadata["name"])
                return

    def mark(self, namespace: str | None, name: str) -> None:
        """This object may have changed. Cheap; ignored before `start`."""
        if not self._started:
            return
        key = (namespace or "", name)
        if timer := self._later.pop(key, None):
            timer.cancel()
        self._resync.discard(key[0], key)
        self._marked.put(key[0], key, key)
        self._work.set()

    async def run(self) -> None:
        """Reconcile until cancelled."""
        resync = asyncio.ensure_future(self._resync_regularly())
        try:
            while True:
                await self._work.wait()
                marked = self._marked.take(self._turns.may_have)
                key = marked or self._resync.take(self._turns.may_have)
                if key is not None:
                    await self._turns.run(key[0], partial(self._turn, key, ask=marked is not None))
                else:
                    self._work.clear()
        finally:
            resync.cancel()
            self._turns.cancel()
            for timer in self._later.values():
                timer.cancel()
            self._later.clear()

    async def _resync_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._resync_seconds)
            self._queue_all()

    def _queue_all(self) -> None:
        for obj in self.objects():
            metadata = obj["metadata"]
            key = (metadata.get("namespace", ""), metadata["name"])
            if not self._marked.holds(key[0], key):
                self._resync.put(key[0], key, key)
        self._work.set()

    async def _turn(self, key: Key, *, ask: bool) -> None:
        namespace, name = key
        try:
            found = await self._get(key) if ask else self._reflector.store.get(key)
            again = await self._reconcile(key, found)
        except Exception as error:
            # One broken object must not keep the others from their turn
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            wait = min(2.0 ** min(failures, 10) * 0.25, self._max_backoff)
            if isinstance(error, KubeError):
                logger.warning("%s %s/%s: %s; again in %.1f s", self.kind, namespace, name, error, wait)
            else:
                logger.exception("%s %s/%s: again in %.1f s", self.kind, namespace, name, wait)
            self._metrics.reconciles.labels(self.kind, "error").inc()
            self._schedule(key, wait)
            return
        self._failures.pop(key, None)
        self._metrics.reconciles.labels(self.kind, "ok").inc()
        if found is not None and again is not None:
            self._schedule(key, again)

    async def _get(self, key: Key) -> Object | None:
        namespace, name = key
        try:
            return await self._session.get(self._reflector.resource.path(namespace or None, name))
        except NotFound:
            return None

    def _schedule(self, key: Key, seconds: float) -> None:
        if self._marked.holds(key[0], key):
            return
        if timer := self._later.pop(key, None):
            timer.cancel()
        self._later[key] = asyncio.get_running_loop().call_later(seconds, self.mark, *key)
