"""A level-triggered work queue for one kind of low-rate objects.

`kopf` tells that a key has changed and nothing more; what to do is decided from the object as it is when its turn
comes. A full list at the start, and again every few minutes, makes up for any change that was missed: what it shows is
looked at as it was listed, unless something has been heard of it since, so that nothing is asked for object by object
while nothing happens.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from concerto.controllers.runtime.metrics import Metrics
from concerto.kube import KubeError, NotFound, Object, Resource, Session

logger = logging.getLogger(__name__)

Key = tuple[str, str]
Reconcile = Callable[[Key, Object | None], Awaitable[float | None]]


class Reconciler:
    """Runs one reconcile function for the keys that were marked, one key at a time.

    Attributes:
        kind: for logs and metrics.
    """

    def __init__(
        self,
        session: Session,
        resource: Resource,
        reconcile: Reconcile,
        metrics: Metrics,
        *,
        label_selector: str | None = None,
        resync_seconds: float = 300.0,
        longest_backoff_seconds: float = 60.0,
    ) -> None:
        """Nothing happens before `run`.

        Args:
            session: the way to the API server.
            resource: the kind.
            reconcile: given the key and the object (None: it is gone); returns seconds after which to be asked again,
                or None. What it raises is logged, and the key is tried again with a growing wait.
            metrics: where outcomes are counted.
            label_selector: which objects of the kind are meant.
            resync_seconds: how often everything is listed and looked at again.
            longest_backoff_seconds: longest wait after failures.
        """
        self.kind = resource.kind
        self._session = session
        self._resource = resource
        self._reconcile = reconcile
        self._metrics = metrics
        self._label_selector = label_selector
        self._resync_seconds = resync_seconds
        self._longest = longest_backoff_seconds
        self._dirty: dict[Key, None] = {}  # insertion-ordered: first marked, first served
        self._listed: dict[Key, Object | None] = {}  # as the last list has it, if nothing has been heard since it began
        self._heard: set[Key] = set()  # since the last list was begun
        self._known: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._later: dict[Key, asyncio.TimerHandle] = {}
        self._wake = asyncio.Event()

    def mark(self, namespace: str | None, name: str) -> None:
        """This object may have changed. Cheap; may be called from anywhere on the loop, leading or not."""
        key = (namespace or "", name)
        self._listed.pop(key, None)
        self._heard.add(key)
        self._queue(key)

    def _queue(self, key: Key) -> None:
        if timer := self._later.pop(key, None):
            timer.cancel()
        self._dirty[key] = None
        self._wake.set()

    async def run(self) -> None:
        """Reconcile until cancelled."""
        resync = asyncio.ensure_future(self._resync())
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._dirty:
                    key = next(iter(self._dirty))
                    del self._dirty[key]
                    await self._one(key)
        finally:
            resync.cancel()
            for timer in self._later.values():
                timer.cancel()
            self._later.clear()

    async def _resync(self) -> None:
        while True:
            self._heard.clear()
            try:
                listed = await self._session.list(self._resource.path(), label_selector=self._label_selector)
            except KubeError as error:
                logger.warning("%s: cannot list: %s", self.kind, error)
                await asyncio.sleep(5)
                continue
            whose = {"apiVersion": self._resource.api_version, "kind": self._resource.kind}
            found = {(o["metadata"].get("namespace", ""), o["metadata"]["name"]): whose | o for o in listed["items"]}
            # What was heard of meanwhile has its turn anyway, and may be news that the list has not
            for key in sorted((found.keys() | self._known) - self._heard):
                self._listed[key] = found.get(key)
                self._queue(key)
            await asyncio.sleep(self._resync_seconds)

    async def _one(self, key: Key) -> None:
        namespace, name = key
        try:
            found = self._listed.pop(key) if key in self._listed else await self._get(key)
            again = await self._reconcile(key, found)
        except Exception as error:
            # One broken object must not keep the others from their turn
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            wait = min(2.0 ** min(failures, 10) * 0.25, self._longest)
            if isinstance(error, KubeError):
                logger.warning("%s %s/%s: %s; again in %.1f s", self.kind, namespace, name, error, wait)
            else:
                logger.exception("%s %s/%s: again in %.1f s", self.kind, namespace, name, wait)
            self._metrics.reconciles.labels(self.kind, "error").inc()
            self._known.add(key)
            self._schedule(key, wait)
            return
        self._failures.pop(key, None)
        self._metrics.reconciles.labels(self.kind, "ok").inc()
        if found is None:
            self._known.discard(key)
        else:
            self._known.add(key)
            if again is not None:
                self._schedule(key, again)

    async def _get(self, key: Key) -> Object | None:
        namespace, name = key
        try:
            return await self._session.get(self._resource.path(namespace or None, name))
        except NotFound:
            return None

    def _schedule(self, key: Key, seconds: float) -> None:
        if key in self._dirty:
            return
        if timer := self._later.pop(key, None):
            timer.cancel()
        self._later[key] = asyncio.get_running_loop().call_later(seconds, self.mark, *key)
