"""A local copy of one collection, kept equal to the API server's by a list and then watches, for ever.

What a consumer can rely on:

- ``on_change(old, new)`` is called synchronously, in the order of the changes, once for each difference between one
  state of the store and the next: ``(None, new)`` an object appeared, ``(old, new)`` it changed, ``(old, None)`` it is
  gone. An object that was deleted and made again under the same name is gone first and then appears, even if both
  happened while no watch was open.
- The store never holds an object that a complete list no longer showed.
- A resourceVersion is handed back and compared for equality. Their order (KEP-5504) is used for one thing only: to see
  that the API server's storage has gone back to an earlier state (etcd restored from a snapshot). What was delivered
  then no longer holds, of ended pods for instance, and ``run`` ends with `StorageWentBack`: start afresh.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import orjson

from concerto.api.resource_version import not_newer
from concerto.kube.errors import ApiError, Gone, KubeError, ServerError, TooManyRequests, Unreachable
from concerto.kube.initial_events import initial_events, read_event
from concerto.kube.reflector_settings import ReflectorSettings
from concerto.kube.request_bodies import Object
from concerto.kube.resources import Resource
from concerto.kube.response_documents import Decode
from concerto.kube.session import Session, selectors

logger = logging.getLogger(__name__)

Key = tuple[str, str]
_T = TypeVar("_T")

IN_A_TURN = 50
"""Objects that consumers take in before others get their turns: a NodeCapacity takes up to a millisecond."""
_TURN_SECONDS = 0.02
"""Time for which consumers take in objects, or events that have come together, before others get their turns."""
_OF_A_PAGE = 5
"""The same of a page of a list, whose objects may be decoded as they are taken: the largest take up to 30 ms."""


@dataclass(frozen=True)
class Decoding:
    """How what the server sends is decoded.

    Attributes:
        page: of a list; its items may be decoded as they are read, once.
        event: of a watch.
        trims: whether objects are decoded as they are kept, and not as the server sent them.
    """

    page: Decode = orjson.loads
    event: Decode = orjson.loads
    trims: bool = False


class StorageWentBack(Exception):
    """The API server shows an earlier state than was seen before: whatever followed from what was seen is void."""


class _Relist(Exception):
    """What the watch shows can no longer be trusted to join up with the store: list again.

    Attributes:
        at_once: nothing is wrong with the server, so there is nothing to wait for.
    """

    def __init__(self, why: str, *, at_once: bool) -> None:
        super().__init__(why)
        self.at_once = at_once


class Reflector:
    """List and watch of one collection.

    Attributes:
        store: what is known now, by (namespace, name); the namespace of cluster scoped objects is "". Read only for
            everybody else; it changes just before each ``on_change``.
        synced: set once the first list has been delivered, and for ever after.
        lists: complete lists so far.
        events: watch events so far.
    """

    def __init__(
        self,
        session: Session,
        resource: Resource,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        trim: Callable[[Object], Object] | None = None,
        decoding: Decoding = Decoding(),
        on_change: Callable[[Object | None, Object | None], None] | None = None,
        settings: ReflectorSettings | None = None,
    ) -> None:
        """Nothing is asked for before ``run``.

        Args:
            session: the way to the API server.
            resource: the kind to follow.
            namespace: only there; None is everywhere.
            label_selector: only these.
            field_selector: only these.
            trim: makes an object smaller before it is kept; may change what it is given. ``metadata.managedFields`` is
                gone already, and name, namespace, uid and resourceVersion have to stay.
            decoding: of what the server sends.
            on_change: called for each difference. An exception in it ends ``run``: a consumer that missed a change is
                wrong from then on, and starting afresh is the only repair.
            settings: how to watch.
        """
        self.resource = resource
        self.store: dict[Key, Object] = {}
        self.synced = asyncio.Event()
        self.lists = 0
        self.events = 0
        self._session = session
        self._path = resource.path(namespace)
        self._label_selector = label_selector
        self._field_selector = field_selector
        self._trim = trim
        self._decoding = decoding
        self._on_change = on_change
        self._settings = settings or ReflectorSettings()
        self._resource_version: str | None = None  # None: only a list shows it
        self._seen_version = ""  # the store has all that there was then
        self._streams = self._settings.streams  # the next list comes as the first events of a watch
        self._broke_off = False  # the server may have been stopped, and its storage restored
        self._failures = 0
        self._refresh_wanted = asyncio.Event()
        self._lists_begun = 0
        self._last_listed = 0  # which of the lists begun was the last to be completed
        self._listed = asyncio.Condition()

    async def run(self) -> None:
        """Follow the collection until cancelled. Failures of the API server are waited out, never raised.

        Raises:
            StorageWentBack: the API server's storage has been restored from a snapshot.
        """
        while True:
            try:
                if self._resource_version is None:
                    await self._list()
                elif self._broke_off:
                    await self._look_back()
                self._broke_off = False
                await self._watch_until_refresh()
            except _Relist as reason:
                logger.info("%s: listing again: %s", self._path, reason)
                self._resource_version = None
                if reason.at_once and not self._failures:
                    self._failures = 1  # the next time in a row is not at once: lists are what costs a server most
                else:
                    await self._back_off()
            except KubeError as error:
                logger.warning("%s: %s", self._path, error)
                self._broke_off |= not isinstance(error, TooManyRequests)
                await self._back_off(error.retry_after if isinstance(error, ApiError) else None)

    async def refresh(self) -> None:
        """Return once the store reflects a list that was begun after this call (``run`` has to be running)."""
        async with self._listed:
            # A list that is in progress now may have been read before the call: it does not count
            begun = self._lists_begun
            self._refresh_wanted.set()
            await self._listed.wait_for(lambda: self._last_listed > begun)

    async def _look_back(self) -> None:
        """Look whether the storage is still where it was: a watch from a version to come is silent, and no error."""
        params = {"limit": "1", **selectors(self._label_selector, self._field_selector)}
        session = self._session.decoding(self._decoding.page)
        page = await session.request("GET", self._path, params=params, attempts=1)
        self._compare(page["metadata"]["resourceVersion"])

    def _compare(self, version: str) -> None:
        if version != self._seen_version and not_newer(version, self._seen_version):
            raise StorageWentBack(f"{self._path} was at version {self._seen_version}, and is at {version} now")

    async def _watch_until_refresh(self) -> None:
        watch = asyncio.ensure_future(self._watch())
        refresh = asyncio.ensure_future(self._refresh_wanted.wait())
        try:
            await asyncio.wait({watch, refresh}, return_when=asyncio.FIRST_COMPLETED)
            if watch.done():
                watch.result()
            else:
                self._resource_version = None
        finally:
            for task in (watch, refresh):
                task.cancel()
            # The watch may be in the middle of a batch: it must be over before anything else touches the store
            await asyncio.gather(watch, refresh, return_exceptions=True)

    async def _list(self) -> None:
        self._refresh_wanted.clear()
        self._lists_begun += 1
        found, version = await (self._stream_all() if self._streams else self._page_all())
        # Deletes first: consumers that count never see more than there is
        async for key in in_turns([key for key in self.store if key not in found]):
            self._put(key, None)
        async for key, item in in_turns(found.items()):
            if self.store.get(key) is not item:
                self._put(key, item)
        self._resource_version = self._seen_version = version
        self.lists += 1
        self._last_listed = self._lists_begun
        self.synced.set()
        async with self._listed:
            self._listed.notify_all()

    async def _page_all(self) -> tuple[dict[Key, Object], str]:
        """All objects, and the collection's version: page by page."""
        self._streams = self._settings.streams
        found: dict[Key, Object] = {}
        try:
            async for page in self._session.pages(
                self._path,
                label_selector=self._label_selector,
                field_selector=self._field_selector,
                first_attempts=1,
                page_size=self._settings.page_size,
                decode=self._decoding.page,
            ):
                version: str = (page.get("metadata") or {})["resourceVersion"]
                self._compare(version)
                async for item in in_turns(page.get("items") or [], _OF_A_PAGE):
                    if not self._decoding.trims:
                        # Items of a list do not say what they are; consumers rely on both
                        item.setdefault("apiVersion", self.resource.api_version)
                        item.setdefault("kind", self.resource.kind)
                    # What has not changed is not kept twice while a long list comes in
                    found[key_of(item)] = self._unchanged(item) or self._trimmed(item)
        except Gone as error:
            self._streams = True  # the next time would take as long
            raise _Relist(f"the list was too old before it was complete: {error.message}", at_once=False) from error
        return found, version

    async def _stream_all(self) -> tuple[dict[Key, Object], str]:
        """The same as the first events of a watch. If that fails, the next list comes in pages again."""
        self._streams = False
        found: dict[Key, Object] = {}
        try:
            async for kind, item in initial_events(
                self._session,
                self._path,
                selectors(self._label_selector, self._field_selector),
                decode=self._decoding.event,
                inactivity_seconds=self._settings.inactivity_seconds,
            ):
                if kind == "BOOKMARK":
                    version: str = item["metadata"]["resourceVersion"]
                elif kind == "DELETED":
                    found.pop(key_of(item), None)
                else:
                    # What has not changed is not kept twice; what is older than the store may still change
                    found[key_of(item)] = self._same(item) or self._trimmed(item)
        except TooManyRequests:
            raise
        except (ApiError, ValueError) as error:
            raise _Relist(str(error), at_once=False) from error
        self._streams = True
        self._compare(version)
        async for item in in_turns(found.values() if self._seen_version else ()):
            self._unchanged(item)
        return found, version

    def _same(self, item: Object) -> Object | None:
        """The object as it is in the store, if this is the same version of it."""
        old = self.store.get(key_of(item))
        return old if old is not None and (old is item or _version(old) == _version(item)) else None

    def _unchanged(self, item: Object) -> Object | None:
        """`_same`, of a complete list."""
        same = self._same(item)
        if same is None and not_newer(item["metadata"]["resourceVersion"], self._seen_version):
            # Too old not to be in the store: restored, while revisions go on from where they were
            raise StorageWentBack(f"{self._path} shows {'/'.join(key_of(item))} as it was before")
        return same

    async def _watch(self) -> None:
        """One watch, from where the last one ended. Returns when the server ends it properly."""
        assert self._resource_version is not None
        seconds = self._settings.watch_seconds * random.uniform(1.0, 2.0)
        params = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._resource_version,
            "timeoutSeconds": str(int(seconds)),
            **selectors(self._label_selector, self._field_selector),
        }
        loop = asyncio.get_running_loop()
        before, began = self.events, loop.time()

        def was_quiet() -> bool:
            # A collection in which nothing has ever happened gets no bookmarks either: silence is no failure
            return loop.time() - began >= self._settings.inactivity_seconds

        try:
            async with self._session.stream(
                self._path, params=params, inactivity_seconds=self._settings.inactivity_seconds
            ) as batches:
                async for lines in batches:
                    lines.reverse()
                    turn_ends = loop.time() + _TURN_SECONDS
                    while lines:
                        self._take(lines.pop())
                        if loop.time() >= turn_ends:
                            await asyncio.sleep(0)
                            turn_ends = loop.time() + _TURN_SECONDS
                    self._failures = 0
        except Gone as error:
            raise _Relist(error.message, at_once=True) from error
        except TooManyRequests:
            raise
        except ServerError as error:
            if error.status == 503:  # not ready, or going down: the resourceVersion stays good
                raise
            raise _Relist(str(error), at_once=False) from error
        except ApiError as error:
            raise _Relist(str(error), at_once=False) from error
        except Unreachable as error:
            if not was_quiet():
                raise
            logger.debug("%s: watching anew: %s", self._path, error)
            return
        if self.events == before and not was_quiet():
            # Ended at once, and without a word: a proxy or a server on its way down. Do not spin.
            raise Unreachable("the watch ended without an event")

    def _take(self, line: bytes) -> None:
        try:
            kind, item = read_event(line, self._decoding.event)
        except (ApiError, ValueError) as error:
            raise _Relist(str(error), at_once=isinstance(error, Gone)) from error
        self.events += 1
        if kind in ("ADDED", "MODIFIED"):
            self._put(key_of(item), self._trimmed(item))
        elif kind == "DELETED":
            self._put(key_of(item), None)
        self._resource_version = self._seen_version = item["metadata"]["resourceVersion"]

    def _trimmed(self, item: Object) -> Object:
        item["metadata"].pop("managedFields", None)
        return self._trim(item) if self._trim else item

    def _put(self, key: Key, new: Object | None) -> None:
        old = self.store.get(key)
        if old is not None and new is not None and old["metadata"]["uid"] != new["metadata"]["uid"]:
            # Another object of the same name: a consumer that follows UIDs must see the end of the first
            self._put(key, None)
            old = None
        if new is not None:
            self.store[key] = new
        elif old is not None:
            del self.store[key]
        else:
            return  # the end of something that was never seen
        if self._on_change:
            self._on_change(old, new)

    async def _back_off(self, retry_after_seconds: float | None = None) -> None:
        wait = self._settings.backoff_seconds(self._failures, retry_after_seconds, random.uniform)
        self._failures += 1
        try:
            # Whoever wants a fresh view wants it as soon as there is a server again
            async with asyncio.timeout(wait):
                await self._refresh_wanted.wait()
        except TimeoutError:
            pass


async def in_turns(items: Iterable[_T], number: int = IN_A_TURN) -> AsyncIterator[_T]:
    """One after the other; after each so many of them, or as much time, other tasks get their turns."""
    now = asyncio.get_running_loop().time
    turn_ends, left = now() + _TURN_SECONDS, number
    for item in items:
        yield item
        left -= 1
        if left <= 0 or now() >= turn_ends:
            await asyncio.sleep(0)
            turn_ends, left = now() + _TURN_SECONDS, number


def key_of(item: Object) -> Key:
    """Namespace, empty without one, and name of an object."""
    metadata = item["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _version(item: Object) -> tuple[str, str]:
    metadata = item["metadata"]
    return metadata["uid"], metadata["resourceVersion"]
