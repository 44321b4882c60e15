"""A level-triggered work queue for one kind of low-rate objects.

A reflector marks the keys that have changed; what to do is decided from the object as the API server has it when the
key's turn comes. Every few minutes all objects are reconciled again as the reflector has them, which costs no request.

A key that has failed waits the longer the more often it has failed in a row. A change of its object may be what helps,
so that it is tried soon after one. However often the object changes, it is tried once a second at most, and not
before the time that the API server has asked for (``Retry-After``). A status that was changed while it was written is a
failure, too, and the watch event of that write is no change.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from concerto.api.resource_version import not_newer
from concerto.controllers.runtime.metrics import Metrics
from concerto.kube import KubeError, NotFound, Object, Reflector, Session
from concerto.kube.backoff import Backoff
from concerto.kube.errors import seconds_asked
from concerto.kube.events import EventRecorder
from concerto.kube.fair_places import FairPlaces
from concerto.kube.namespace_lanes import NamespaceLanes
from concerto.kube.place_shares import Hold
from concerto.kube.reflector import key_of
from concerto.kube.status_writes import StatusChanged

logger = logging.getLogger(__name__)

Key = tuple[str, str]
Reconcile = Callable[[Key, Object | None], Awaitable[float | None]]

_PLACES = 8
"""Turns of known, new and slow namespaces each that go on at a time; see `FairPlaces`."""
_CHANGED_SECONDS = 1.0
"""After a failure until the key may have its next turn because its object has changed."""


class Reconciler:
    """Runs one reconcile function for the keys that were marked: one key of a namespace at a time, namespaces in turn.

    Turns of different namespaces go on at one time, and those that last keep no others from theirs (`FairPlaces`).

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
        recorder: EventRecorder | None = None,
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
            recorder: of events on objects whose statuses are changed while they are written.
        """
        self.kind = reflector.resource.kind
        self._session = session
        self._reflector = reflector
        self._reconcile = reconcile
        self._metrics = metrics
        self._selects = selects
        self._resync_seconds = resync_seconds
        self._recorder = recorder
        self._started = False
        self._marked: NamespaceLanes[Key] = NamespaceLanes()  # of a namespace: first marked, first served
        self._resync: NamespaceLanes[Key] = NamespaceLanes()  # to be reconciled again once nothing is marked
        self._failed: Backoff[Key] = Backoff(_now, max_seconds=max_backoff_seconds)
        self._stored: dict[Key, Object] = {}  # of keys that have failed, what became of a status that was changed
        self._later: dict[Key, asyncio.TimerHandle] = {}
        self._work = asyncio.Event()
        self._places = FairPlaces(_PLACES, beside=_PLACES)
        self._in_turn: set[asyncio.Task[None]] = set()
        self._waiting = 0  # of keys from `_resync` that wait for a place, those of namespaces that do not hang

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
                if self._is_own_write(new):
                    return
                metadata = obj["metadata"]
                self.mark(metadata.get("namespace"), metadata["name"])
                return

    def mark(self, namespace: str | None, name: str) -> None:
        """This object may have changed, or something that its reconcile depends on. Cheap; ignored before `start`."""
        if not self._started:
            return
        key = (namespace or "", name)
        if key in self._failed and key in self._later:
            self._schedule(key, self._changed_in(key))
        else:
            self._queue(key)

    def back_off(self, namespace: str | None, name: str, error: KubeError) -> None:
        """A write of this object has failed in another's turn: it has its own after a wait, as after a failure.

        Unlike `mark`, this is no reason to try sooner a key that backs off.
        """
        key = (namespace or "", name)
        if self._started and key not in self._failed and not self._marked.holds(key[0], key):
            self._schedule(key, self._note_failure(key, error))

    def backs_off(self, namespace: str | None, name: str) -> bool:
        """Whether the key has failed, and has not succeeded since: it waits for its next turn, or has it."""
        return (namespace or "", name) in self._failed

    async def run(self) -> None:
        """Reconcile until cancelled."""
        resync = asyncio.ensure_future(self._resync_regularly())
        try:
            while True:
                await self._work.wait()
                if (key := self._marked.take()) is not None:
                    self._begin(key, ask=True)
                elif self._waiting < _PLACES and (key := self._resync.take()) is not None:
                    self._begin(key, ask=False)
                else:
                    self._work.clear()
        finally:
            resync.cancel()
            for task in self._in_turn:
                task.cancel()
            for timer in self._later.values():
                timer.cancel()
            self._later.clear()

    async def _resync_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._resync_seconds)
            self._queue_all()

    def _queue_all(self) -> None:
        for obj in self.objects():
            key = key_of(obj)
            if not self._marked.holds(key[0], key) and not self.backs_off(*key):
                self._resync.put(key[0], key, key)
        self._work.set()

    def _begin(self, key: Key, *, ask: bool) -> None:
        for keys in (self._marked, self._resync):
            keys.pause(key[0])
        place = self._places.take_now(key[0])
        # Few of them wait: who comes later waits for all that do, also with a change
        counts = place is None and not ask and not self._places.hangs([key[0]])
        self._waiting += counts
        task = asyncio.create_task(self._turn_in_place(key, place, ask=ask, counts=counts))
        self._in_turn.add(task)
        task.add_done_callback(self._in_turn.discard)

    async def _turn_in_place(self, key: Key, place: Hold | None, *, ask: bool, counts: bool) -> None:
        if place is None:
            place = await self._places.take(key[0])
            self._waiting -= counts
            self._work.set()
        try:
            await self._turn(key, ask=ask)
        finally:
            self._places.give_back(place)
            for keys in (self._marked, self._resync):
                keys.resume(key[0])
            self._work.set()

    async def _turn(self, key: Key, *, ask: bool) -> None:
        namespace, name = key
        try:
            found = await self._get(key) if ask else self._reflector.store.get(key)
            again = await self._reconcile(key, found)
        except Exception as error:
            # One broken object must not keep the others from their turn
            wait = self._note_failure(key, error)
            if self._marked.holds(namespace, key):  # it has changed meanwhile
                self._marked.discard(namespace, key)
                if not self._is_own_write(self._reflector.store.get(key)):
                    wait = min(wait, self._changed_in(key))
            if isinstance(error, KubeError):
                logger.warning("%s %s/%s: %s; again in %.1f s", self.kind, namespace, name, error, wait)
            else:
                logger.exception("%s %s/%s: again in %.1f s", self.kind, namespace, name, wait)
            self._metrics.reconciles.labels(self.kind, "error").inc()
            self._schedule(key, wait)
            return
        self._failed.forget(key)
        self._stored.pop(key, None)
        self._metrics.reconciles.labels(self.kind, "ok").inc()
        if found is not None and again is not None:
            self._schedule(key, again)

    def _note_failure(self, key: Key, error: Exception) -> float:
        """Returns for how many seconds the key waits."""
        if isinstance(error, StatusChanged):
            self._stored[key] = error.obj
            self._metrics.write_failures.labels(self.kind, "StatusChanged").inc()
            if self._recorder is not None:
                self._recorder.record(
                    error.obj, type="Warning", reason="StatusChanged", action="Reconciling", note=str(error)
                )
        return self._failed.failed(key, at_least_seconds=seconds_asked(error))

    def _is_own_write(self, obj: Object | None) -> bool:
        """Whether the object is no newer than a write of ours that was changed, and is no reason to write again."""
        if obj is None:
            return False
        metadata = obj["metadata"]
        stored = self._stored.get((metadata.get("namespace") or "", metadata["name"]))
        if stored is None or stored["metadata"].get("uid") != metadata.get("uid"):
            return False
        return not_newer(*(each["metadata"].get("resourceVersion", "") for each in (obj, stored)))

    def _changed_in(self, key: Key) -> float:
        """For how many seconds a key that has failed has no turn, although it has changed."""
        may_at = max(self._failed.failed_at(key) + _CHANGED_SECONDS, self._failed.waits_at_least_until(key))
        return max(0.0, may_at - _now())

    async def _get(self, key: Key) -> Object | None:
        namespace, name = key
        try:
            return await self._session.get(self._reflector.resource.path(namespace or None, name))
        except NotFound:
            return None

    def _schedule(self, key: Key, seconds: float) -> None:
        """Queue the key after that time, or sooner if that is to be."""
        if self._marked.holds(key[0], key):
            return
        loop = asyncio.get_running_loop()
        when = loop.time() + seconds
        if timer := self._later.get(key):
            if timer.when() <= when:
                return
            timer.cancel()
        self._later[key] = loop.call_at(when, self._queue, key)

    def _queue(self, key: Key) -> None:
        if timer := self._later.pop(key, None):
            timer.cancel()
        self._resync.discard(key[0], key)
        self._marked.put(key[0], key, key)
        self._work.set()


def _now() -> float:
    return asyncio.get_running_loop().time()
