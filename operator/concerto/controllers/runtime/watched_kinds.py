"""The kinds that a replica follows, each once: when it begins to, and that a new leader reads all of them afresh."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial

from concerto.api.object_bounds import bound_metadata, trim_metadata
from concerto.api.pod_decoding import PodDecoder
from concerto.api.pod_trimming import trim_pod
from concerto.api.shared_parts import SharedParts
from concerto.controllers.runtime.page_decoding import decode_page, readable
from concerto.controllers.runtime.supervision import Supervisor
from concerto.kube import Object, Reflector, ReflectorSettings, Resource, Session
from concerto.kube.reflector import Decoding, in_turns, key_of
from concerto.kube.resources import PODS, SUBSPACE_SNAPSHOTS

logger = logging.getLogger(__name__)

OnChange = Callable[[Object | None, Object | None], None]
Trim = Callable[[Object], Object]

NOT_ENDED = "status.phase!=Succeeded,status.phase!=Failed"
"""Field selector of the pods that are followed: one that has ended uses nothing, and takes no load."""
_PAGE_SIZES = {SUBSPACE_SNAPSHOTS.group_resource: 100}
"""Objects of a kind that are listed at a time, where they are large: a page is decoded without a pause. A
SubspaceSnapshot may have 100 KiB; 500 of them would hold the event loop for 300 ms."""
_STREAMED = frozenset({PODS.group_resource})
"""Of which there may be so many that reading them decides when a replica can begin."""
_LEAD_AT_ONCE_SECONDS = 1.0
"""A replica that leads within this time reads the cluster once, and not once before and once after its election."""


class FollowedKind:
    """One kind: its reflector, and what its changes are given to.

    If a handler fails for an object, the error is logged, and that handler goes on without the object. If the operator
    ended instead, it would end again at each start, as long as the object exists.

    Args:
        session: the way to the API server.
        resource: the kind.
        handlers: what is given each change.
        trim: makes an object smaller before it is stored. Parts that are equal in many objects are stored once, so that
            nobody may change them. If it fails, only the object's identifying metadata is stored, and handlers report
            that they can't read it.
        field_selector: only these objects; empty for all.
        on_demand: whether the kind is followed only once `demand` is called. A new leader does not wait for it then.

    Attributes:
        reflector: lists and watches the kind.
        on_demand: as above.
    """

    def __init__(
        self,
        session: Session,
        resource: Resource,
        *handlers: OnChange,
        trim: Trim | None = None,
        field_selector: str = "",
        on_demand: bool = False,
    ) -> None:
        self._handlers = list(handlers)
        self._parts = SharedParts()
        self._demanded = asyncio.Event()
        self.on_demand = on_demand
        self.reflector = Reflector(
            session,
            resource,
            on_change=self._on_change,
            trim=bound_metadata if trim is None else None if trim is trim_pod else partial(self._trimmed, trim),
            decoding=self._decoding(resource, trim),
            field_selector=field_selector or None,
            settings=ReflectorSettings(
                page_size=_PAGE_SIZES.get(resource.group_resource), streams=resource.group_resource in _STREAMED
            ),
        )

    @property
    def store(self) -> Mapping[tuple[str, str], Object]:
        """What is known now, by (namespace, name)."""
        return self.reflector.store

    async def run(self) -> None:
        """Follow the kind until cancelled, from the first demand on if it is followed on demand."""
        if self.on_demand:
            await self._demanded.wait()
        await self.reflector.run()

    def demand(self) -> None:
        """Begin to follow the kind, if that has not begun."""
        self._demanded.set()

    def add(self, handler: OnChange) -> None:
        """Give each change to this handler, too, after the others."""
        self._handlers.append(handler)

    async def subscribe(self, handler: OnChange) -> None:
        """Give every object that is there, and from then on each change, to this handler.

        Objects are given in parts, so that others get their turns. A change of one that has not been given yet is given
        as if the object had just appeared.
        """
        left = dict(self.reflector.store)

        def on_change(old: Object | None, new: Object | None) -> None:
            if old is not None and left.pop(key_of(old), None) is not None:
                old = None
            if old is not None or new is not None:
                handler(old, new)

        self._handlers.append(on_change)
        async for key, obj in in_turns(list(left.items())):
            if left.pop(key, None) is not None:
                self._give(handler, None, obj)

    def problem(self) -> str | None:
        """A readiness check: has this kind been listed?"""
        return None if self.reflector.synced.is_set() else "not listed yet"

    def _decoding(self, resource: Resource, trim: Trim | None) -> Decoding:
        """Of pods that are trimmed, nothing is decoded that `trim_pod` leaves out, whatever else is left out."""
        if trim is None or resource.group_resource != PODS.group_resource:
            return Decoding(decode_page)
        trims = trim is trim_pod
        decoder = PodDecoder(self._parts, partial(self._trimmed, trim) if trims else lambda pod: pod)
        return Decoding(readable(decoder.page), decoder.event, trims=trims)

    def _on_change(self, old: Object | None, new: Object | None) -> None:
        for handler in self._handlers:
            self._give(handler, old, new)

    def _give(self, handler: OnChange, old: Object | None, new: Object | None) -> None:
        try:
            handler(old, new)
        except Exception:
            self._log(new or old or {})

    def _trimmed(self, trim: Trim, obj: Object) -> Object:
        metadata = trim_metadata(obj)  # first: `trim` may change the object
        try:
            return self._parts.share(trim(obj))
        except Exception:
            self._log(obj)
            return {"metadata": metadata}

    def _log(self, obj: Object) -> None:
        metadata = obj.get("metadata", {})
        logger.exception("%s %s/%s", self.reflector.resource.kind, metadata.get("namespace"), metadata.get("name"))


class WatchedKinds:
    """All kinds that one replica follows."""

    def __init__(self, kinds: Mapping[str, FollowedKind], supervisor: Supervisor) -> None:
        """Nothing is read yet."""
        self._kinds = kinds
        self._supervisor = supervisor
        self._following = False

    async def stand_by(self) -> None:
        """Follow the kinds although this replica does not lead yet, so that it can take over warm; never returns."""
        await asyncio.sleep(_LEAD_AT_ONCE_SECONDS)
        if not self._following:
            self._follow()
        await asyncio.Event().wait()

    async def read_afresh(self) -> None:
        """Return once every kind is known as of a list begun after this call.

        A new leader must know what its predecessor did to the last: only lists begun after the election count.
        """
        if self._following:
            await asyncio.gather(*(kind.reflector.refresh() for kind in self._kinds.values() if not kind.on_demand))
        else:
            self._follow()
            await asyncio.gather(*(k.reflector.synced.wait() for k in self._kinds.values() if not k.on_demand))

    def _follow(self) -> None:
        self._following = True
        for name, kind in self._kinds.items():
            self._supervisor.spawn(f"reflector {name}", kind.run)
